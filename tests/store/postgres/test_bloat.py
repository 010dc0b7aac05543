"""Every job fails again and again while somebody keeps a transaction open, beside many finished jobs.

Nothing dead can be removed then, and whatever is ready lies behind what was. The server counts what a claim reads
then: how long it takes depends on the machine. 10 s and 40,000 finished jobs; with BENTENG_TEST_LONG=1 60 s and a
million.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from benteng.decide import Disposition
from benteng.job import Grant
from benteng.lifecycle import State
from benteng.testing.bench import Bench, settlement
from benteng.testing.crowd import Crowd, fill
from benteng.testing.ledger import TYPES, make_policy
from benteng.testing.postgres import PostgresLedger, fresh, superuser

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
FINISHED = 1_000_000 if LONG else 40_000
SECONDS = 60.0 if LONG else 10.0
JOBS, SLOTS = 500, 20
LOOKS_MAX = 6  # of a claim at each of its jobs, by id
STORM = make_policy("t.storm@1", limits={"attempts_max": 25})
ENTRIES = """
  select sum(idx_tup_read) filter (where indexrelname = 'job_ready')::bigint, sum(idx_tup_read)::bigint
  from pg_stat_user_indexes
  where relid = 'benteng.job'::regclass
"""
END = """
  select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity
  where datname = current_database() and application_name like 'benteng-%'
"""
SIZES = """
  select pg_total_relation_size('benteng.job'), pg_total_relation_size('benteng.operation')
"""


class Scene:
    """A ledger with finished jobs and jobs that fail, and how many have failed."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self.ledger = ledger
        self.bench = Bench(ledger, types=())
        self.owner = superuser(ledger.site)
        self.failed = 0
        self.bench.admit(*(self.bench.job(STORM) for _ in range(JOBS)))

    def storm(self, seconds: float) -> None:
        """Let jobs fail for some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.fail(self.bench.consumer.claim(SLOTS, [STORM.name]))

    def fail(self, grants: list[Grant]) -> None:
        """End some so; what leaves is replaced by new ones, and what waits comes due."""
        settled = self.bench.consumer.settle([settlement(each, Disposition.RETRY) for each in grants])
        assert SLOTS == len(settled)
        gone = [each for each in settled if each.state is State.QUARANTINED]
        self.bench.admit(*(self.bench.job(STORM) for _ in gone))
        self.failed += len(settled)
        self.bench.advance(61)
        self.bench.stage(1_000)

    def read(self) -> tuple[int, int]:
        """Claim some, and return how many entries that has read: of the index of what is ready, of all of `job`."""
        self._end_sessions()
        self.owner.execute("select pg_stat_reset()")
        grants = Bench(self.ledger, types=()).consumer.claim(SLOTS, [STORM.name])
        self._end_sessions()
        entries = self.owner.execute(ENTRIES).fetchone() or (0, 0)
        self.bench = Bench(self.ledger, types=())
        self.fail(grants)
        return entries

    def _end_sessions(self) -> None:
        """End the facets' sessions: a session that ends has told its counters."""
        self.ledger.close()
        self.owner.execute(END)

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of `job` and `operation`, indexes too."""
        return self.owner.execute(SIZES).fetchone() or (0, 0)

    def vacuumed(self) -> int:
        """Return how often the server has cleaned `job` by itself, since the counters were set to zero."""
        query = "select autovacuum_count from pg_stat_user_tables where relid = 'benteng.job'::regclass"
        return (self.owner.execute(query).fetchone() or (0,))[0]


@pytest.fixture
def scene(cluster) -> Iterator[Scene]:
    """A ledger on a server that looks for dead rows each second."""
    server = cluster(settings={"autovacuum_naptime": "1s"})
    ledger = fresh(server.dsn)
    Bench(ledger, types=(*TYPES, STORM)).elsewhere.close()
    with superuser(ledger.site) as owner:
        fill(owner, Crowd(0, FINISHED))
    scene = Scene(ledger)
    yield scene
    scene.owner.close()
    ledger.remove()


@pytest.mark.timeout(400)
def test_claims_read_little_in_a_retry_storm_under_a_pinned_horizon(scene):
    """A first claim passes by each failed attempt once, and once to take its place behind them. The tables are bounded.

    What it looks up by id it finds from behind: a few versions of each of its jobs at most.
    """
    with superuser(scene.ledger.site) as pin:
        pin.execute("begin isolation level repeatable read")
        pin.execute("select 1 from benteng.operation limit 1")
        scene.storm(SECONDS)
        failed, (ready, entries) = scene.failed, scene.read()
        pin.execute("rollback")
    pinned, vacuumed = scene.sizes(), scene.vacuumed()
    scene.storm(SECONDS)
    after = scene.sizes()

    print(f"{failed} failures; {ready} and {entries} entries read by a claim of {SLOTS}; {pinned} then {after} bytes")
    assert 1_000 < failed
    assert 2 * failed + 10 * SLOTS >= ready
    assert ready + 2 * failed + LOOKS_MAX * SLOTS * 10 >= entries
    assert 1.5 * pinned[0] >= after[0]
    assert 1.5 * pinned[1] >= after[1]
    assert vacuumed < scene.vacuumed()
