"""What a benchmark says: one row for each measurement, with the records that it cost; a table, one document, a plot."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    jobs, seconds  how many, in what time;  p50_ms, p99_ms: from the enqueue call to the start, where that is asked
    audit, operations  records that the ledger wrote for each job, counted
    """

    name: str
    jobs: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    audit: float | None = None
    operations: float | None = None

    @property
    def rate(self) -> float:
        """Jobs in a second."""
        return self.jobs / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one layer costs a job, in microseconds. None: not measured, and `note` says why."""

    layer: str
    adds: str
    microseconds: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of the run: seconds since its begin, jobs ended in a second, latency of those that started."""

    second: float
    rate: float
    p50_ms: float | None
    p99_ms: float | None


@dataclass(slots=True)
class Report:
    """Everything that was found. `problems`: promises that the counts do not bear out."""

    tier: str
    store: str
    settings: Mapping[str, str]
    rows: list[Row] = field(default_factory=list[Row])
    costs: list[Cost] = field(default_factory=list[Cost])
    points: list[Point] = field(default_factory=list[Point])
    problems: list[str] = field(default_factory=list[str])

    def check(self, what: str, jobs: int, *, operations: int, audit: int, runs: Sequence[int] = ()) -> None:
        """Compare what was measured with what ledger and witness hold: an operation, an audit record, one run each."""
        if operations != jobs:
            self.problems.append(f"{what}: {operations} operations for {jobs} jobs")
        if audit < jobs:
            self.problems.append(f"{what}: {audit} audit records for {jobs} jobs")
        if runs and (min(runs), max(runs)) != (1, 1):
            self.problems.append(f"{what}: a job ran {min(runs)} to {max(runs)} times")

    def table(self) -> list[list[str]]:
        """Return the rows for people."""
        return [
            [
                row.name,
                f"{row.jobs:,}",
                f"{row.rate:,.0f}",
                _number(row.p50_ms),
                _number(row.p99_ms),
                _number(row.operations),
                _number(row.audit),
            ]
            for row in self.rows
        ]

    def cost_table(self) -> list[list[str]]:
        """Return the costs for people."""
        return [[cost.layer, _number(cost.microseconds), cost.note, cost.adds] for cost in self.costs]

    def document(self) -> dict[str, object]:
        """Return everything for programs."""
        return {
            "tier": self.tier,
            "machine": machine(),
            "store": {"name": self.store, **self.settings},
            "rows": [asdict(row) | {"rate": row.rate} for row in self.rows],
            "costs": [asdict(cost) for cost in self.costs],
            "points": [asdict(point) for point in self.points],
            "problems": self.problems,
        }


HEADINGS = ("measured", "jobs", "jobs/s", "p50 ms", "p99 ms", "operations/job", "audit/job")
COST_HEADINGS = ("layer", "us a job", "", "what it adds")


def machine() -> dict[str, object]:
    """Return the facts of the machine without which no figure means anything."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "switch_interval": sys.getswitchinterval(),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
