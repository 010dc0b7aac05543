"""What envelope.py promises: only what a trusted producer signed is opened, bit for bit, and only in its time."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benteng import envelope
from benteng.envelope import (
    ENVELOPE_BYTES_MAX,
    PAYLOAD_TYPE,
    RULES,
    TREE_JOBS_MAX,
    VERIFIED_MAX,
    Columns,
    JobClaims,
    match,
    open_envelope,
    pae,
    seal,
)
from benteng.errors import EnvelopeError
from benteng.keyring import Role, SigningKey, TrustedKey, TrustRoots
from benteng.merkle import inclusion_proof, leaf_hash, root

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
SKEW = 60 * SECOND
DAY = 86_400 * SECOND
KEY = SigningKey.from_seed(bytes(range(32)))
OTHER = SigningKey.from_seed(bytes(32))


def trusted(key, **changes):
    """Return a producer's trust root for a key, valid now."""
    known = TrustedKey(key.key_id, Role.PRODUCER, key.public, "svc:deployer", NOW - DAY, NOW + 30 * DAY)
    return replace(known, **changes)


def roots(*keys):
    """Return trust roots of these keys."""
    return TrustRoots({key.key_id: key for key in keys})


TRUST = roots(trusted(KEY))

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


def sealed(*claims, key=KEY):
    """Return the envelopes of claims that are all in order."""
    raws = [raw for raw in seal(claims, key) if isinstance(raw, bytes)]
    assert len(claims) == len(raws)
    return raws


def numbered(count):
    """Return the claims of so many jobs that go in together."""
    return [msgspec.structs.replace(CLAIMS, job_id=f"019b76da-a800-7000-8000-{number:012x}") for number in range(count)]


BODY = msgspec.json.encode(CLAIMS)
(SEALED,) = sealed(CLAIMS)
SEVEN = numbered(7)
BODIES = [msgspec.json.encode(each) for each in SEVEN]
TREE = sealed(*SEVEN)
HEAD_BYTES = 75


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


def signed(*bodies, place=0, key=KEY, payload_type=PAYLOAD_TYPE, **parts):
    """Return the envelope of one of some bodies, as a hostile holder of a trusted key can make it; `parts` are put in.

    It is written here once more, by the reference page alone.
    """
    leaves = [leaf_hash(body) for body in bodies]
    head = {"format": b"\1", "key_id": bytes.fromhex(key.key_id), "jobs": bytes([len(bodies)])}
    signature = key.sign(pae(payload_type, b"".join(head.values()) + root(leaves)))
    path = b"".join(inclusion_proof(leaves, place))
    whole = head | {"place": bytes([place]), "signature": signature, "path": path, "body": bodies[place]}
    return b"".join((whole | parts).values())


def body_with(**changes):
    """Return the body with other claims."""
    return json.dumps(json.loads(msgspec.json.encode(CLAIMS)) | changes).encode()


def test_sealed_claims_are_opened_as_they_were():
    """What a trusted producer seals, opens to the same claims."""
    assert CLAIMS == opened(SEALED)


@pytest.mark.parametrize("count", [1, 2, 3, 7, TREE_JOBS_MAX, TREE_JOBS_MAX + 1, 2 * TREE_JOBS_MAX + 2])
def test_jobs_share_signatures_and_each_opens_alone(count):
    """However many: one signature for each 64, and every envelope opens by itself to its own claims."""
    claims = numbered(count)

    raws = sealed(*claims)

    assert claims == [opened(raw) for raw in raws]
    assert -(-count // TREE_JOBS_MAX) == len({raw[11:HEAD_BYTES] for raw in raws})


def test_envelopes_are_written_as_the_reference_says():
    """Head, path, body: what another program writes by the reference page is what `seal` writes, byte for byte."""
    assert [signed(*BODIES, place=place) for place in range(7)] == TREE
    assert signed(BODY) == SEALED


def test_one_bad_job_stops_no_other_and_changes_no_other():
    """Its error stands in its place; the others share a signature as if it had not been there."""
    bad = msgspec.structs.replace(CLAIMS, priority=10)

    first, error, *others = seal([SEVEN[0], bad, *SEVEN[1:]], KEY)

    assert isinstance(error, EnvelopeError)
    assert "E-body" == error.rule
    assert TREE == [first, *others]


def test_nothing_is_sealed_of_nothing():
    """An empty list has no envelopes and no signature."""
    assert [] == seal([], KEY)


def test_pae_is_the_specification_s():
    """The example of the DSSE protocol, and its rule that lengths count bytes."""
    assert b"DSSEv1 29 http://example.com/HelloWorld 11 hello world" == pae(
        "http://example.com/HelloWorld", b"hello world"
    )
    assert b"DSSEv1 2 \xc3\xa9 0 " == pae("é", b"")


def test_golden_envelopes(request):
    """Format 1 as another implementation would write it: key, claims and every byte, of one job and of three."""
    golden = json.loads((request.config.rootpath / "tests/golden/envelope_v1.json").read_text(encoding="utf-8"))
    key = SigningKey.from_seed(bytes.fromhex(golden["seed_hex"]))
    claims = [msgspec.convert(each, JobClaims) for each in golden["claims"]]
    leaves = [leaf_hash(body.encode()) for body in golden["bodies"]]

    assert golden["key_id"] == key.key_id
    assert golden["bodies"] == [msgspec.json.encode(each).decode() for each in claims]
    assert golden["root_hex"] == root(leaves).hex()
    assert golden["envelopes_hex"] == [raw.hex() for raw in sealed(*claims, key=key)]
    assert golden["alone_hex"] == sealed(claims[0], key=key)[0].hex()
    assert claims == [opened(bytes.fromhex(raw), roots(trusted(key))) for raw in golden["envelopes_hex"]]


@pytest.mark.parametrize("raw", [SEALED, TREE[0], TREE[4], TREE[6]], ids=["alone", "first", "inner", "last"])
def test_every_single_bit_is_protected(raw):
    """Flip any one bit of an envelope and it is refused, whatever is remembered."""
    opened(raw)
    survivors = []
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            opened(bytes(flipped))
        except EnvelopeError:
            continue
        survivors.append(bit)

    assert [] == survivors


def test_every_length_but_the_right_one_is_refused():
    """Cut at any place, or with a byte more, it is no envelope."""
    path_end = HEAD_BYTES + 3 * 32

    assert {"E-format"} == {refused(TREE[0][:length]) for length in range(1, path_end)}
    assert {"E-signature"} == {refused(TREE[0][:length]) for length in range(path_end, len(TREE[0]))}
    assert "E-signature" == refused(TREE[0] + b"x")
    assert "E-signature" == refused(SEALED + b"\n")


@given(
    st.binary(max_size=200)
    | st.binary(max_size=200).map(lambda some: b"\1" + some)
    | st.binary(max_size=200).map(lambda some: TREE[0][:9] + some)
)
def test_any_other_bytes_are_refused_typed(raw):
    """Whatever arrives, the answer is an EnvelopeError with a rule."""
    assert refused(raw) in {"E-size", "E-format", "E-tree", "E-key", "E-signature"}


OTHERS_PATH = b"".join(inclusion_proof([leaf_hash(body) for body in BODIES], 1))
PATH = TREE[0][HEAD_BYTES : HEAD_BYTES + 96]
INNER = root([leaf_hash(body) for body in BODIES[:2]])

SPOILED = {
    "empty": ("E-size", b""),
    "large": ("E-size", SEALED + b" " * ENVELOPE_BYTES_MAX),
    "msgpack": ("E-format", b"\xc6\x40\x00\x00\x00" + SEALED),
    "netstring": ("E-format", b"1073741824:" + SEALED),
    "json": ("E-format", b'{"payload":"","payloadType":"application/vnd.benteng.job+json","signatures":[]}'),
    "null": ("E-format", b"null"),
    "format-0": ("E-format", signed(BODY, format=b"\0")),
    "format-2": ("E-format", signed(BODY, format=b"\2")),
    "no-path": ("E-format", TREE[0][:HEAD_BYTES]),
    "no-jobs": ("E-tree", signed(BODY, jobs=b"\0")),
    "place-behind-the-last": ("E-tree", signed(BODY, place=0) [:10] + b"\1" + SEALED[11:]),
    "place-of-65": ("E-tree", signed(*[BODY] * 65, place=64)),
    "more-than-64": ("E-tree", signed(*[BODY] * 65)),
    "255-of-255": ("E-tree", SEALED[:9] + b"\xff\xff" + SEALED[11:]),
    "unknown-key": ("E-key", signed(BODY, key=OTHER)),
    "another-type": ("E-signature", signed(BODY, payload_type="application/vnd.benteng.vote+json")),
    "no-type": ("E-signature", signed(BODY, payload_type="")),
    "another-body": ("E-signature", signed(BODY, body=BODIES[1])),
    "no-body": ("E-signature", signed(BODY, body=b"")),
    "another-signature": ("E-signature", signed(BODY, signature=TREE[0][11:HEAD_BYTES])),
    "zero-signature": ("E-signature", signed(BODY, signature=bytes(64))),
    "body-signed-by-itself": ("E-signature", signed(BODY, signature=KEY.sign(pae(PAYLOAD_TYPE, BODY)))),
    "root-signed-without-its-head": (
        "E-signature",
        signed(BODY, signature=KEY.sign(pae(PAYLOAD_TYPE, leaf_hash(BODY)))),
    ),
    "another-place": ("E-signature", signed(*BODIES, place=0)[:10] + b"\1" + TREE[0][11:]),
    "another-path": ("E-signature", signed(*BODIES, path=OTHERS_PATH)),
    "path-in-another-order": ("E-signature", signed(*BODIES, path=PATH[32:64] + PATH[:32] + PATH[64:])),
    "path-with-a-hash-more": ("E-signature", signed(*BODIES, path=PATH + PATH[:32])),
    "path-with-a-hash-less": ("E-signature", signed(*BODIES, path=PATH[:64])),
    "another-tree-s-leaf": ("E-signature", signed(*BODIES, path=b"".join(inclusion_proof(
        [leaf_hash(BODY), *(leaf_hash(body) for body in BODIES[1:])], 0)), body=BODY)),
    "tree-cut-to-its-left-half": (
        "E-signature",
        signed(*BODIES[:4], signature=TREE[0][11:HEAD_BYTES]),
    ),
    "tree-of-another-size": ("E-signature", signed(*BODIES, jobs=b"\6")),
    "inner-node-as-a-leaf": (
        "E-signature",
        signed(*BODIES, jobs=b"\4", path=PATH[32:], body=leaf_hash(BODIES[0]) + leaf_hash(BODIES[1])),
    ),
    "inner-node-as-a-leaf-with-its-prefix": (
        "E-signature",
        signed(*BODIES, jobs=b"\4", path=PATH[32:], body=b"\1" + leaf_hash(BODIES[0]) + leaf_hash(BODIES[1])),
    ),
    "inner-node-signed-as-a-job": (
        "E-body",
        signed(leaf_hash(BODIES[0]) + leaf_hash(BODIES[1])),
    ),
    "bad-neighbour-body": ("E-body", signed(BODY, b"no json", place=1)),
    "body-of-nothing": ("E-body", signed(b"")),
    "body-no-json": ("E-body", signed(b"no json")),
    "body-version-mistyped": ("E-body", signed(b'{"version":"1"}')),
    "body-deep": ("E-body", signed(b"[" * 5_000)),
    "body-priority": ("E-body", signed(body_with(priority=10))),
    "body-priority-mistyped": ("E-body", signed(body_with(priority=True))),
    "body-digest-with-newline": ("E-body", signed(body_with(payload_sha256="2" * 64 + "\n"))),
    "body-digest-moved": ("E-body", signed(body_with(operation_key="1" * 63, payload_sha256="1" + "2" * 64))),
    "body-digest-in-capitals": ("E-body", signed(body_with(schema_sha256="A" * 64))),
    "body-key-id-with-a-space": ("E-body", signed(body_with(key_id=KEY.key_id + " "))),
    "body-job-id": ("E-body", signed(body_with(job_id="019b76da-a800-7000-8000-00000000002"))),
    "body-artifact-digest": ("E-body", signed(body_with(artifacts=[["a", "5" * 63]]))),
    "body-tier": ("E-body", signed(body_with(tier="urgent"))),
    "body-expires": ("E-body", signed(body_with(expires_at_us=1 << 53))),
    "body-resources": ("E-body", signed(body_with(resources=["host:a"] * 17))),
    "body-extra": ("E-extra", signed(body_with(override=True))),
    "body-duplicate": ("E-duplicate", signed(body_with().replace(b'"type"', b'"type": "db.drop@1", "type"'))),
    "body-version-2": ("E-version", signed(body_with(version=2))),
    "body-version-2-of-other-fields": ("E-version", signed(b'{"version":2,"new":[]}')),
    "body-of-another-key": ("E-key-id", signed(body_with(key_id=OTHER.key_id))),
    "body-of-another-origin": ("E-origin", signed(body_with(origin="svc:other"))),
    "body-expires-when-issued": ("E-lifetime", signed(body_with(expires_at_us=NOW))),
    "body-of-the-future": ("E-future", signed(body_with(issued_at_us=NOW + SKEW + 1))),
    "body-expired": ("E-expired", signed(body_with(issued_at_us=NOW - DAY, expires_at_us=NOW))),
}  # fmt: skip


@pytest.mark.parametrize("rule, raw", SPOILED.values(), ids=SPOILED)
def test_forged_and_spoiled_envelopes_are_refused_by_their_rule(rule, raw):
    """Each way to spoil an envelope has its own rule id, also when the good one has just been opened."""
    opened(SEALED)
    opened(TREE[0])

    assert rule == refused(raw)


@pytest.mark.parametrize(
    "rule, trust",
    [
        ("E-key", roots()),
        ("E-key", roots(trusted(OTHER))),
        ("E-role", roots(trusted(KEY, role=Role.APPROVER))),
        ("E-role", roots(trusted(KEY, role=Role.SEALER))),
        ("E-role", roots(trusted(KEY, role=Role.OPERATOR))),
        ("E-revoked", roots(trusted(KEY, revoked=True))),
        ("E-key-early", roots(trusted(KEY, not_before=NOW + SKEW + 1))),
        ("E-key-late", roots(trusted(KEY, not_after=NOW))),
        ("E-signature", roots(trusted(KEY, public=OTHER.public))),
        ("E-signature", roots(trusted(KEY, public=b"\xff" * 32))),
        ("E-origin", roots(trusted(KEY, origin="svc:other"))),
    ],
)
def test_signature_counts_only_from_a_key_that_is_trusted_for_it_now(rule, trust):
    """Unknown, of another role or origin, revoked, too early or too late: the trust roots of this host decide."""
    assert rule == refused(SEALED, trust)


def test_signature_cannot_be_given_to_another_trusted_key():
    """Two trusted producers: neither passes for the other."""
    trust = roots(trusted(KEY), trusted(OTHER))

    assert "E-signature" == refused(signed(BODY, key_id=bytes.fromhex(OTHER.key_id)), trust)
    assert "E-key-id" == refused(signed(BODY, key=OTHER), trust)


@pytest.mark.parametrize(
    "rule, trust, now_us",
    [
        ("E-key", roots(), NOW),
        ("E-role", roots(trusted(KEY, role=Role.SEALER)), NOW),
        ("E-revoked", roots(trusted(KEY, revoked=True)), NOW),
        ("E-key-late", roots(trusted(KEY, not_after=NOW + 1)), NOW + 1),
        ("E-signature", roots(trusted(KEY, public=OTHER.public)), NOW),
        ("E-origin", roots(trusted(KEY, origin="svc:other")), NOW),
        ("E-expired", TRUST, NOW + DAY),
    ],
)
def test_signature_that_was_good_is_judged_again_with_every_job(rule, trust, now_us):
    """What is remembered is arithmetic, never trust: the next job under the same signature meets each check anew."""
    assert SEVEN[0] == opened(TREE[0])

    assert rule == refused(TREE[1], trust, now_us)


def test_jobs_under_one_signature_cost_one_verification():
    """All 64 of a tree: verified once, and remembered for the rest."""
    raws = sealed(*numbered(TREE_JOBS_MAX))
    envelope._verify.cache_clear()

    for raw in raws:
        opened(raw)

    assert (1, TREE_JOBS_MAX - 1) == (envelope._verify.cache_info().misses, envelope._verify.cache_info().hits)


def test_bad_signatures_are_not_remembered():
    """Nobody without a trusted key pushes out what is remembered, or gets in by asking often."""
    envelope._verify.cache_clear()
    opened(SEALED)
    bad = signed(BODY, signature=bytes(64))

    assert ["E-signature"] * 3 == [refused(bad) for _ in range(3)]
    assert 1 == envelope._verify.cache_info().currsize


def test_memory_of_good_signatures_is_bounded():
    """However many are good, a fixed number is remembered, and the others are verified again."""
    raws = [sealed(each)[0] for each in numbered(VERIFIED_MAX + 3)]

    for raw in raws:
        opened(raw)

    assert VERIFIED_MAX == envelope._verify.cache_info().currsize
    assert numbered(1) == [opened(raws[0])]


def test_times_are_inclusive_where_they_should_be():
    """Issued up to the skew ahead is accepted; the instant of expiry is late; a key is valid from its first instant."""
    ahead = msgspec.structs.replace(CLAIMS, issued_at_us=NOW + SKEW)

    assert ahead == opened(sealed(ahead)[0])
    assert CLAIMS == opened(SEALED, now_us=NOW + DAY - 1)
    assert "E-expired" == refused(SEALED, now_us=NOW + DAY)
    assert CLAIMS == opened(SEALED, roots(trusted(KEY, not_before=NOW + SKEW, not_after=NOW + SKEW + 1)))


def test_body_is_not_parsed_before_its_signature_holds():
    """An untrusted body never reaches the parser: with a bad signature a bad body is E-signature."""
    assert "E-signature" == refused(signed(b"no json", signature=bytes(64)))


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
    (error,) = seal([msgspec.structs.replace(CLAIMS, **changes)], KEY)

    assert isinstance(error, EnvelopeError)
    assert rule == error.rule


def test_job_is_not_refused_because_of_its_neighbours():
    """The largest claims that are sealed alone are sealed among as many as there may be, and open."""
    small = msgspec.structs.replace(CLAIMS, targets=("",))
    room = ENVELOPE_BYTES_MAX - HEAD_BYTES - 6 * 32 - len(msgspec.json.encode(small))
    targets = ("t" * 256,) * (room // 259) + ("t" * (room % 259),)
    largest = msgspec.structs.replace(CLAIMS, targets=targets)
    larger = msgspec.structs.replace(largest, actor=CLAIMS.actor + "x")

    raws = sealed(*[largest] * TREE_JOBS_MAX)

    assert [largest] * TREE_JOBS_MAX == [opened(raw) for raw in raws]
    assert [largest] == [opened(raw) for raw in sealed(largest)]
    assert {ENVELOPE_BYTES_MAX} == set(map(len, raws))
    assert ["E-size"] == [getattr(error, "rule", "") for error in seal([larger], KEY)]


@pytest.mark.parametrize("tier", ["low", "medium"])
def test_below_high_a_job_may_never_expire(tier):
    """0 means never, as the policy of the type says; HIGH has no such thing."""
    claims = msgspec.structs.replace(CLAIMS, tier=tier, expires_at_us=0)

    assert claims == opened(sealed(claims)[0])


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
