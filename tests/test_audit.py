"""What audit.py promises: records that can be written, erased and proved, and stored rows whose tampering is found."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benteng.audit import (
    EVENTS,
    RULES,
    SUMMARY_CUT,
    AuditRecord,
    Event,
    Problem,
    body_bytes,
    body_like,
    bounded,
    commitment,
    leaf_data,
    verify_page,
)
from benteng.merkle import Frontier, inclusion_proof, leaf_hash, root, verify_inclusion

RECORD = AuditRecord(
    at_us=1_800_000_000_000_000,
    event=Event.CLAIMED,
    job_id="019b76da-a800-7000-8000-00000000002a",
    type="patch.apply@1",
    contract_version=1,
    policy_sha256="4" * 64,
    state_from="ready",
    state_to="running",
    attempt=1,
    fence=42,
    origin="svc:deployer",
    actor="user:ana",
    request_id="req-7f3",
    operation="0f" * 16,
    payload="f0" * 16,
    summary='{"target_group":"web"}',
    resources=("host:web-7",),
    worker="w1/b00t/4711",
    login="benteng_patch",
)
ANY_TEXT = st.text(st.characters(categories=None) | st.sampled_from("\n\x1b\u202e\ud800"))
TEXT_FIELDS = [name for name in AuditRecord.__struct_fields__ if type(getattr(RECORD, name)) is str]


JOBS_OWN = ("job_id", "operation", "payload", "request_id", "summary")


@dataclass(frozen=True)
class StoredRow:
    seq: int
    leaf: bytes
    salt: bytes | None
    body: bytes | None


def stored(seq):
    """Return a row as a store writes it."""
    salt, body = hashlib.sha256(b"%d" % seq).digest()[:16], body_bytes(msgspec.structs.replace(RECORD, fence=seq))
    return StoredRow(seq, leaf_data(commitment(salt, body)), salt, body)


ROWS = [stored(seq) for seq in range(1, 9)]


# --------------------------------------------------------------------------------------------------- records and leaves


def test_golden_leaf(request):
    """Version 1 as another implementation would compute it: record, body, salt, leaf, root."""
    golden = json.loads((request.config.rootpath / "tests/golden/audit_leaf_v1.json").read_text(encoding="utf-8"))
    hashes = []
    for each in golden["leaves"]:
        body = body_bytes(msgspec.convert(each["record"], AuditRecord))
        data = leaf_data(commitment(bytes.fromhex(each["salt_hex"]), body))
        hashes.append(leaf_hash(data))

        assert each["body"] == body.decode()
        assert each["leaf_data_hex"] == data.hex()
        assert each["leaf_hash_hex"] == leaf_hash(data).hex()

    assert golden["root_hex"] == root(hashes).hex()
    assert 3 == len(hashes)


def test_leaf_is_what_the_documentation_says():
    """Only hashlib and json are needed to check a record."""
    body = json.dumps(msgspec.to_builtins(RECORD), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    salt = bytes(range(16))

    data = leaf_data(commitment(salt, body_bytes(RECORD)))

    assert b"\x01" + hashlib.sha256(salt + body).digest() == data
    assert hashlib.sha256(b"\x00" + data).digest() == leaf_hash(data)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(TEXT_FIELDS, ANY_TEXT)), st.lists(ANY_TEXT, max_size=20))
def test_body_is_canonical_whatever_the_texts(texts, resources):
    """Any text gives a bounded body that reads back as the bounded record, in the one canonical form."""
    record = msgspec.structs.replace(RECORD, resources=tuple(resources), **texts)

    body = body_bytes(record)

    assert bounded(record) == msgspec.json.decode(body, type=AuditRecord)
    assert body == body_bytes(bounded(record))
    assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_body_writes_all_fields():
    """A field that does not apply is written too: what is not there cannot be confused with what was left out."""
    body = json.loads(body_bytes(AuditRecord(at_us=1, event=Event.PURGED)))

    assert sorted(AuditRecord.__struct_fields__) == list(body)
    assert {"version": 1, "event": "purged", "summary": "{}", "resources": [], "fence": 0}.items() <= body.items()


@given(st.fixed_dictionaries(dict.fromkeys(JOBS_OWN, ANY_TEXT)), st.integers(0, 9), st.integers(0, 1 << 62))
def test_body_like_another_is_the_body_of_its_record(texts, attempt, fence):
    """The shorter way to a body gives the same bytes, whatever the texts: one leaf has one meaning."""
    own = {"at_us": 7, "attempt": attempt, "fence": fence, **texts}

    assert body_bytes(msgspec.structs.replace(RECORD, **own)) == body_like(bounded(RECORD), **own)


@pytest.mark.parametrize("name", JOBS_OWN)
@pytest.mark.parametrize(
    "text", ["x" * 257, "x" * 5_000, 'say "\\"', "a\nb", "\x7f"], ids=["257", "5000", "quoted", "line", "del"]
)
def test_body_like_another_is_bounded_too(name, text):
    """Each text within the bound of its own field."""
    own = {**{each: getattr(RECORD, each) for each in ("at_us", "attempt", "fence", *JOBS_OWN)}, name: text}

    assert body_bytes(msgspec.structs.replace(RECORD, **own)) == body_like(bounded(RECORD), **own)


def test_record_has_the_seed_s_minimum():
    """Seed, "Audit trail yang benar-benar berguna": each of its questions has its field."""
    asked = {"request_id", "operation", "type", "summary", "actor", "origin", "attempt", "reason", "worker", "at_us"}
    asked |= {"state_from", "state_to", "contract_version", "payload", "policy_sha256", "resources", "fence", "login"}

    assert asked <= set(AuditRecord.__struct_fields__)


def test_texts_of_a_record_are_bounded_and_on_one_line():
    """An error message cannot forge a line or fill the log."""
    record = bounded(
        msgspec.structs.replace(
            RECORD,
            reason="a\nforged\x1b[2J",
            detail="d" * 100_000,
            actor="\u202e",
            resources=("r\n",) * 99,
        ),
    )

    assert r"a\nforged\x1b[2J" == record.reason
    assert 2048 == len(record.detail.encode())
    assert r"\u202e" == record.actor
    assert (r"r\n",) * 16 == record.resources
    assert 16_000 > len(body_bytes(record))


@pytest.mark.parametrize("summary", ['{"a":"' + "x" * 5000 + '"}', '{"a":"\x7f"}', '{"a":"\u202e"}', "\ud800"])
def test_summary_that_cannot_stay_whole_says_so(summary):
    """Half a JSON text would break every reader."""
    assert SUMMARY_CUT == bounded(msgspec.structs.replace(RECORD, summary=summary)).summary
    assert {"cut": True} == json.loads(SUMMARY_CUT)


def test_plain_record_is_not_copied():
    """The common case costs no copy; ordinary writing in any language is left as it is."""
    plain = msgspec.structs.replace(RECORD, resources=())

    assert plain is bounded(plain)
    assert (
        '{"kota":"Jombang é 日本"}'
        == bounded(msgspec.structs.replace(RECORD, summary='{"kota":"Jombang é 日本"}')).summary
    )


@pytest.mark.parametrize("length", [0, 15, 17, 32])
def test_salt_and_commitment_have_fixed_lengths(length):
    """Otherwise bytes could move from the salt to the body."""
    with pytest.raises(ValueError, match="16 bytes"):
        commitment(bytes(length), b"body")
    with pytest.raises(ValueError, match="32 bytes"):
        leaf_data(bytes(31))


def test_equal_records_have_unequal_leaves():
    """The salt hides which records say the same."""
    assert leaf_data(commitment(b"a" * 16, b"body")) != leaf_data(commitment(b"b" * 16, b"body"))


def test_each_event_and_rule_is_documented(request):
    """Each event has its one-line meaning and stands in the reference; each rule is a heading there."""
    page = (request.config.rootpath / "docs/reference/audit.md").read_text(encoding="utf-8")

    assert list(Event) == list(EVENTS)
    assert [] == [event for event in EVENTS if f"| `{event}` | {EVENTS[event]} |" not in page]
    assert [] == [rule for rule, meaning in RULES.items() if f"### {rule}\n\n{meaning}." not in page]
    assert [] == [name for name in AuditRecord.__struct_fields__ if f"`{name}`" not in page]


# ---------------------------------------------------------------------------------------------------------- stored rows


def test_sound_page_continues_the_tree():
    """Unbroken rows are verified, and two pages give the tree of all."""
    first = verify_page(ROWS[:3], 1, Frontier())
    second = verify_page(ROWS[3:], first.next_seq, first.frontier)

    assert ((), 5, (), 9) == (second.problems, second.verified, second.erased, second.next_seq)
    assert root([leaf_hash(row.leaf) for row in ROWS]) == second.frontier.root()


def test_erased_record_keeps_every_proof():
    """Body and salt are gone, root and inclusion proof are as before; the page says which records were erased."""
    rows = [replace(row, salt=None, body=None) if row.seq == 4 else row for row in ROWS]
    leaves = [leaf_hash(row.leaf) for row in rows]

    found = verify_page(rows, 1, Frontier())

    assert ((), 7, (4,)) == (found.problems, found.verified, found.erased)
    assert verify_page(ROWS, 1, Frontier()).frontier == found.frontier
    verify_inclusion(leaves[3], 3, 8, inclusion_proof(leaves, 3), found.frontier.root())


@pytest.mark.parametrize(
    "rule, changes",
    [
        ("L-body", {"body": ROWS[3].body.replace(b'"attempt":1', b'"attempt":0')}),
        ("L-body", {"body": (ROWS[3].body or b"") + b" "}),
        ("L-body", {"body": ROWS[4].body, "salt": ROWS[4].salt}),
        ("L-body", {"body": b""}),
        ("L-body", {"body": "text"}),
        ("L-body", {"salt": bytes(16)}),
        ("L-body", {"salt": b""}),
        ("L-body", {"salt": 7}),
        ("L-body", {"leaf": ROWS[4].leaf}),
        ("L-half", {"salt": None}),
        ("L-half", {"body": None}),
        ("L-leaf", {"leaf": b"\x02" + ROWS[3].leaf[1:]}),
        ("L-leaf", {"leaf": ROWS[3].leaf[:-1]}),
        ("L-leaf", {"leaf": b""}),
        ("L-leaf", {"leaf": None}),
    ],
)
def test_altered_row_is_found(rule, changes):
    """Each way to alter a stored record is found, at its number, and the others are still checked."""
    rows = [replace(row, **changes) if row.seq == 4 else row for row in ROWS]

    found = verify_page(rows, 1, Frontier())

    assert (Problem(4, rule),) == found.problems
    assert 7 == found.verified


def test_altered_leaf_and_body_are_found_by_the_root():
    """Who alters body and leaf together makes a page without problems, and another root than the sealed one."""
    forged = replace(stored(99), seq=4)

    found = verify_page([*ROWS[:3], forged, *ROWS[4:]], 1, Frontier())

    assert () == found.problems
    assert verify_page(ROWS, 1, Frontier()).frontier.root() != found.frontier.root()


@pytest.mark.parametrize(
    "rows, problems, next_seq",
    [
        ([*ROWS[:3], *ROWS[4:]], (Problem(4, "L-gap"),), 4),
        (ROWS[1:], (Problem(1, "L-gap"),), 1),
        ([*ROWS[:4], *ROWS[3:]], (Problem(4, "L-order"),), 9),
        ([ROWS[0], ROWS[2], ROWS[1], ROWS[3]], (Problem(2, "L-gap"), Problem(2, "L-order")), 2),
        ([replace(ROWS[0], seq=0), *ROWS], (Problem(0, "L-order"),), 9),
        ([], (), 1),
    ],
)
def test_deleted_moved_and_doubled_rows_are_found(rows, problems, next_seq):
    """The numbers have no gap and no repetition; the tree ends where they break, and bodies are checked beyond."""
    found = verify_page(rows, 1, Frontier())

    assert problems == found.problems
    assert len(rows) == found.verified
    assert (next_seq, next_seq - 1) == (found.next_seq, found.frontier.size)


def test_findings_have_no_truth_value():
    """`if verify_page(...)` would be true for a page full of problems."""
    with pytest.raises(TypeError, match="look at problems"):
        bool(verify_page(ROWS, 1, Frontier()))
