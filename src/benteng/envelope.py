"""Signed job envelopes: who can write to the store still cannot bring in, change or re-address a job of tier HIGH.

Jobs that are signed together share one signature, over the root of a Merkle tree of their bodies; each envelope proves
by itself that its body is in the tree. The exact body bytes are stored, proved, and parsed only after the signature
holds. Every part of an envelope has one place and one length, so that no bit of it can change.
Trust: nothing in the bytes. Not covered: deletion, delay and reordering by who can write to the store (audit, alarms).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, NoReturn, TypedDict, Unpack, cast

import msgspec

from benteng.clock import Instant
from benteng.errors import EnvelopeError
from benteng.keyring import Role, SigningKey, TrustedKey, TrustRoots
from benteng.merkle import HASH_BYTES, inclusion_proofs, leaf_hash, proof_length, proved_root

PAYLOAD_TYPE = "application/vnd.benteng.jobs"
FORMAT = 1
VERSION = 1
ENVELOPE_BYTES_MAX = 16 * 1024
SIGNATURE_BYTES = 64
TREE_JOBS_MAX = 64
"""Jobs by one signature. Twice as many would share it further, and put another 32 bytes into each row."""

VERIFIED_MAX = 256
"""Signatures that a process remembers as good: about 600 bytes each."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule refuses. `suspicious`: an honest producer cannot cause it by mistake, delay or rotation of keys."""

    meaning: str
    suspicious: bool = True


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        # In the order of the checks.
        "E-size": Rule("the envelope is empty or larger than 16 KiB"),
        "E-format": Rule("the bytes are no envelope: another format, or cut off"),
        "E-tree": Rule("there is no such place among jobs that are signed together"),
        "E-key": Rule("the signing key is not among the trust roots"),
        "E-role": Rule("the signing key may not sign jobs"),
        "E-revoked": Rule("the signing key is revoked"),
        "E-key-early": Rule("the signing key is not valid yet", suspicious=False),
        "E-key-late": Rule("the signing key is not valid any more", suspicious=False),
        "E-signature": Rule("the signature does not hold for a tree with this body in this place"),
        "E-body": Rule("the signed body has a field that is missing, mistyped or out of bounds"),
        "E-extra": Rule("the signed body has a field that does not belong there"),
        "E-duplicate": Rule("a field of the signed body occurs twice"),
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
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Artifacts = Annotated[tuple[tuple[_Name, _Sha256], ...], msgspec.Meta(max_length=64)]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)]
_Resources = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=16)]


class JobClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
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
    key_id: str
    job_id: str
    type: _Name
    tier: str
    origin: _Name
    actor: _Text
    request_id: _Text
    operation_key: str
    payload_sha256: str
    schema_sha256: str
    policy_sha256: str
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


def seal(claims: Sequence[JobClaims], key: SigningKey) -> list[bytes | EnvelopeError]:
    """Return the envelope to store for each of several jobs, in order, signed `TREE_JOBS_MAX` at a time.

    Claims that `open_envelope` would refuse by themselves get the error in their place, and stop no other.
    """
    bodies = [_checked_body(each, key.key_id) for each in claims]
    good = [body for body in bodies if isinstance(body, bytes)]
    starts = range(0, len(good), TREE_JOBS_MAX)
    sealed = iter([each for start in starts for each in _seal_tree(good[start : start + TREE_JOBS_MAX], key)])
    return [next(sealed) if isinstance(body, bytes) else body for body in bodies]


def open_envelope(raw: bytes, trust: TrustRoots, *, now_us: Instant, skew_us: Instant) -> JobClaims:
    """Return what a trusted producer signed, or raise EnvelopeError: see `RULES`, in the order of the checks.

    `skew_us` is how far the signer's clock may be ahead of `now_us`; nothing prolongs an expiry. The claims are true of
    *some* job: `match` them with the row they came with.
    """
    envelope = _parse_envelope(raw)
    key = _trusted(trust, envelope.key_id, now_us, skew_us)
    _verify(key.public, envelope.signature, pae(PAYLOAD_TYPE, envelope.statement))
    claims = _parse_body(envelope.body)
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


# ------------------------------------------------------------------------------------------------------------ the tree


_HEAD = struct.Struct(">B8sBB64s")
"""Format, key id, jobs in the tree, place in it from 0, signature. The audit path follows, then the body."""

_SIGNED_HEAD = struct.Struct(">B8sB")
"""What the signature covers of it; the root of the tree follows."""

_BODY_BYTES_MAX = ENVELOPE_BYTES_MAX - _HEAD.size - HASH_BYTES * proof_length(0, TREE_JOBS_MAX)
"""However many are signed with it: a job is not refused because of its neighbours."""


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    """An envelope in its parts; `statement` is what must have been signed if the body is in the tree."""

    key_id: str
    statement: bytes
    signature: bytes
    body: bytes


def _seal_tree(bodies: Sequence[bytes], key: SigningKey) -> list[bytes]:
    root, proofs = inclusion_proofs([leaf_hash(body) for body in bodies])
    key_id, jobs = bytes.fromhex(key.key_id), len(bodies)
    signature = key.sign(pae(PAYLOAD_TYPE, _SIGNED_HEAD.pack(FORMAT, key_id, jobs) + root))
    return [
        b"".join((_HEAD.pack(FORMAT, key_id, jobs, place, signature), *proof, body))
        for place, (proof, body) in enumerate(zip(proofs, bodies, strict=True))
    ]


def _parse_envelope(raw: bytes) -> _Envelope:
    if not 0 < len(raw) <= ENVELOPE_BYTES_MAX:
        _refuse("E-size", fix="Refer to fewer artifacts, targets and resources")
    if raw[0] != FORMAT or len(raw) < _HEAD.size:
        _refuse("E-format")
    _, key_id, jobs, place, signature = _HEAD.unpack_from(raw)
    if not place < jobs <= TREE_JOBS_MAX:
        _refuse("E-tree")
    end = _HEAD.size + HASH_BYTES * proof_length(place, jobs)
    if len(raw) < end:
        _refuse("E-format")
    body = raw[end:]
    proof = [raw[at : at + HASH_BYTES] for at in range(_HEAD.size, end, HASH_BYTES)]
    root = proved_root(leaf_hash(body), place, jobs, proof)
    return _Envelope(key_id.hex(), raw[: _SIGNED_HEAD.size] + root, signature, body)


# ----------------------------------------------------------------------------------------------------------- signatures


def _trusted(trust: TrustRoots, key_id: str, now_us: Instant, skew_us: Instant) -> TrustedKey:
    key = trust.find(key_id)
    if key is None:
        _refuse("E-key", "key_id", "Look at the key, then add it to trust.toml on this host")
    if key.role is not Role.PRODUCER:
        _refuse("E-role", "key_id", "Sign with the producer's key")
    if key.revoked:
        _refuse("E-revoked", "key_id", "Sign with a key that is not revoked")
    if now_us + skew_us < key.not_before:
        _refuse("E-key-early", "key_id", "Compare the clocks, or wait")
    if now_us >= key.not_after:
        _refuse("E-key-late", "key_id", "Sign with the new key; retire a key only after its last job expired")
    return key


@lru_cache(maxsize=VERIFIED_MAX)
def _verify(public: bytes, signature: bytes, message: bytes) -> None:
    """Refuse unless the signature is good. What is refused is not remembered, and nothing but these bytes decides.

    Whether the key is trusted, for this and now, is asked each time.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        _refuse("E-signature", "signature", "Do not run the job; find out who wrote to the store")


# ------------------------------------------------------------------------------------------------------------- the body


def _checked_body(claims: JobClaims, key_id: str) -> bytes | EnvelopeError:
    """Return the body to sign, or why `open_envelope` would refuse it."""
    try:
        body = _body(claims)
        _check_signer(_parse_body(body), key_id)
    except EnvelopeError as error:
        return error
    return body


def _body(claims: JobClaims) -> bytes:
    try:
        body = msgspec.json.encode(claims)
    except (TypeError, ValueError):  # a lone surrogate, a value of a foreign type
        _refuse("E-body")
    if len(body) > _BODY_BYTES_MAX:
        _refuse("E-size", fix="Refer to fewer artifacts, targets and resources")
    return body


def _parse_body(body: bytes) -> JobClaims:
    try:
        claims = msgspec.json.decode(body, type=JobClaims)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        _refuse_body(body, error)
    if not _SPELLED.fullmatch(" ".join(_spelled(claims))):
        names = (name for name, spelling in _SPELLINGS.items() if not re.fullmatch(spelling, getattr(claims, name)))
        _refuse("E-body", next(names))
    if msgspec.json.encode(claims) != body and _has_duplicates(body):
        _refuse("E-duplicate")
    return claims


_DIGEST = "[0-9a-f]{64}"
_SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        "key_id": "[0-9a-f]{16}",
        "job_id": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "tier": "(?:low|medium|high)",
        "operation_key": _DIGEST,
        "payload_sha256": _DIGEST,
        "schema_sha256": _DIGEST,
        "policy_sha256": _DIGEST,
    },
)
"""How the claims are written that are no free text."""

_SPELLED = re.compile(" ".join(_SPELLINGS.values()))
_spelled = attrgetter(*_SPELLINGS)
"""All of them at once: as patterns of `JobClaims` they were two thirds of what a body costs to read."""


def _refuse_body(body: bytes, error: Exception) -> NoReturn:
    """Refuse a body that is not of `JobClaims`; of another version it need not be."""
    with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
        if msgspec.json.decode(body, type=_Versioned).version != VERSION:
            _refuse("E-version", "version", "Update this host, or sign with the version that it knows")
    _refuse("E-extra" if "unknown field" in str(error) else "E-body", _field_of(error))


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
