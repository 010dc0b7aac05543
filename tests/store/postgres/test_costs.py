"""What one job costs the PostgreSQL ledger, counted: round trips, and bytes of the server's log. Never seconds.

A figure that grows is a regression, or a promise that needs more: then the figure here is changed with it, knowingly.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest

from benteng.opening import open_gate
from benteng.store.records import WorkerFacts
from benteng.task import Registry
from benteng.testing.bench import Bench, settlement
from benteng.testing.ledger import ACCEPTS, HIGH, LOW, MEDIUM, POOL

TYPES = {"low": LOW, "medium": MEDIUM, "high": HIGH}
COSTS = {
    ("low", 1): (3, 4.8),
    ("low", 50): (0.06, 4.7),
    ("medium", 1): (3, 4.8),
    ("medium", 50): (0.06, 4.7),
    ("high", 1): (3, 5.4),
    ("high", 50): (0.06, 5.5),
}
"""(tier, jobs together) -> most round trips and kilobytes a job: in by one call, claimed and ended by turns."""


TRACK = "alter database {} set track_functions = 'all'"
END = """
  select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity
  where datname = current_database() and application_name = 'benteng-producer'
"""
END_ALL = END.replace("= 'benteng-producer'", "like 'benteng-%'")
LOOKS = "select idx_scan from pg_stat_user_indexes where indexrelname = 'job_ready'"
CALLED = """
  select funcname, calls from pg_stat_user_functions
  where funcname in (
    'enter', 'enter_one', 'fault', 'judge', 'last_in_line', 'misshapen', 'quiet', 'refuse', 'ring', 'room', 'speech',
    'take_freed')
  order by funcname
"""
RAN = """
  select funcname, calls from pg_stat_user_functions
  where funcname in ('enter', 'enter_one', 'complete_jobs', 'end_each')
  order by funcname
"""


@contextmanager
def round_trips(facets, directory):
    """Yield a list that in the end holds the answers that the server finished, as libpq itself writes them down."""
    counted = []
    paths = [directory / f"trace-{n}" for n, _ in enumerate(facets)]
    with ExitStack() as stack:
        for facet, path in zip(facets, paths, strict=True):
            facet._connection.pgconn.trace(stack.enter_context(path.open("w")).fileno())
        yield counted
        for facet, path in zip(facets, paths, strict=True):
            facet._connection.pgconn.untrace()
            counted.append(path.read_text().count("ReadyForQuery"))


def written(owner) -> int:
    """Return the bytes of log that the server has written in its life."""
    (position,) = owner.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchone()
    return position


@pytest.mark.parametrize("tier, together", COSTS)
def test_a_job_costs_no_more_than_it_did(bench, owner, tmp_path, tier, together):
    """In by one call, claimed by one turn, ended by the next. What else the server writes only adds: three tries."""
    bench.claim()

    found = [cost(bench, owner, tmp_path, tier, f"{attempt} {{}}", together) for attempt in range(3)]

    trips_max, kilobytes_max = COSTS[tier, together]
    assert min(trips for trips, _ in found) <= trips_max
    assert min(kilobytes for _, kilobytes in found) <= kilobytes_max


def cost(bench, owner, directory, tier, name, together):
    """Return round trips and kilobytes a job."""
    numbers = range(together)
    jobs = [bench.job(TYPES[tier], operation=name.format(n), resources=resources(tier, n)) for n in numbers]
    began = written(owner)
    with round_trips([bench.producer, bench.consumer], directory) as counted:
        bench.admit(*jobs)
        grants = bench.consumer.turn((), together, ACCEPTS).grants
        settled = bench.consumer.turn([settlement(grant) for grant in grants], together, ACCEPTS).settled
    assert together == len(settled)
    return sum(counted) / together, (written(owner) - began) / together / 1_000


def test_an_admission_pays_for_nothing_that_it_does_not_need(ledger, owner):
    """Who has nothing to refuse and nobody to tell calls neither; what is planned with its caller is no call at all.

    The first job takes the way of lists: nobody has counted its origin's jobs until then.
    """
    owner.execute(TRACK.format(ledger.site.database).encode())
    bench = Bench(ledger)
    for _ in range(3):
        bench.admitted()
    bench.admit(bench.job(), bench.job())
    bench.producer.close()
    owner.execute(END)
    calls = owner.execute(CALLED).fetchall()

    assert [("enter", 2), ("enter_one", 3), ("quiet", 2), ("ring", 1)] == calls


def test_an_open_gate_knows_its_plans(ledger, owner, tmp_path):
    """What admits has run once, on nothing, before there is a job."""
    owner.execute(TRACK.format(ledger.site.database).encode())
    config = tmp_path / "benteng.toml"
    config.write_text(f'environment = "dev"\n[dsn]\nproducer = "{ledger.site.dsn("t_producer")}"\n')
    config.chmod(0o600)
    gate = open_gate(Registry(), "", tmp_path, say=print)
    gate.producer.close()
    owner.execute(END_ALL)

    assert [("enter", 1), ("enter_one", 1)] == owner.execute(RAN).fetchall()


def test_a_registered_worker_knows_the_plans_of_its_settlements(ledger, owner):
    """What ends attempts has run once, on nothing, before there is one."""
    owner.execute(TRACK.format(ledger.site.database).encode())
    consumer = ledger.consumer()
    consumer.register(WorkerFacts("w", POOL, "host", "boot", 1, "0.1", {}))
    ledger.close()
    owner.execute(END_ALL)

    assert [("complete_jobs", 1), ("end_each", 1)] == owner.execute(RAN).fetchall()


def test_a_claim_of_all_that_is_ready_looks_once(ledger, owner):
    """Who gets fewer than wanted has seen the end of the line, and does not look for it again."""
    bench = Bench(ledger)
    bench.admit(*(bench.job() for _ in range(3)))
    ledger.close()
    owner.execute(END_ALL)
    owner.execute("select pg_stat_reset()")
    bench = Bench(ledger, types=())

    assert 3 == len(bench.claim(10, [LOW.name]))

    ledger.close()
    owner.execute(END_ALL)
    assert (1,) == owner.execute(LOOKS).fetchone()


def resources(tier: str, number: int) -> tuple[str, ...]:
    """Return what a job of the tier holds."""
    return (f"host:{number}",) if tier == "high" else ()
