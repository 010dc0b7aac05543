"""By when each cell must be dead unless the zygote is told otherwise: the end of the shortest lease in it.

The zygote keeps these times by itself, so that a supervisor that hangs or dies leaves nothing running without a lease.
Times are seconds of CLOCK_BOOTTIME; 0: no limit. Here is what it was told, and what it must be told next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

GUARD_SHARE = 0.5
UNGUARD_SECONDS = 2.0
"""More than the second after which a yard's `tick` is wanted again at the latest."""

Until = tuple[tuple[int, float], ...]
"""Cells by number, each with its time."""


class Guards:
    """What the zygote knows of each cell."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def renew(self, cells: Iterable[int], leases: Iterable[tuple[int, float]]) -> Until:
        """Return what to tell of all these cells, of which some have leases that end then."""
        until: dict[int, float] = dict.fromkeys(cells, 0.0)
        for number, when in leases:
            known = until[number]
            until[number] = min(known, when) if known else when
        self._until = until
        return tuple((number, max(0.0, when)) for number, when in until.items())

    def add(self, number: int, when: float, now: float) -> Until:
        """Return what to tell before a cell gets work whose lease ends then; nothing if what it was told will do.

        That is so when it is not later, and leaves so much time that the next heartbeat, which comes every third of a
        lease, surely tells it more.
        """
        until, known = max(0.0, when), self._until.get(number, 0.0)
        if known and until >= known and known - now >= (until - now) * GUARD_SHARE:
            return ()
        self._until[number] = until
        return ((number, until),)

    def lift(self, is_idle: Callable[[int], bool], now: float) -> Until:
        """Return what to tell so that idle cells are not killed at the end of a lease that nothing in them has."""
        ending = [number for number, until in self._until.items() if until and until - now < UNGUARD_SECONDS]
        lifted = [number for number in ending if is_idle(number)]
        for number in lifted:
            del self._until[number]
        return tuple((number, 0.0) for number in lifted)

    def forget(self, number: int) -> None:
        """Note that a cell is gone."""
        self._until.pop(number, None)
