"""What the log says of the runs of each job type: how long they took, and whose leases ended without a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from benteng.audit import AuditRecord, Event
from benteng.clock import SECOND

QUANTILE = 0.99


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one job type: seconds of each that completed, and how many leases ended silently."""

    seconds: list[float] = field(default_factory=list[float])
    lost: list[int] = field(default_factory=list[int])

    @property
    def longest(self) -> float:
        """Seconds of the longest run; 0 when none completed."""
        return max(self.seconds, default=0.0)

    @property
    def p99(self) -> float:
        """Seconds within which 99 of 100 runs completed; 0 when none did."""
        return quantile(self.seconds)


def observed(found: Iterable[AuditRecord]) -> dict[str, Runs]:
    """Return the runs by job type. `found` in the order of the log."""
    started: dict[tuple[str, int], int] = {}
    runs: dict[str, Runs] = {}
    for record in found:
        match record.event:
            case Event.CLAIMED:
                started[record.job_id, record.fence] = record.at_us
            case Event.COMPLETED if (record.job_id, record.fence) in started:
                seconds = (record.at_us - started[record.job_id, record.fence]) / SECOND
                runs.setdefault(record.type, Runs()).seconds.append(seconds)
            case Event.RECLAIMED:
                runs.setdefault(record.type, Runs()).lost.append(record.fence)
            case _:
                pass
    return runs


def quantile(seconds: Sequence[float], share: float = QUANTILE) -> float:
    """Return the least value that this share of the values does not exceed; 0 for none."""
    ordered = sorted(seconds)
    return ordered[ceil(share * len(ordered)) - 1] if ordered else 0.0
