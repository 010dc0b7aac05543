"""When flights are to be stopped or killed: the earliest first. One that has ended is not kept for its time.

Most end long before it. So whoever ended is thrown out as soon as they are the more, and what is kept does not grow
with the jobs that a worker has done in the longest time that one of them may run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from benteng.worker.flights import Flight

SPARE = 64
"""So many that ended may stay in any case."""


class Timers:
    """Flights by the time when somebody has to look at them."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Flight]] = []
        self._order = count()
        self._sweep_at = SPARE

    def add(self, when: float, flight: Flight) -> None:
        """Have a flight looked at then, if it has not ended."""
        heapq.heappush(self._heap, (when, next(self._order), flight))
        if len(self._heap) > self._sweep_at:
            self._heap = [each for each in self._heap if each[2].outcome is None]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + SPARE

    def due(self, now: float) -> Iterator[Flight]:
        """Yield flights whose time has come and that have not ended, each once for each time."""
        while self._heap and self._heap[0][0] <= now:
            flight = heapq.heappop(self._heap)[2]
            if flight.outcome is None:
                yield flight

    def wakes_at(self) -> float:
        """Return when the next one is due; inf: there is none."""
        return self._heap[0][0] if self._heap else float("inf")
