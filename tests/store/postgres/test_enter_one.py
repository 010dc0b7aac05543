"""One job alone enters by another way than a list of jobs does, and nobody can tell the difference.

Two ledgers get the same calls. In one of them the straight way is closed, so that every job takes the way of lists.
"""

from __future__ import annotations

import random
import uuid

import pytest

from benteng.evidence import ControlMode
from benteng.job import own_operation_key, sha256_hex
from benteng.lifecycle import State
from benteng.store.postgres import wire
from benteng.store.postgres.wire import ENTRANCE, REFUSAL
from benteng.store.records import Depth
from benteng.testing.bench import Bench
from benteng.testing.invariants import check_ledger
from benteng.testing.ledger import HIGH, LOW, MEDIUM, PARENT
from tests.store.postgres.conftest import fresh

MADE = "select pg_get_functiondef('benteng.{}'::regproc)"
CLOSED = "begin return null; end"
FORBIDDEN = "begin raise exception 'a list of one'; end"
ROWS = {
    "operation": "select to_jsonb(x) - %s::text[] from benteng.operation x order by job_id",
    "job": "select to_jsonb(x) - %s::text[] from benteng.job x order by id",
    "due": "select nullif(due_at, admitted_at) from benteng.job order by id",
    "quarantine": "select to_jsonb(x) - %s::text[] from benteng.quarantine x order by id",
    "audit": "select to_jsonb(x) - %s::text[] from benteng.audit x order by id",
    "tally": "select to_jsonb(x) - %s::text[] from benteng.tally x order by minute, origin, type, rule",
    "resource": "select to_jsonb(x) - %s::text[] from benteng.resource x order by key",
    "name": "select distinct name = split_part(type, '@', 1) from benteng.operation",
    "seq": "select x.seq - o.seq from benteng.job x join benteng.operation o on o.job_id = x.id order by x.id",
}
APART = ["seq", "xid", "id", "at", "due_at", "admitted_at", "finished_at", "keep_until", "minute", "salt"]
"""Columns that are of their ledger and moment alone; `id` is one of the log."""

LATER = 4_102_444_800_000_000
VALUES = {
    "id": [None],
    "type": [None, LOW.name, MEDIUM.name, HIGH.name, PARENT.name, "t.unknown@1", "no type"],
    "tier": [None, "low", "high"],
    "priority": [None, 0, 9, 10, -1],
    "available_at": [None, 1, LATER, 1 << 60, -1],
    "expires_at": [None, LATER, 1 << 60, -1],
    "generation": [None, 1, -1],
    "origin": [None, "another"],
    "actor": [None, "", "x" * 256, "x" * 257, "a\x01b"],
    "request_id": [None, "", "r" * 256, "r" * 257, "\u202e"],
    "payload": [None, b"", b"{}"],
    "payload_sha256": [None, "", sha256_hex(b"{}")],
    "operation_key": [None, "", "f" * 64, "F" * 64, "f" * 63],
    "envelope": [None, b"", b"e" * 16_384, b"e" * 16_385],
    "policy_sha256": [None, "", HIGH.sha256],
    "artifacts": [None, ["a", "b"], ["a"], ["a\x01", "b"]],
    "targets": [None, ["t"], ["t"] * 257, [""]],
    "resources": [None, ["host:a"], ["host:a", "host:b"], ["host:b", "host:a"], [""], ["k:1"] * 17],
    "summary": [None, "", "s" * 4_096, "s" * 4_097],
    "entry": [None, "ready", "scheduled", "held", "quarantined", "running"],
    "rule": [None, "", "R1", "r" * 300],
    "reason": [None, "", "a reason", "r" * 600],
    "parent": [bytes(16)],
    "unfit": [None, True],
}
"""What one field of a job may be instead: all that a rule asks about, its limits, and what is no rule's business."""

CHANGES = [{field: value} for field, values in VALUES.items() for value in values]
CHANGES += [{"id": None, "operation_key": "no hex"}, dict.fromkeys(VALUES)]


@pytest.fixture
def benches(ledger, postgres):
    """A bench whose jobs may go the straight way, one where that is closed, and how the superuser asks both."""
    other = fresh(postgres.dsn)
    both = [Bench(ledger), Bench(other)]
    asked = [postgres.connect(dbname=each.site.database) for each in (ledger, other)]
    replace_body(asked[1], "enter_one", CLOSED)
    yield [*zip(both, asked, strict=True)]
    for bench, connection in zip(both, asked, strict=True):
        connection.close()
        check_ledger(bench.ledger, bench.journal)
    other.remove()


def replace_body(connection, name, body):
    """Have a function of the ledger do something else."""
    (text,) = connection.execute(MADE.format(name).encode()).fetchone()
    head, mark, _ = text.partition("AS $function$")
    connection.execute((head + mark + "\n" + body + " $function$").encode())


def fields_of(bench, number, **changes):
    """Return a job as the verb takes it; the same for both ledgers, but for who brings it."""
    job = bench.job(changes.get("policy", MEDIUM if number % 2 else LOW), operation=f"job {number}")
    fields = dict(zip(ENTRANCE.fields, wire.entrance(job, State.READY), strict=True))
    return fields | {"id": number.to_bytes(16, "big")} | changes


def admit(bench, fields):
    """Call the verb with one row as it is given, and return its answer."""
    types = bench.producer._types
    return bench.producer.call("admit", types.many(ENTRANCE, [list(fields.values())]), types.many(REFUSAL, []))


def both_admit(benches, number, **changes):
    """Bring one job to both ledgers, and return the answer, which is the same."""
    answers = [admit(bench, fields_of(bench, number, **changes)) for bench, _ in benches]
    assert answers[1] == answers[0], changes
    return answers[0]


def assert_same(benches):
    """All that is written is the same, but for times, numbers and salts."""
    (bench, one), (_, other) = benches
    for name, asked in ROWS.items():
        rows = [
            connection.execute(asked.encode(), [APART] * asked.count("%s")).fetchall() for connection in (one, other)
        ]
        assert rows[1] == rows[0], name
    assert bench.producer.origin == benches[1][0].producer.origin


def test_each_way_judges_and_writes_alike(benches):
    """Whatever one field says: the same answer, the same rows and the same records."""
    found = [both_admit(benches, number, **change) for number, change in enumerate(CHANGES, 1)]

    assert {"admitted", "refused"} == {row["disposal"] for rows in found for row in rows}
    assert_same(benches)


def test_what_comes_together_is_judged_alike(benches):
    """Several odd fields at once, keys and ids that somebody has already, freed keys, switches, and a full origin."""
    chance = random.Random(7)  # noqa: S311 - which cases are tried is no secret
    disposals = set()
    for number in range(1, 240):
        change = dict(chance.choice([*VALUES.items()]) for _ in range(chance.choice((0, 0, 1, 2))))
        change = {field: chance.choice(values) for field, values in change.items()}
        if chance.random() < 0.3:
            change["operation_key"] = own_operation_key(f"{chance.randrange(9)}")
            change |= chance.choice([{}, SAME])
        if chance.random() < 0.1:
            change["id"] = chance.randrange(1, number + 1).to_bytes(16, "big")
        disposals |= {row["disposal"] for row in both_admit(benches, number, **change)}
        for bench, _ in benches:
            disturb(bench, number)

    assert {"admitted", "refused", "duplicate", "conflict"} == disposals
    assert_same(benches)


def disturb(bench, number):
    """Now and then somebody sets a switch, frees keys, or makes the depth small."""
    if number in (60, 90, 120):
        bench.tighten({60: ControlMode.HOLD, 90: ControlMode.DIVERT, 120: ControlMode.HALT}[number])
    if number == 150:
        bench.loosen()
    if number % 25 == 0:
        bench.producer.cancel([str(uuid.UUID(int=n)) for n in range(number)], "a reason")
    if number in (200, 220):
        depth = 1 if number == 200 else 1_000
        bench.operator.limit_depth(Depth(bench.producer.origin, depth), "a reason")


SAME = {
    "type": LOW.name,
    "tier": "low",
    "policy_sha256": LOW.sha256,
    "payload": b"{}",
    "payload_sha256": sha256_hex(b"{}"),
}
"""A second job of one key with these is a duplicate of the first."""

USUAL = [
    {},
    {"priority": 0, "actor": "", "request_id": ""},
    {"targets": ["t"], "artifacts": ["a", "b"]},
    {"summary": "s", "envelope": b"e"},
]


def test_a_usual_job_goes_the_straight_way(benches):
    """Else the two ways are alike because there is only one of them."""
    (bench, owner), _ = benches
    admit(bench, fields_of(bench, 0))  # nobody has counted the origin's jobs until then
    replace_body(owner, "enter", FORBIDDEN)

    for number, changes in enumerate(USUAL, 1):
        assert ["admitted"] == [row["disposal"] for row in admit(bench, fields_of(bench, number, **changes))]
