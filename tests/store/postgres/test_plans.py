"""What a verb reads does not grow with the ledger: no table from end to end, of an index a few rows a job.

The server's own counters say what was read, inside functions too: they are taken before and after calls through the
least logins, enough of them that a plan which is chosen anew after five calls is met. 200,000 jobs are ready and 40,000
finished; with BENTENG_TEST_LONG=1 it is a million and 200,000, which takes a minute to write.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from benteng.decide import Disposition
from benteng.errors import StoreUnavailable
from benteng.lifecycle import State
from benteng.store.records import Query, Question
from benteng.testing.bench import Bench, proof, settlement
from benteng.testing.crowd import Crowd, fill
from benteng.testing.ledger import ACCEPTS, ACTOR, LOW, MEDIUM
from benteng.testing.postgres import PostgresLedger, fresh, superuser

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
CROWD = Crowd(1_000_000, 200_000, 20_000) if LONG else Crowd(200_000, 40_000, 20_000)
CALLS = 7  # the server decides after five whether a general plan would do
JOBS = 10  # in each call
TABLES = ("job", "operation", "resource", "audit", "audit_order", "quarantine", "retention")
READ = """
  select
    (select array_agg(relname) from pg_stat_user_tables where relname = any (%(tables)s) and seq_scan > 0),
    (select sum(idx_tup_read) from pg_stat_user_indexes where relname = any (%(tables)s)),
    (select sum(idx_scan) from pg_stat_user_indexes where relname = any (%(tables)s))
"""
GAPLESS = "select (select count(*) from benteng.audit), count(*), max(seq) from benteng.audit_order"
NUMBERED = "select 1 from benteng.audit_head h, benteng.fence f where h.id = f.last_value"
OWN = "select count(*) from benteng.job where state = 'running' or origin = %s"
END = """
  select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity
  where datname = current_database() and application_name like 'benteng-%'
"""


@dataclass
class Place:
    """A crowded ledger, and what has been read in it."""

    ledger: PostgresLedger
    owner: psycopg.Connection[Any]

    def read(self, call: Callable[[Bench], None]) -> int:
        """Call a verb and return how many index entries were read. No table may be read from end to end."""
        self._end_sessions()
        if self._version >= 150000:
            self.owner.execute("select pg_stat_force_next_flush()")  # what we ourselves have read is not to come later
        self.owner.execute("select pg_stat_reset()")
        call(Bench(self.ledger, types=()))
        self._end_sessions()
        tables, entries, scans = self.owner.execute(READ, {"tables": list(TABLES)}).fetchone() or (None, 0, 0)
        assert tables is None, f"read from end to end: {tables}"
        assert scans, "the server has counted nothing"
        return entries

    def _end_sessions(self) -> None:
        """End the facets' sessions: a session that ends has told its counters."""
        self.ledger.close()
        self.owner.execute(END)
        if self._version < 150000:
            self.owner.execute("select pg_sleep(1)")  # its collector writes down twice a second what it was told

    @property
    def _version(self) -> int:
        return self.owner.info.server_version


@pytest.fixture(scope="module")
def place(postgres) -> Iterator[Place]:
    """A ledger with a crowd in it, filled once. What the tests here change in it is small."""
    ledger = fresh(postgres.dsn)
    Bench(ledger).elsewhere.close()
    with superuser(ledger.site) as owner:
        fill(owner, CROWD)
        Bench(ledger, types=()).admitted(
            LOW, entry=State.QUARANTINED
        )  # its origin has been counted: not again for long
        yield Place(ledger, owner)
    ledger.remove()


def claim(bench: Bench) -> None:
    """Start some."""
    for _ in range(CALLS):
        assert JOBS == len(bench.consumer.claim(JOBS, ACCEPTS))


def settle(bench: Bench) -> None:
    """Complete some, and let some come back later."""
    for _ in range(CALLS):
        grants = bench.consumer.claim(JOBS, ACCEPTS)
        ends = [Disposition.COMPLETE, Disposition.RETRY] * JOBS
        settled = bench.consumer.settle([settlement(each, end) for each, end in zip(grants, ends, strict=False)])
        assert JOBS == len(settled)


def turn(bench: Bench) -> None:
    """Complete what runs and start some more."""
    grants = bench.consumer.claim(JOBS, ACCEPTS)
    for _ in range(CALLS):
        grants = bench.consumer.turn([settlement(each) for each in grants], JOBS, ACCEPTS).grants
        assert JOBS == len(grants)


def extend(bench: Bench) -> None:
    """Renew some leases."""
    grants = bench.consumer.claim(JOBS, ACCEPTS)
    for _ in range(CALLS):
        assert not any(each.lost for each in bench.consumer.extend([proof(grant) for grant in grants]))


def admit(bench: Bench) -> None:
    """Let some in, with and without an operation and a resource; the second half are duplicates."""
    for call in range(CALLS):
        jobs = [bench.job(MEDIUM, operation=f"{call} {n}", resources=(f"host:{n}",)) for n in range(JOBS // 2)]
        bench.admit(*jobs)
        bench.admit(*(bench.job(MEDIUM, operation=f"{call} {n}", resources=(f"host:{n}",)) for n in range(JOBS // 2)))


def evidence(bench: Bench) -> None:
    """Ask about some that are there, but somebody else's."""
    key = hashlib.sha256((2).to_bytes(8, "big")).hexdigest()
    for _ in range(CALLS):
        found = bench.producer.evidence([Question(LOW.name, ACTOR, key)] * JOBS)
        assert [None] * JOBS == [each.operation for each in found]


def status(bench: Bench) -> None:
    """Ask how some are."""
    job = bench.admitted(LOW)
    for _ in range(CALLS):
        assert 1 == len(bench.producer.status([job.id] * JOBS))


def cancel(bench: Bench) -> None:
    """Cancel one that waits and one that runs."""
    for _ in range(CALLS):
        (grant,) = bench.consumer.claim(1, ACCEPTS)
        job = bench.admitted(LOW)
        assert 2 == len(bench.operator.cancel((job.id, grant.job.id), "a reason"))


def show(bench: Bench) -> None:
    """Look at one that runs."""
    (grant,) = bench.consumer.claim(1, ACCEPTS)
    for _ in range(CALLS):
        assert bench.operator.show(grant.job.id) is not None


def show_last_in_line(bench: Bench) -> None:
    """Look at one that is ready, behind all others: those of its type before it are counted up to a bound."""
    job = bench.admitted(LOW, priority=9)
    for _ in range(CALLS):
        view = bench.operator.show(job.id)
        assert view is not None
        assert 10_000 <= view.ahead <= 30_000


def find(bench: Bench) -> None:
    """Look at the newest, and at those that want one resource."""
    for _ in range(CALLS):
        assert JOBS == len(bench.operator.find(Query(limit=JOBS)).lines)


def audit_page(bench: Bench) -> None:
    """Read a page of a log that nobody has read before: some records are numbered, not all."""
    for _ in range(CALLS):
        assert JOBS == len(bench.auditor.audit_page(100, JOBS))


def stage(bench: Bench) -> None:
    """Let time do its part where jobs come due."""
    for call in range(CALLS):
        bench.admit(*(bench.job(LOW, available_at=bench.clock() + 1_000_000) for _ in range(JOBS)))
        bench.advance(1.1)
        assert JOBS <= bench.stage().ready, call


def reclaim(bench: Bench) -> None:
    """Look for leases that are over, when one is."""
    for _ in range(CALLS):
        assert [] == bench.reclaim(JOBS)


def purge(bench: Bench) -> None:
    """Forget what may be forgotten, when nothing may."""
    for _ in range(CALLS):
        assert 0 == bench.keeper.purge(1_000)


ENTRIES = {
    claim: 20,
    settle: 40,
    turn: 40,
    extend: 10,
    admit: 20,
    evidence: 2,
    status: 3,
    cancel: 15,
    show: 10,
    show_last_in_line: 4_000,
    find: 10,
    audit_page: 3_000,
    purge: 1,
}
"""How many index entries a verb may read for each job in its hands, once on the way in and once for every check.

What it reads is about half of that. The two large ones have a bound of their own: 10,000 a type, 20,000 a page.
"""


def test_the_ledger_is_crowded(place):
    """The guards below look at a ledger of the size that they speak of."""
    counts = (
        "select count(*) filter (where state = 'ready'), count(*) filter (where state = 'running') from benteng.job"
    )
    finished = "select count(*) from benteng.operation where state = 'completed'"

    assert (CROWD.ready, CROWD.running) == place.owner.execute(counts).fetchone()
    assert (CROWD.finished,) == place.owner.execute(finished).fetchone()


@pytest.mark.parametrize("verb", ENTRIES, ids=lambda verb: verb.__name__)
def test_a_verb_reads_a_few_rows_a_job(place, verb):
    """What a verb reads depends on the jobs in its hands, not on how many there are."""
    assert ENTRIES[verb] * CALLS * JOBS >= place.read(verb)


@pytest.mark.parametrize("verb", [stage, reclaim], ids=lambda verb: verb.__name__)
def test_the_keeper_looks_at_the_running_now_and_then(place, verb):
    """No index knows the leases. What runs is looked at once in five seconds of the ledger's time, not each round."""
    looks = 3  # the rounds of `stage` take 7.7 s by the test's clock

    assert looks * CROWD.running + CALLS * (10 * JOBS + 1_000) >= place.read(verb)


def test_an_origin_is_counted_by_its_own_entries(place):
    """When it may be full: what it has waiting is read, and what runs, not the whole queue."""
    origin = Bench(place.ledger, types=()).producer.origin
    (own,) = place.owner.execute(OWN, [origin]).fetchone()
    place.owner.execute("delete from benteng.depth")

    assert own + 20 * JOBS >= place.read(lambda bench: bench.admit(bench.job(LOW)))


def test_the_log_is_followed_by_its_new_end(place):
    """A reader at the end of a long log costs what is new, not what is old."""
    auditor = Bench(place.ledger, types=()).auditor
    for _ in range(200):
        if place.owner.execute(NUMBERED).fetchone() is not None:
            break
        auditor.audit_page(0, 1)
    (seq,) = place.owner.execute("select seq from benteng.audit_head").fetchone()
    assert place.owner.execute(GAPLESS).fetchone() == (seq, seq, seq), "numbered in steps, each record once"

    def follow(bench: Bench) -> None:
        for call in range(CALLS):
            bench.admitted(LOW)
            assert call + 1 == len(bench.auditor.audit_page(seq, JOBS))

    assert 60 * CALLS * CALLS >= place.read(follow)


@pytest.mark.parametrize(
    "index, verb",
    [("job_ready", claim), ("operation_key", evidence), ("audit_job", show), ("job_due", stage)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_the_guards_notice_a_missing_index(place, index, verb):
    """Without the index that a verb stands on its guard fails: the guards are no decoration."""
    (definition,) = place.owner.execute("select pg_get_indexdef(%s::regclass)", [f"benteng.{index}"]).fetchone()
    place.owner.execute(f"drop index benteng.{index}".encode())
    guard = test_a_verb_reads_a_few_rows_a_job if verb in ENTRIES else test_the_keeper_looks_at_the_running_now_and_then
    try:
        with pytest.raises((AssertionError, StoreUnavailable)):  # or it does not end in its time
            guard(place, verb)
    finally:
        place.owner.execute(definition)
