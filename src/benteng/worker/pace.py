"""How many attempts of a type one cell is given at once: several while they are quick, one while they are not. PURE.

Nobody says beforehand how long a job takes. So several are tried; a type of which some lay for too long is given one at
a time for a while, longer each time in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PAUSE_SECONDS: Final = 0.01
PAUSE_SECONDS_MAX: Final = 1.0


@dataclass(slots=True)
class Gait:
    """How one type goes: one at a time until then, and for how long after the next time that one takes long."""

    alone_until: float = 0.0
    pause_seconds: float = PAUSE_SECONDS


class Pace:
    """That of one lane. `depth_max`: so many a cell may have at once; with 1 none ever has more."""

    def __init__(self, depth_max: int) -> None:
        self._depth_max = depth_max
        self._gaits: dict[str, Gait] = {}

    def depth(self, name: str, now: float) -> int:
        """Return how many of a type a cell may be given."""
        gait = self._gaits.get(name)
        return self._depth_max if gait is None or gait.alone_until <= now else 1

    def late(self, name: str, now: float) -> None:
        """Note that some of a type lay for too long behind another."""
        gait = self._gaits.setdefault(name, Gait())
        gait.alone_until = now + gait.pause_seconds
        gait.pause_seconds = min(2 * gait.pause_seconds, PAUSE_SECONDS_MAX)

    def flowed(self, name: str) -> None:
        """Note that several of a type went through one cell without delay."""
        self._gaits.pop(name, None)
