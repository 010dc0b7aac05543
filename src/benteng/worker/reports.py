"""Flights that ended in a cell, and wait for their broker to say what they did with the network; not for long."""

from __future__ import annotations

from collections.abc import Callable

from benteng.worker import wire
from benteng.worker.flights import Flight
from benteng.worker.say import Say

REPORT_SECONDS_MAX = 1.0
"""A job is not settled later than this because its broker says nothing."""


class Reports:
    """Those of one pool. `let_out`: called once with each, reported or not."""

    def __init__(self, pool: str, say: Say, let_out: Callable[[Flight], None]) -> None:
        self._pool = pool
        self._say = say
        self._let_out = let_out
        self._awaited: dict[int, tuple[float, Flight]] = {}

    def expect(self, flight: Flight, now: float) -> None:
        """Wait for the report of a flight."""
        self._awaited[flight.handle] = (now + REPORT_SECONDS_MAX, flight)

    def take(self, used: wire.Used) -> None:
        """Take the report of a flight; one that nobody waits for is no matter."""
        _, flight = self._awaited.pop(used.handle, (0.0, None))
        if flight is None:
            return
        flight.report(used, self._pool)
        self._let_out(flight)
        if used.connects or used.refused:
            self._say("egress", job=flight.grant.job.id, connects=used.connects, refused=used.refused)

    def expire(self, now: float) -> None:
        """Wait no longer than that."""
        for handle in [handle for handle, (until, _) in self._awaited.items() if until <= now]:
            self._let_out(self._awaited.pop(handle)[1])

    def close(self) -> None:
        """Wait for nobody: the broker is gone."""
        for _, flight in self._awaited.values():
            self._let_out(flight)
        self._awaited.clear()
