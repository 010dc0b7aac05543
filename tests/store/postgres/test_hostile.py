"""A stolen login: whoever has one may call its verbs with any values, past every check of the client."""

from __future__ import annotations

import struct

import pytest
from msgspec.structs import replace

from benteng.errors import BentengError, PolicyError, StoreError
from benteng.lifecycle import State
from benteng.store.postgres import wire
from benteng.store.postgres.wire import BOOL, ENTRANCE, INT8, REFUSAL, SETTLEMENT, TEXT, UUID, Kind, Layout
from benteng.store.records import Admission, Depth, Query
from benteng.testing.bench import proof, settlement
from benteng.testing.ledger import ACCEPTS, LOW, PARENT
from tests.support.sessions import say

NOTHING = "01890000-0000-7000-8000-000000000000"
NESTED = struct.pack("!iiIiiiii6si6s", 2, 0, 25, 1, 1, 2, 1, 6, b"host:a", 6, b"host:b")
"""[["host:a", "host:b"]] as the server's binary form has it."""


def admit(store, *entrances):
    """Call the verb with rows as they are given."""
    return store.call("admit", store._types.many(ENTRANCE, entrances), store._types.many(REFUSAL, []))


def settle(store, settlements, heirs):
    """Call the verb with successors as they are given."""
    ended = store._types.many(SETTLEMENT, map(wire.settlement, settlements))
    return store.call("settle", ended, store._types.many(ENTRANCE, heirs), BOOL(False))


def test_producer_cannot_name_a_parent(bench):
    """Only a completing commit makes a successor: a job that says so itself is refused alone."""
    parent, job, good = bench.admitted(), bench.job(), bench.job()

    found = admit(
        bench.producer,
        wire.entrance(job, State.READY, parent=parent.id),
        wire.entrance(good, State.READY),
    )

    assert [("refused", "S-format"), ("admitted", "")] == [(row["disposal"], row["rule"]) for row in found]


def test_producer_cannot_make_a_replay_of_nothing(bench):
    """Only a replay makes another generation: a new job that says so itself is refused."""
    (found,) = admit(bench.producer, wire.entrance(replace(bench.job(), generation=1), State.READY))

    assert ("refused", "S-format") == (found["disposal"], found["rule"])


MISSHAPEN = [
    ("resources", [None], "S-resources"),
    ("resources", ["host:b", "host:a"], "S-resources"),
    ("resources", ["host:a", "host:a"], "S-resources"),
    ("resources", NESTED, "S-resources"),
    ("targets", [None], "S-format"),
    ("targets", NESTED, "S-format"),
    ("artifacts", [None, "a"], "S-format"),
    ("artifacts", NESTED, "S-format"),
]


@pytest.mark.parametrize("field, value, rule", MISSHAPEN, ids=range(len(MISSHAPEN)))
def test_misshapen_keys_are_refused(bench, field, value, rule):
    """References are plain lists, and resources sorted and distinct: locks are taken in that order."""
    kinds = dict(ENTRANCE.fields)
    if value == NESTED:
        kinds[field] = Kind(kinds[field].oid, 0, bytes)
    row = dict(zip(ENTRANCE.fields, wire.entrance(bench.job(), State.READY), strict=True)) | {field: value}
    jobs = bench.producer._types.many(Layout("entrance", kinds), [list(row.values())])

    (found,) = bench.producer.call("admit", jobs, bench.producer._types.many(REFUSAL, []))

    assert ("refused", rule) == (found["disposal"], found["rule"])


def test_successor_needs_the_proof_of_its_parent(bench):
    """A successor enters only with the completion of its parent in the same call, proven by fence and token."""
    parent, other = bench.started(PARENT, operation="1"), bench.started(PARENT, operation="2")
    heirs = [bench.job(LOW) for _ in range(3)]
    rows = [
        wire.entrance(heirs[0], State.READY, parent=parent.job.id),
        wire.entrance(heirs[1], State.READY, parent=other.job.id),
        wire.entrance(heirs[2], State.READY, parent=NOTHING),
    ]

    settle(bench.consumer, [settlement(parent)], rows)
    bench.journal.completed.append(parent.job.id)

    assert [True, False, False] == [bench.operator.show(job.id) is not None for job in heirs]


def test_missing_values_store_nothing(bench):
    """Null for any argument is an error, or does nothing; it never means all."""
    waiting, grant = bench.admitted(priority=9), bench.started(priority=0)
    before = bench.audit()

    for store, verb, parameters in [
        (bench.producer, "admit", (None, None)),
        (bench.producer, "cancel", (None, None)),
        (bench.consumer, "claim", (None, TEXT.many(ACCEPTS), None)),
        (bench.consumer, "claim", (INT8(5), None, None)),
        (bench.consumer, "settle", (None, None, None)),
        (bench.consumer, "turn", (None, None, None, TEXT.many(ACCEPTS), None)),
        (bench.consumer, "extend", (None, None, None, None)),
        (bench.operator, "discard", (None, TEXT("r"), None)),
        (bench.operator, "release", (None, TEXT("r"))),
    ]:
        assert [] == store.call(verb, *parameters), verb
    assert before == bench.audit()
    assert ["ready", "running"] == bench.states(waiting, grant)


def test_missing_fields_store_nothing(bench):
    """A job without a field is no job, whichever it is: refused alone, and nothing of it stays."""
    fields = list(wire.entrance(bench.job(), State.READY))
    required = [place for place, name in enumerate(ENTRANCE.fields) if name != "parent"]
    rows = [[None if at == missing else value for at, value in enumerate(fields)] for missing in required]

    found = [admit(bench.producer, row)[0] for row in rows]

    assert [("refused", "S-format")] * len(required) == [(row["disposal"], row["rule"]) for row in found]
    assert 0 == len(bench.operator.find(Query()).lines)


def test_unknown_disposition_settles_nothing(bench):
    """A word that the verb does not know ends nothing."""
    grant = bench.started()
    fields = list(wire.settlement(settlement(grant)))
    fields[3] = "vanish"

    with pytest.raises(StoreError):
        bench.consumer.call(
            "settle",
            bench.consumer._types.many(SETTLEMENT, [fields]),
            bench.consumer._types.many(ENTRANCE, []),
            BOOL(False),
        )

    assert State.RUNNING is bench.state(grant.job.id)


def test_arrays_of_different_lengths_prove_nothing(bench):
    """A fence without its token is no proof."""
    grant = bench.started()
    bench.advance(10)
    until = bench.view(grant.job.id).lease_until
    proven = proof(grant)

    found = bench.consumer.call(
        "extend", wire.ids([proven.job_id]), INT8.many([proven.fence]), TEXT.many([]), TEXT.many([])
    )

    assert [True] == [row["lost"] for row in found]
    assert until == bench.view(grant.job.id).lease_until


@pytest.mark.parametrize("verb", ["admit", "settle", "extend", "evidence"])
def test_batches_are_bounded_in_the_verb(bench, verb):
    """The client's bound is the verb's bound too."""
    many = range(1_001)
    store = bench.producer if verb in {"admit", "evidence"} else bench.consumer
    types = store._types
    parameters = {
        "admit": lambda: (types.many(ENTRANCE, []), types.many(REFUSAL, [[None] * 11 for _ in many])),
        "settle": lambda: (types.many(SETTLEMENT, [[None] * 11 for _ in many]), types.many(ENTRANCE, []), BOOL(False)),
        "extend": lambda: (UUID.many([None] * 1_001), *(kind.many([]) for kind in (INT8, TEXT, TEXT))),
        "evidence": lambda: (types.many(wire.QUESTION, [[None] * 5 for _ in many]),),
    }[verb]()

    with pytest.raises(BentengError):
        store.call(verb, *parameters)


@pytest.fixture
def shallow(bench):
    """Let an origin have three active jobs, and no more."""
    bench.operator.limit_depth(Depth(bench.producer.origin, 3), "a reason")


def test_only_an_origin_has_a_depth(bench):
    """A login that is no producer's, or a name that is none, is refused: a mistyped one would change nothing."""
    for name in (bench.operator.origin, "nobody", "*", ""):
        with pytest.raises(PolicyError, match="S-depth"):
            bench.operator.limit_depth(Depth(name, 7), "a reason")

    assert [] == bench.operator.depths()


@pytest.mark.usefixtures("shallow")
def test_a_full_origin_is_counted_now_and_then(bench, owner):
    """While it is full most calls count nothing: 2 us a job lie between two counts."""
    for _ in range(3):
        bench.admitted()
    bench.admit(bench.job())
    owner.execute("update benteng.depth set jobs = 3000000000, counted_at = benteng.now()")

    refused = bench.admit(bench.job())

    (kept,) = owner.execute("select jobs from benteng.depth").fetchone()
    owner.execute("update benteng.depth set counted_at = counted_at - interval '7000 s'")
    bench.admit(bench.job())
    assert ["S-depth"] == [receipt.rule for receipt in refused]
    assert (3_000_000_000, 3) == (kept, *owner.execute("select jobs from benteng.depth").fetchone())


def test_depth_is_counted_when_it_may_be_reached(bench, owner):
    """As long as no more numbers were drawn than an origin has room for nobody counts its jobs."""
    bench.admitted()
    first = owner.execute("select * from benteng.depth").fetchall()
    for _ in range(3):
        bench.admit(bench.job(), bench.job())

    assert [(bench.producer.origin, 0, 0)] == [row[:3] for row in first]
    assert first == owner.execute("select * from benteng.depth").fetchall()


@pytest.mark.usefixtures("shallow")
def test_a_count_makes_nobody_wait(ledger, bench):
    """While one who counts is not committed another counts for itself."""
    for _ in range(3):
        bench.admitted(entry=State.QUARANTINED)
    store = ledger.producer()
    say(store, b"begin")
    store.admit([Admission(bench.job())])

    bench.admitted()
    say(store, b"rollback")
