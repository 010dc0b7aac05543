"""Every job fails again and again while somebody keeps a transaction open, beside many finished jobs: claims are quick.

Two ledgers on one server take turns, so that whatever else the machine does meets both: a calm one, and one with the
storm and the open transaction, which pins what may be removed in its own database alone. 10 s and 40,000 finished jobs;
with BENTENG_TEST_LONG=1 60 s and a million.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

import pytest

from benteng.decide import Disposition
from benteng.lifecycle import State
from benteng.testing.bench import Bench, settlement
from benteng.testing.crowd import Crowd, fill
from benteng.testing.ledger import TYPES, make_policy
from benteng.testing.postgres import PostgresLedger, fresh, superuser

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
FINISHED = 1_000_000 if LONG else 40_000
SECONDS = 60.0 if LONG else 10.0
JOBS, SLOTS = 500, 20
STORM = make_policy("t.storm@1", limits={"attempts_max": 25})
SIZES = """
  select pg_total_relation_size('benteng.job'), pg_total_relation_size('benteng.operation')
"""


class Scene:
    """A ledger with finished jobs and jobs to fail, and how long its claims took."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self.ledger = ledger
        self.bench = Bench(ledger, types=())
        self.owner = superuser(ledger.site)
        self.taken: list[float] = []
        self.failed = 0
        self.bench.admit(*(self.bench.job(STORM) for _ in range(JOBS)))

    def run(self, disposition: Disposition) -> None:
        """Claim some and end them so; what leaves is replaced by new ones, and what waits comes due."""
        started = time.perf_counter()
        grants = self.bench.consumer.claim(SLOTS, [STORM.name])
        self.taken.append(time.perf_counter() - started)
        settled = self.bench.consumer.settle([settlement(each, disposition) for each in grants])
        assert SLOTS == len(settled)
        gone = [each for each in settled if each.state in {State.COMPLETED, State.QUARANTINED}]
        self.bench.admit(*(self.bench.job(STORM) for _ in gone))
        self.failed += len(settled) - len(gone)
        self.bench.advance(61)
        self.bench.stage(1_000)

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of `job` and `operation`, indexes too."""
        return self.owner.execute(SIZES).fetchone() or (0, 0)

    def vacuumed(self) -> int:
        """Return how often the server has cleaned `job` by itself."""
        self.owner.execute("select pg_stat_clear_snapshot()")
        query = "select autovacuum_count from pg_stat_user_tables where relid = 'benteng.job'::regclass"
        return (self.owner.execute(query).fetchone() or (0,))[0]

    def p99(self) -> float:
        """Return the 99th percentile of the claims, in seconds."""
        return statistics.quantiles(self.taken, n=100)[98]


@pytest.fixture
def scenes(cluster) -> Iterator[tuple[Scene, Scene]]:
    """A calm ledger and one for the storm, alike, on a server that looks for dead rows each second."""
    server = cluster(settings={"autovacuum_naptime": "1s"})
    stormy = fresh(server.dsn)
    Bench(stormy, types=(*TYPES, STORM)).elsewhere.close()
    with superuser(stormy.site) as owner:
        fill(owner, Crowd(0, FINISHED))
    calm = stormy.copy()
    scenes = Scene(calm), Scene(stormy)
    yield scenes
    for each in scenes:
        each.owner.close()
    stormy.remove()


def storm(calm: Scene, stormy: Scene, seconds: float) -> None:
    """Let both go on for some time, by turns."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        calm.run(Disposition.COMPLETE)
        stormy.run(Disposition.RETRY)


@pytest.mark.timeout(400)
def test_claims_stay_quick_in_a_retry_storm_under_a_pinned_horizon(scenes):
    """Nothing dead can be removed: the claim's p99 is at most three times a calm one. Then the tables do not grow."""
    calm, stormy = scenes
    with superuser(stormy.ledger.site) as pin:
        pin.execute("begin isolation level repeatable read")
        pin.execute("select 1 from benteng.operation limit 1")
        storm(calm, stormy, SECONDS)
        pin.execute("rollback")
    quick, slow, pinned, vacuumed = calm.p99(), stormy.p99(), stormy.sizes(), stormy.vacuumed()
    storm(calm, stormy, SECONDS)
    after = stormy.sizes()

    print(
        f"p99 {quick * 1e3:.1f} ms, {slow * 1e3:.1f} ms pinned; {stormy.failed} failures; {pinned} then {after} bytes"
    )
    assert 1_000 < stormy.failed
    assert 3.0 >= slow / quick
    assert 1.5 * pinned[0] >= after[0]
    assert 1.5 * pinned[1] >= after[1]
    assert vacuumed < stormy.vacuumed()
