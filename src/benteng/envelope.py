"""Signed job envelopes: who can write to the store still cannot bring in, change or re-address a job of tier HIGH.

An envelope is DSSE v1 in JSON (github.com/secure-systems-lab/dsse): the exact body bytes are signed, stored, checked,
and parsed only after the signature holds. There is one way to write an envelope, so that no bit of it can change.
Trust: nothing in the bytes. Not covered: deletion, delay and reordering by who can write to the store (audit, alarms).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, NoReturn, TypedDict, Unpack, cast

import msgspec

from benteng.clock import Instant
from benteng.errors import EnvelopeError
from benteng.keyring import Role, SigningKey, TrustedKey, TrustRoots

PAYLOAD_TYPE = "application/vnd.benteng.job+json"
VERSION = 1
ENVELOPE_BYTES_MAX = 16 * 1024
SIGNATURE_BYTES = 64
SIGNATURES_MAX = 16


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule refuses. `suspicious`: an honest producer cannot cause it by mistake, delay or rotation of keys."""

    meaning: str
    suspicious: bool = True


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        # In the order of the checks.
        "E-size": Rule("the envelope is empty or larger than 16 KiB"),
        "E-format": Rule(
            "the bytes are no DSSE envelope in JSON: cut off, another format, a field missing or mistyped"
        ),
        "E-duplicate": Rule("a field occurs twice"),
        "E-extra": Rule("there is a field that does not belong there"),
        "E-encoding": Rule("the envelope is not written in its one canonical form"),
        "E-type": Rule("the payload type is not that of a job"),
        "E-signatures": Rule("there is not exactly one signature"),
        "E-key": Rule("the signing key is not among the trust roots"),
        "E-role": Rule("the signing key may not sign jobs"),
        "E-revoked": Rule("the signing key is revoked"),
        "E-key-early": Rule("the signing key is not valid yet", suspicious=False),
        "E-key-late": Rule("the signing key is not valid any more", suspicious=False),
        "E-signature": Rule("the signature does not hold for these bytes"),
        "E-body": Rule("the signed body has a field that is missing, mistyped or out of bounds"),
        "E-version": Rule("the signed body is of a version that this code does not know", suspicious=False),
        "E-key-id": Rule("the signed body names another key than the one that signed it"),
        "E-origin": Rule("the signing key belongs to another origin than the body says"),
        "E-lifetime": Rule("the job expires before it was issued, or is HIGH and never expires"),
        "E-future": Rule("the job was issued in the future"),
        "E-expired": Rule("the job has expired", suspicious=False),
        "E-mismatch": Rule("a column of the stored job differs from what was signed"),
    },
)
"""The rules of this module by id; each EnvelopeError names one (docs/reference/envelope.md)."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]
_KeyId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Uuid = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")]
_Artifacts = Annotated[tuple[tuple[_Name, _Sha256], ...], msgspec.Meta(max_length=64)]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)]
_Resources = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=16)]


class JobClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a producer signs about one job. Instants are microseconds since 1970, digests lower-case hex.

    key_id           the signing key, so that a signature cannot be given to another key
    origin           whose key it is; must be the origin of that key in the trust roots of the host that checks
    operation_key    identity of the operation; payload_sha256 is the digest of the payload's exact bytes
    schema_sha256    digest of the contract, policy_sha256 of the type's policy, under which the gate judged
    artifacts        (id, sha256) of each; targets and resources as `job.Refs` has them
    available_at_us  not started before (0: at once), as admitted; retries do not change it
    expires_at_us    not started after; 0 below HIGH: never expires
    generation       0, or which replay this is
    """

    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    key_id: _KeyId
    job_id: _Uuid
    type: _Name
    tier: Annotated[str, msgspec.Meta(pattern=r"\A(low|medium|high)\Z")]
    origin: _Name
    actor: _Text
    request_id: _Text
    operation_key: _Sha256
    payload_sha256: _Sha256
    schema_sha256: _Sha256
    policy_sha256: _Sha256
    artifacts: _Artifacts
    targets: _Names
    resources: _Resources
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)]
    available_at_us: _Count
    generation: _Count
    issued_at_us: _Count
    expires_at_us: _Count


class Columns(TypedDict):
    """The stored job's columns that must equal what was signed: all of them, each time."""

    job_id: str
    type: str
    tier: str
    origin: str
    actor: str
    request_id: str
    operation_key: str
    payload_sha256: str
    schema_sha256: str
    policy_sha256: str
    artifacts: tuple[tuple[str, str], ...]
    targets: tuple[str, ...]
    resources: tuple[str, ...]
    priority: int
    available_at_us: int
    generation: int
    expires_at_us: int


_COLUMNS = tuple(Columns.__annotations__)
_ABSENT = object()


def seal(claims: JobClaims, key: SigningKey) -> bytes:
    """Return the envelope to store. Raises EnvelopeError for claims that `open_envelope` would refuse by themselves."""
    body = _body(claims)
    _check_signer(_parse_body(body), key.key_id)
    envelope = _Envelope(_text(body), PAYLOAD_TYPE, (_Signature(key.key_id, _text(key.sign(pae(PAYLOAD_TYPE, body)))),))
    raw = msgspec.json.encode(envelope)
    _check_size(raw)
    return raw


def open_envelope(raw: bytes, trust: TrustRoots, *, now_us: Instant, skew_us: Instant) -> JobClaims:
    """Return what a trusted producer signed, or raise EnvelopeError: see `RULES`, in the order of the checks.

    `skew_us` is how far the signer's clock may be ahead of `now_us`; nothing prolongs an expiry. The claims are true of
    *some* job: `match` them with the row they came with.
    """
    _check_size(raw)
    envelope = _parse_envelope(raw)
    signature = _only_signature(envelope)
    key = _trusted(trust, signature.keyid, now_us, skew_us)
    body = _bytes(envelope.payload)
    _verify(key, _bytes(signature.sig), pae(envelope.payloadType, body))
    claims = _parse_body(body)
    _check_signer(claims, key.key_id)
    _check_origin(claims, key)
    _check_times(claims, now_us, skew_us)
    return claims


def match(claims: JobClaims, **columns: Unpack[Columns]) -> None:
    """Raise EnvelopeError E-mismatch naming the first column that differs from the claims in value or type."""
    for name in _COLUMNS:
        signed: object = getattr(claims, name)
        stored: object = columns.get(name, _ABSENT)
        if (signed != stored or type(signed) is not type(stored)) and not _same(signed, stored):
            _refuse("E-mismatch", name, "Do not run the job; find out who wrote to the store")


def pae(payload_type: str, body: bytes) -> bytes:
    """Return the bytes that are signed (DSSE v1 protocol, "Pre-Authentication Encoding")."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


# ------------------------------------------------------------------------------------------------- before the signature


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    payload: str
    payloadType: str  # noqa: N815 -- the DSSE specification's field name
    signatures: Annotated[tuple[_Signature, ...], msgspec.Meta(max_length=SIGNATURES_MAX)]


def _check_size(raw: bytes) -> None:
    if not 0 < len(raw) <= ENVELOPE_BYTES_MAX:
        _refuse("E-size", fix="Refer to fewer artifacts, targets and resources")


def _parse_envelope(raw: bytes) -> _Envelope:
    try:
        envelope = msgspec.json.decode(raw, type=_Envelope)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        _refuse(_why_malformed(error, "E-format"))
    if _written(envelope) != raw:
        _refuse("E-duplicate" if _has_duplicates(raw) else "E-encoding")
    return envelope


def _written(envelope: _Envelope) -> bytes:
    """Return the one permitted spelling of an envelope: base64 has several texts for the same bytes, JSON too."""
    signatures = tuple(_Signature(each.keyid, _text(_bytes(each.sig))) for each in envelope.signatures)
    return msgspec.json.encode(_Envelope(_text(_bytes(envelope.payload)), envelope.payloadType, signatures))


def _only_signature(envelope: _Envelope) -> _Signature:
    if envelope.payloadType != PAYLOAD_TYPE:
        _refuse("E-type", "payloadType")
    if len(envelope.signatures) != 1:
        _refuse("E-signatures", "signatures")
    return envelope.signatures[0]


def _trusted(trust: TrustRoots, key_id: str, now_us: Instant, skew_us: Instant) -> TrustedKey:
    key = trust.find(key_id)
    if key is None:
        _refuse("E-key", "signatures.keyid", "Look at the key, then add it to trust.toml on this host")
    if key.role is not Role.PRODUCER:
        _refuse("E-role", "signatures.keyid", "Sign with the producer's key")
    if key.revoked:
        _refuse("E-revoked", "signatures.keyid", "Sign with a key that is not revoked")
    if now_us + skew_us < key.not_before:
        _refuse("E-key-early", "signatures.keyid", "Compare the clocks, or wait")
    if now_us >= key.not_after:
        _refuse("E-key-late", "signatures.keyid", "Sign with the new key; retire a key only after its last job expired")
    return key


def _verify(key: TrustedKey, signature: bytes, message: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(signature, message)
    except (InvalidSignature, ValueError):
        _refuse("E-signature", "signatures.sig", "Do not run the job; find out who wrote to the store")


# -------------------------------------------------------------------------------------------------- after the signature


def _body(claims: JobClaims) -> bytes:
    try:
        return msgspec.json.encode(claims)
    except (TypeError, ValueError):  # a lone surrogate, a value of a foreign type
        _refuse("E-body")


def _parse_body(body: bytes) -> JobClaims:
    try:
        if msgspec.json.decode(body, type=_Versioned).version != VERSION:
            _refuse("E-version", "version", "Update this host, or sign with the version that it knows")
        claims = msgspec.json.decode(body, type=JobClaims)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        _refuse(_why_malformed(error, "E-body"), _field_of(error))
    if msgspec.json.encode(claims) != body and _has_duplicates(body):
        _refuse("E-duplicate")
    return claims


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def _check_signer(claims: JobClaims, key_id: str) -> None:
    if claims.key_id != key_id:
        _refuse("E-key-id", "key_id", "Name the key that signs")
    if claims.expires_at_us <= claims.issued_at_us and not _lasts(claims):
        _refuse("E-lifetime", "expires_at_us", "Let the job expire after it is issued")


def _lasts(claims: JobClaims) -> bool:
    """Tell whether the job never expires, which HIGH cannot (DESIGN section 5)."""
    return claims.expires_at_us == 0 and claims.tier != "high"


def _check_origin(claims: JobClaims, key: TrustedKey) -> None:
    if claims.origin != key.origin:
        _refuse("E-origin", "origin", "Sign with the key of that origin, or correct trust.toml on this host")


def _check_times(claims: JobClaims, now_us: Instant, skew_us: Instant) -> None:
    if claims.issued_at_us > now_us + skew_us:
        _refuse("E-future", "issued_at_us", "Compare the clocks")
    if now_us >= claims.expires_at_us and not _lasts(claims):
        _refuse("E-expired", "expires_at_us", "Enqueue it again, if it is still wanted")


# -------------------------------------------------------------------------------------------------------------- helpers


def _refuse(rule: str, field: str = "", fix: str = "Enqueue the job again through the gate") -> NoReturn:
    raise EnvelopeError(rule, RULES[rule].meaning, field=field, fix=fix) from None


def _same(signed: object, stored: object) -> bool:
    return isinstance(signed, tuple) and signed == _frozen(stored)


def _frozen(value: object) -> object:
    """Return lists within lists as tuples."""
    return tuple(map(_frozen, cast("Iterable[object]", value))) if isinstance(value, list | tuple) else value


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        _refuse("E-encoding")


def _why_malformed(error: Exception, otherwise: str) -> str:
    return "E-extra" if "unknown field" in str(error) else otherwise


def _field_of(error: Exception) -> str:
    """Return the path of the field that msgspec complains about, "" for the whole; no value, no foreign name."""
    name = str(error).rpartition("`$.")[2].partition("`")[0] if "`$." in str(error) else ""
    return name if name.partition("[")[0] in JobClaims.__struct_fields__ else ""


def _has_duplicates(raw: bytes) -> bool:
    """Say whether an object of a JSON text names a field twice. Asked only about texts that are refused anyway."""
    found: list[bool] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        found.append(len({name for name, _ in pairs}) < len(pairs))

    json.loads(raw, object_pairs_hook=look)
    return any(found)
