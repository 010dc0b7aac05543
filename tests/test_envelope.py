"""What envelope.py promises: only what a trusted producer signed is opened, bit for bit, and only in its time."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benteng.envelope import (
    ENVELOPE_BYTES_MAX,
    PAYLOAD_TYPE,
    RULES,
    Columns,
    JobClaims,
    match,
    open_envelope,
    pae,
    seal,
)
from benteng.errors import EnvelopeError
from benteng.keyring import Role, SigningKey, TrustedKey, TrustRoots

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
SKEW = 60 * SECOND
DAY = 86_400 * SECOND
KEY = SigningKey.from_seed(bytes(range(32)))
OTHER = SigningKey.from_seed(bytes(32))


def root(key, **changes):
    """Return a producer's trust root for a key, valid now."""
    known = TrustedKey(key.key_id, Role.PRODUCER, key.public, "svc:deployer", NOW - DAY, NOW + 30 * DAY)
    return replace(known, **changes)


def roots(*keys):
    """Return trust roots of these keys."""
    return TrustRoots({key.key_id: key for key in keys})


TRUST = roots(root(KEY))

CLAIMS = JobClaims(
    version=1,
    key_id=KEY.key_id,
    job_id="019b76da-a800-7000-8000-00000000002a",
    type="patch.apply@1",
    tier="high",
    origin="svc:deployer",
    actor="user:ana",
    request_id="req-7f3",
    operation_key="1" * 64,
    payload_sha256="2" * 64,
    schema_sha256="3" * 64,
    policy_sha256="4" * 64,
    artifacts=(("openssl-3.0.14", "5" * 64),),
    targets=("host:web-7",),
    resources=("host:web-7", "host:web-8"),
    priority=5,
    available_at_us=0,
    generation=0,
    issued_at_us=NOW,
    expires_at_us=NOW + DAY,
)
SEALED = seal(CLAIMS, KEY)
SEALED_OTHER = seal(msgspec.structs.replace(CLAIMS, priority=6), KEY)


def opened(raw, trust=TRUST, now_us=NOW):
    """Open with a minute of skew."""
    return open_envelope(raw, trust, now_us=now_us, skew_us=SKEW)


def refused(raw, trust=TRUST, now_us=NOW):
    """Return the rule by which the envelope is refused; the error has its meaning and a fix."""
    with pytest.raises(EnvelopeError) as caught:
        opened(raw, trust, now_us)
    assert caught.value.reason == RULES[caught.value.rule].meaning
    assert caught.value.fix
    return caught.value.rule


def signed(body, key=KEY, payload_type=PAYLOAD_TYPE, **changes):
    """Return an envelope over any body bytes, as a hostile holder of a trusted key can make it."""
    envelope = {
        "payload": base64.b64encode(body).decode(),
        "payloadType": payload_type,
        "signatures": [{"keyid": key.key_id, "sig": base64.b64encode(key.sign(pae(payload_type, body))).decode()}],
    }
    return msgspec.json.encode(envelope | changes)


def edited(**changes):
    """Return the sealed envelope with other outer fields, written canonically."""
    return json.dumps(json.loads(SEALED) | changes, separators=(",", ":")).encode()


def body_with(**changes):
    """Return the body with other claims."""
    return json.dumps(json.loads(msgspec.json.encode(CLAIMS)) | changes).encode()


def test_sealed_claims_are_opened_as_they_were():
    """What a trusted producer seals, opens to the same claims."""
    assert CLAIMS == opened(SEALED)


def test_envelope_is_plain_dsse():
    """Any DSSE tool can read it: the standard fields, the body's exact bytes, a signature over its PAE."""
    envelope = json.loads(SEALED)

    assert ["payload", "payloadType", "signatures"] == list(envelope)
    assert msgspec.json.encode(CLAIMS) == base64.b64decode(envelope["payload"])
    assert signed(msgspec.json.encode(CLAIMS)) == SEALED


def test_pae_is_the_specification_s():
    """The example of the DSSE protocol, and its rule that lengths count bytes."""
    assert b"DSSEv1 29 http://example.com/HelloWorld 11 hello world" == pae(
        "http://example.com/HelloWorld", b"hello world"
    )
    assert b"DSSEv1 2 \xc3\xa9 0 " == pae("é", b"")


def test_golden_envelope(request):
    """Version 1 as another implementation would write it: key, claims and every byte."""
    golden = json.loads((request.config.rootpath / "tests/golden/envelope_v1.json").read_text(encoding="utf-8"))
    key = SigningKey.from_seed(bytes.fromhex(golden["seed_hex"]))
    claims = msgspec.convert(golden["claims"], JobClaims)

    assert golden["key_id"] == key.key_id
    assert golden["pae_hex"] == pae(PAYLOAD_TYPE, golden["body"].encode()).hex()
    assert golden["envelope"] == seal(claims, key).decode()
    assert claims == opened(golden["envelope"].encode(), roots(root(key)))


def test_every_single_bit_is_protected():
    """Flip any one bit of the envelope and it is refused."""
    survivors = []
    for bit in range(len(SEALED) * 8):
        raw = bytearray(SEALED)
        raw[bit // 8] ^= 1 << bit % 8
        try:
            opened(bytes(raw))
        except EnvelopeError:
            continue
        survivors.append(bit)

    assert [] == survivors


def test_every_length_but_the_right_one_is_refused():
    """Cut at any place, or with a byte more, it is no envelope."""
    rules = {refused(SEALED[:length]) for length in range(1, len(SEALED))}

    assert {"E-format"} == rules
    assert "E-format" == refused(SEALED + b"x")
    assert "E-encoding" == refused(SEALED + b"\n")


@given(
    st.binary(max_size=64)
    | st.text().map(str.encode)
    | st.recursive(st.none() | st.text(), st.lists).map(msgspec.json.encode)
)
def test_any_other_bytes_are_refused_typed(raw):
    """Whatever arrives, the answer is an EnvelopeError with a rule."""
    assert refused(raw) in {"E-size", "E-format", "E-extra"}


@pytest.mark.parametrize(
    "rule, raw",
    [
        ("E-size", b""),
        ("E-size", SEALED + b" " * ENVELOPE_BYTES_MAX),
        ("E-format", b"\xc6\x40\x00\x00\x00" + SEALED),  # msgpack: "1 GiB of bytes follow"
        ("E-format", b"1073741824:" + SEALED),
        ("E-format", b"[" * 10_000),
        ("E-format", b"null"),
        ("E-format", b"{}"),
        ("E-format", edited(payload=7)),
        ("E-format", edited(payload=None)),
        ("E-format", edited(signatures={"keyid": KEY.key_id})),
        ("E-format", SEALED.replace(b'"sig":"', b'"sig":"\xff')),
        ("E-format", SEALED.replace(b'"sig":"', b'"sig":"\\ud800')),
        ("E-extra", edited(override=True)),
        ("E-extra", SEALED.replace(b'"sig"', b'"cert":"","sig"')),
        ("E-duplicate", SEALED.replace(b'{"payload"', b'{"payload":"","payload"')),
        ("E-duplicate", SEALED.replace(b'"keyid"', b'"keyid":"0000000000000000","keyid"')),
        ("E-encoding", b" " + SEALED),
        ("E-encoding", SEALED.replace(b'":"', b'": "', 1)),
        ("E-encoding", json.dumps(dict(reversed(json.loads(SEALED).items())), separators=(",", ":")).encode()),
        ("E-encoding", SEALED.replace(b"application", b"\\u0061pplication")),
        ("E-encoding", SEALED.replace(b'=="}', b'"}')),
        ("E-encoding", SEALED.replace(b'"payload":"ey', b'"payload":"e-')),
        ("E-encoding", SEALED.replace(b'"payload":"ey', b'"payload":"e\\ny')),
        ("E-type", edited(payloadType="application/vnd.benteng.vote+json")),
        ("E-type", edited(payloadType="")),
        ("E-type", signed(msgspec.json.encode(CLAIMS), payload_type="application/vnd.benteng.vote+json")),
        ("E-signatures", edited(signatures=[])),
        ("E-signatures", edited(signatures=json.loads(SEALED)["signatures"] * 2)),
        ("E-signature", edited(payload=base64.b64encode(body_with(priority=0)).decode())),
        ("E-signature", edited(signatures=json.loads(SEALED_OTHER)["signatures"])),
        ("E-signature", signed(msgspec.json.encode(CLAIMS), signatures=[{"keyid": KEY.key_id, "sig": ""}])),
        ("E-signature", edited(signatures=[{"keyid": KEY.key_id, "sig": base64.b64encode(bytes(64)).decode()}])),
        ("E-body", signed(b"")),
        ("E-body", signed(b"no json")),
        ("E-body", signed(b'{"version":"1"}')),
        ("E-body", signed(b"[" * 5_000)),
        ("E-body", signed(body_with(priority=10))),
        ("E-body", signed(body_with(priority=True))),
        ("E-body", signed(body_with(payload_sha256="2" * 64 + "\n"))),
        ("E-body", signed(body_with(tier="urgent"))),
        ("E-body", signed(body_with(expires_at_us=1 << 53))),
        ("E-body", signed(body_with(resources=["host:a"] * 17))),
        ("E-extra", signed(body_with(override=True))),
        ("E-duplicate", signed(body_with().replace(b'"type"', b'"type": "db.drop@1", "type"'))),
        ("E-version", signed(body_with(version=2))),
        ("E-version", signed(b'{"version":2,"new":[]}')),
        ("E-key-id", signed(body_with(key_id=OTHER.key_id))),
        ("E-origin", signed(body_with(origin="svc:other"))),
        ("E-lifetime", signed(body_with(expires_at_us=NOW))),
        ("E-future", signed(body_with(issued_at_us=NOW + SKEW + 1))),
        ("E-expired", signed(body_with(issued_at_us=NOW - DAY, expires_at_us=NOW))),
    ],
)  # fmt: skip
def test_forged_and_spoiled_envelopes_are_refused_by_their_rule(rule, raw):
    """Each way to spoil an envelope has its own rule id."""
    assert rule == refused(raw)


@pytest.mark.parametrize(
    "rule, trust",
    [
        ("E-key", roots()),
        ("E-key", roots(root(OTHER))),
        ("E-role", roots(root(KEY, role=Role.APPROVER))),
        ("E-role", roots(root(KEY, role=Role.SEALER))),
        ("E-role", roots(root(KEY, role=Role.OPERATOR))),
        ("E-revoked", roots(root(KEY, revoked=True))),
        ("E-key-early", roots(root(KEY, not_before=NOW + SKEW + 1))),
        ("E-key-late", roots(root(KEY, not_after=NOW))),
        ("E-signature", roots(root(KEY, public=OTHER.public))),
        ("E-signature", roots(root(KEY, public=b"\xff" * 32))),
        ("E-origin", roots(root(KEY, origin="svc:other"))),
    ],
)
def test_signature_counts_only_from_a_key_that_is_trusted_for_it_now(rule, trust):
    """Unknown, of another role or origin, revoked, too early or too late: the trust roots of this host decide."""
    assert rule == refused(SEALED, trust)


def test_signature_cannot_be_given_to_another_trusted_key():
    """Two trusted producers: neither passes for the other."""
    trust = roots(root(KEY), root(OTHER))
    signature = {"keyid": OTHER.key_id, "sig": json.loads(SEALED)["signatures"][0]["sig"]}

    assert "E-signature" == refused(edited(signatures=[signature]), trust)
    assert "E-key-id" == refused(signed(msgspec.json.encode(CLAIMS), OTHER), trust)


def test_times_are_inclusive_where_they_should_be():
    """Issued up to the skew ahead is accepted; the instant of expiry is late; a key is valid from its first instant."""
    ahead = msgspec.structs.replace(CLAIMS, issued_at_us=NOW + SKEW)

    assert ahead == opened(seal(ahead, KEY))
    assert CLAIMS == opened(SEALED, now_us=NOW + DAY - 1)
    assert "E-expired" == refused(SEALED, now_us=NOW + DAY)
    assert CLAIMS == opened(SEALED, roots(root(KEY, not_before=NOW + SKEW, not_after=NOW + SKEW + 1)))


def test_body_is_not_parsed_before_its_signature_holds():
    """An untrusted body never reaches the parser: with a bad signature a bad body is E-signature."""
    raw = signed(b"no json", signatures=[{"keyid": KEY.key_id, "sig": base64.b64encode(bytes(64)).decode()}])

    assert "E-signature" == refused(raw)


@pytest.mark.parametrize(
    "rule, changes",
    [
        ("E-body", {"priority": 10}),
        ("E-body", {"actor": "\ud800"}),
        ("E-body", {"actor": "a" * 257}),
        ("E-body", {"targets": {1, 2}}),
        ("E-version", {"version": 2}),
        ("E-key-id", {"key_id": OTHER.key_id}),
        ("E-lifetime", {"expires_at_us": NOW}),
        ("E-lifetime", {"expires_at_us": 0}),
        ("E-size", {"targets": ("t" * 256,) * 64}),
    ],
)
def test_seal_signs_nothing_that_would_not_open(rule, changes):
    """A producer hears of it at once, not from the worker."""
    with pytest.raises(EnvelopeError) as caught:
        seal(msgspec.structs.replace(CLAIMS, **changes), KEY)

    assert rule == caught.value.rule


@pytest.mark.parametrize("tier", ["low", "medium"])
def test_below_high_a_job_may_never_expire(tier):
    """0 means never, as the policy of the type says; HIGH has no such thing."""
    claims = msgspec.structs.replace(CLAIMS, tier=tier, expires_at_us=0)

    assert claims == opened(seal(claims, KEY))


def test_errors_name_the_field_and_show_no_value():
    """The path of a wrong field is said; its value, and the name of an unknown one, are not."""
    with pytest.raises(EnvelopeError) as wrong:
        opened(signed(body_with(artifacts=[["a", "CANARY"]])))
    with pytest.raises(EnvelopeError) as unknown:
        opened(signed(body_with(CANARY="CANARY")))

    assert "artifacts[0][1]" == wrong.value.field
    assert "" == unknown.value.field
    assert "CANARY" not in f"{wrong.value} {unknown.value}"
    assert wrong.value.__cause__ is None


COLUMNS = {name: getattr(CLAIMS, name) for name in Columns.__annotations__}


def test_match_accepts_the_row_that_was_signed():
    """Sequences may come as lists, as a store returns them."""
    match(CLAIMS, **COLUMNS)
    match(CLAIMS, **COLUMNS | {"artifacts": [["openssl-3.0.14", "5" * 64]], "resources": list(CLAIMS.resources)})


OTHERS = {
    "tier": "low",
    "priority": 0,
    "artifacts": [["openssl-3.0.14", "6" * 64]],
    "targets": [],
    "resources": ["host:web-8", "host:web-7"],
    "available_at_us": 1,
    "generation": False,
    "expires_at_us": float(CLAIMS.expires_at_us),
}


@pytest.mark.parametrize("name", Columns.__annotations__)
def test_match_refuses_each_column_that_differs(name):
    """Each signed field that the row also has is compared, value and type, and the first that differs is named."""
    with pytest.raises(EnvelopeError) as caught:
        match(CLAIMS, **COLUMNS | {name: OTHERS.get(name, "x")})

    assert ("E-mismatch", name) == (caught.value.rule, caught.value.field)


@pytest.mark.parametrize("name", Columns.__annotations__)
def test_match_refuses_a_column_that_was_left_out(name):
    """Forgetting to pass a column is a mismatch, not a pass."""
    with pytest.raises(EnvelopeError, match=name):
        match(CLAIMS, **{key: value for key, value in COLUMNS.items() if key != name})


def test_all_claims_are_matched_but_those_that_only_the_envelope_has():
    """A claim added later is compared unless somebody writes it down here."""
    assert {"version", "key_id", "issued_at_us"} == set(JobClaims.__struct_fields__) - set(Columns.__annotations__)


def test_each_rule_is_documented(request):
    """Each rule id is a heading of the reference."""
    page = (request.config.rootpath / "docs/reference/envelope.md").read_text(encoding="utf-8")

    assert [] == [rule for rule, what in RULES.items() if f"### {rule}\n" not in page or what.meaning not in page]
