"""What one job costs the embedded ledger, counted: statements that run, commits, and bytes of its log. Never seconds.

A figure that grows is a regression, or a promise that needs more: then the figure here is changed with it, knowingly.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benteng.testing.bench import Bench, settlement
from benteng.testing.ledger import ACCEPTS, HIGH, LOW, MEDIUM

TYPES = {"low": LOW, "medium": MEDIUM, "high": HIGH}


@dataclass(frozen=True, slots=True)
class Cost:
    """Most that a job may cost on its whole way: statements, commits, kilobytes of log."""

    statements: float
    commits: float
    kilobytes: float


COSTS = {
    ("low", 1): Cost(60, 3, 104),
    ("low", 50): Cost(7.5, 0.06, 6.3),
    ("medium", 1): Cost(60, 3, 104),
    ("medium", 50): Cost(7.5, 0.06, 6.3),
    ("high", 1): Cost(65, 3, 129),
    ("high", 50): Cost(15.5, 0.06, 6.7),
}
"""(tier, jobs together) -> what one of them may cost: in by one call, claimed and ended by turns."""


class Meter:
    """Counts what SQLite itself says that it runs, and how its log grows."""

    def __init__(self, bench, ledger):
        self.statements = self.commits = 0
        self._wal = ledger.path.with_name("ledger.db-wal")
        self._began = self._wal.stat().st_size
        for facet in (bench.producer, bench.consumer):
            facet._connection.set_trace_callback(self._ran)

    def _ran(self, statement: str) -> None:
        self.statements += not statement.startswith("-- TRIGGER")
        self.commits += statement == "commit"

    def cost(self, jobs: int) -> Cost:
        """Return what each of the jobs has cost until now."""
        grown = self._wal.stat().st_size - self._began
        return Cost(self.statements / jobs, self.commits / jobs, grown / jobs / 1_000)


@pytest.mark.parametrize("tier, together", COSTS)
def test_a_job_costs_no_more_than_it_did(ledger, tier, together):
    """In by one call, claimed by one turn, ended by the next."""
    bench = Bench(ledger)
    jobs = [bench.job(TYPES[tier], operation=str(n), resources=resources(tier, n)) for n in range(together)]
    bench.claim()
    meter = Meter(bench, ledger)

    bench.admit(*jobs)
    grants = bench.consumer.turn((), together, ACCEPTS).grants
    settled = bench.consumer.turn([settlement(grant) for grant in grants], together, ACCEPTS).settled

    cost, most = meter.cost(together), COSTS[tier, together]
    assert together == len(settled)
    assert cost.statements <= most.statements, cost
    assert cost.commits <= most.commits, cost
    assert cost.kilobytes <= most.kilobytes, cost


def test_turn_of_a_worker_that_is_alone_asks_nothing_twice(ledger):
    """Types, switches and access are known: what is left is three statements a job, and seventeen for all of them."""
    bench = Bench(ledger)
    bench.admit(*(bench.job() for _ in range(30)))
    grants = bench.consumer.turn((), 10, (LOW.name,)).grants
    grants = bench.consumer.turn([settlement(grant) for grant in grants], 10, (LOW.name,)).grants
    meter = Meter(bench, ledger)

    turn = bench.consumer.turn([settlement(grant) for grant in grants], 10, (LOW.name,))

    assert (10, 10) == (len(turn.settled), len(turn.grants))
    assert 17 + 3 * 10 >= meter.statements


def resources(tier: str, number: int) -> tuple[str, ...]:
    """Return what a job of the tier holds."""
    return (f"host:{number}",) if tier == "high" else ()
