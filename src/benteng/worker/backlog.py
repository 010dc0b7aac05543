"""When ended attempts are settled: as many by one round trip as come without anybody waiting for it. PURE.

A settlement and the next claim share a round trip, so whoever settles each attempt alone pays one for each job. What is
claimed may still wait for a cell (a HIGH job has one of its own): then a claim would start nothing sooner, and ended
attempts wait until two thirds of all have ended: less than two calls for as many jobs as there are slots.
"""

from __future__ import annotations

from dataclasses import dataclass

SETTLE_MAX = 256
LINGER_SECONDS = 0.002
GATHER_SECONDS = 0.1
"""At most so long an ended attempt waits for others: where nothing needs a cell, and where claimed jobs do."""

OVERLAP_SLOTS_MIN = 32
"""From so many on a call starts half of them; with fewer its own price is more than the overlap gains (ADR 0007)."""

OVERLAP_SERIAL_SLOTS_MIN = 8
"""The same where cells make one attempt at a time: what a call of the ledger overlaps with is longer then."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Attempts that ended and are not settled.

    ended    how many;  flights: all that are claimed and not settled, these among them
    since    when the first of them ended, in seconds of CLOCK_BOOTTIME; inf when there is none
    waiting  whether claimed jobs wait for a cell
    flowing  whether a cell makes several, one after the other: all of them will have ended in a moment
    """

    ended: int
    flights: int
    since: float
    waiting: bool
    flowing: bool = False

    @property
    def gathers(self) -> bool:
        """Whether no claim goes along before it is due: it would start nothing sooner."""
        return self.ended > 0 and (self.waiting or self.flowing)

    @property
    def due_at(self) -> float:
        """When they are to be settled: now (-inf) when enough have ended or nothing else can; inf: there are none."""
        if not self.ended:
            return float("inf")
        enough = min(SETTLE_MAX, -(-2 * self.flights // 3) if self.waiting else self.flights)
        if self.ended >= enough:
            return float("-inf")
        return self.since + (GATHER_SECONDS if self.waiting else LINGER_SECONDS)


def share(slots: int, *, overlaps: bool, serial: bool) -> int:
    """Return how many jobs one call may start: half of many slots where the ledger works while the other half runs.

    serial  whether there are cells that make one attempt at a time
    """
    many = slots >= (OVERLAP_SERIAL_SLOTS_MIN if serial else OVERLAP_SLOTS_MIN)
    return min(SETTLE_MAX, -(-slots // 2) if overlaps and many else slots)
