"""How many jobs a worker may start now, when its pool may only start so many in a minute. PURE.

Exact: in no 60 seconds, wherever they begin, are more started. (A token bucket would allow twice as many in the minute
after a quiet one.) Time is an argument; it is counted from when a start was known, never from before.
"""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60.0


class Budget:
    """The starts of the last minute. `per_minute` 0: no bound."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._spent: deque[tuple[float, int]] = deque()

    def left(self, now: float, wanted: int) -> int:
        """Return how many of those wanted may start now."""
        if not self._per_minute:
            return wanted
        while self._spent and self._spent[0][0] <= now - WINDOW_SECONDS:
            self._spent.popleft()
        return max(0, min(wanted, self._per_minute - sum(count for _, count in self._spent)))

    def spend(self, count: int, now: float) -> None:
        """Note that so many were started by now."""
        if self._per_minute and count:
            self._spent.append((now, count))

    def wakes_at(self, now: float) -> float:
        """Return when something may start: now, or when the oldest start is a minute old."""
        return now if self.left(now, 1) else self._spent[0][0] + WINDOW_SECONDS
