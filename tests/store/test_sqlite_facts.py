from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from benteng.evidence import ControlMode
from benteng.store.records import Facet, Question
from benteng.store.sqlite.facts import TABLES, keeps
from benteng.store.sqlite.statements import statements
from benteng.testing.bench import Bench
from benteng.testing.ledger import LOW

CHANGES = {
    "a switch": "insert into control values ('type', ?, 'halt', 'a reason', 0)",
    "a policy": "update job_type set policy = cast('{}' as blob) where name = ?",
    "a type that is gone": "delete from job_type where name = ?",
}


@pytest.fixture
def bench(ledger):
    """The ledger with its facets open and its types applied."""
    return Bench(ledger)


def by_another(ledger, sql, *values):
    """Commit a change through a connection that is none of ours."""
    with closing(sqlite3.connect(ledger.path)) as raw, raw:
        raw.execute(sql, values)


def asked(facet, act):
    """Return what is read of types, switches and access while `act` runs."""
    said = []
    facet._connection.set_trace_callback(said.append)
    act()
    facet._connection.set_trace_callback(None)
    return [line for line in said if any(f"from {table}" in line for table in TABLES)]


def test_facts_are_read_once_while_nobody_else_commits(bench):
    """A worker that is alone at its ledger asks for types, switches and access at its first turn only."""
    bench.admit(*(bench.job() for _ in range(4)))

    first = asked(bench.consumer, lambda: bench.claim(2))
    second = asked(bench.consumer, lambda: bench.claim(2))

    assert (True, False) == (bool(first), bool(second))


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_has_committed_counts_at_the_next_claim(bench, ledger, change):
    """Whatever a worker has read before: what somebody changed since holds for the very next start."""
    bench.admit(*(bench.job() for _ in range(4)))
    assert 1 == len(bench.claim())
    by_another(ledger, CHANGES[change], LOW.name)

    assert [] == bench.claim(3)


@pytest.mark.parametrize(
    "change, field",
    [("delete from speaks", "speaks"), ("delete from access", "denied_targets")],
    ids=["speaks", "access"],
)
def test_what_another_has_committed_counts_at_the_next_question(bench, ledger, change, field):
    """Access that was taken away is gone from the evidence for the next job of the same kind."""
    question = Question(LOW.name, "svc:tester", "0" * 64, targets=("web-7",))
    (before,) = bench.producer.evidence([question])
    by_another(ledger, change)

    (after,) = bench.producer.evidence([question])

    assert getattr(before, field) != getattr(after, field)


def test_connection_that_was_opened_again_knows_nothing(bench, ledger):
    """A new connection counts commits from its own beginning: its number says nothing of the last one."""
    bench.admit(*(bench.job() for _ in range(4)))
    bench.claim()
    bench.claim()
    bench.consumer._drop()
    by_another(ledger, CHANGES["a switch"], LOW.name)

    assert [] == bench.claim(2)


def test_who_may_write_facts_keeps_none(bench):
    """SQLite does not count one's own commits: a facet that changes a switch reads what it has written."""
    job = bench.admitted()
    before = bench.view(job.id).control

    bench.tighten(ControlMode.HALT)

    assert before != bench.view(job.id).control
    assert {Facet.KEEPER, Facet.OPERATOR} == {facet for facet in Facet if not keeps(facet)}


@pytest.mark.usefixtures("bench")
def test_number_of_commits_is_that_of_the_others(ledger):
    """`data_version` is what this rests on: it stays at one's own commit, and moves at another's."""
    with closing(sqlite3.connect(ledger.path)) as ours, closing(sqlite3.connect(ledger.path)) as other:

        def version():
            return ours.execute(statements("facts")["version"]).fetchone()[0]

        seen = [version()]
        for connection in (ours, other):
            connection.execute("insert into speaks values (?, '', '')", (str(connection),))
            connection.commit()
            seen.append(version())

    assert seen[0] == seen[1] != seen[2]
