"""When the queue is asked for more: at once, along with a settlement, by a hint, or after a pause that grows. PURE.

Trust: not the hints. Anybody who may log in can send them, so they make nobody look oftener than jobs come.
"""

from __future__ import annotations

from random import Random

HINT_SECONDS_MIN = 0.02
IDLE_SECONDS = 1.4
"""How long an empty queue is left alone that tells when it is not: 0.75 of it is still more than a second."""


class Appetite:
    """Whether more jobs are wanted, as far as the last answers tell. Times are seconds of CLOCK_BOOTTIME.

    poll_seconds  how long an empty queue is left alone that tells nothing, jittered
    """

    def __init__(self, poll_seconds: float, rng: Random) -> None:
        self._poll_seconds = poll_seconds
        self._rng = rng
        self._pause = IDLE_SECONDS
        self._hungry = True
        self._fed = False
        self._by_hint = False
        self._missed_at = float("-inf")
        self.look_at = 0.0
        """When the queue is asked although nothing else makes us."""

    def wants(self, now: float, *, settles: bool) -> bool:
        """Whether jobs are to be asked for now; `settles`: a settlement goes to the ledger anyway."""
        self._hungry = self._hungry or now >= self.look_at
        return self._hungry or (settles and self._fed)

    @property
    def waits(self) -> bool:
        """Whether the queue is left alone until `look_at`."""
        return not self._hungry

    def hint(self, now: float) -> None:
        """Look at once; but after a hint that nothing came of not for a while."""
        self._by_hint = True
        self.look_at = min(self.look_at, max(now, self._missed_at + HINT_SECONDS_MIN))

    def answered(self, now: float, got: int, room: int, *, tells: bool) -> None:
        """Take note of a claim. A short one means that the queue is empty: leave it alone, longer each time.

        Who enqueued during a claim saw what it took as ready still, and gave no hint: hence the second look, along with
        the next settlement or soon. A hint for what was just taken is none that nothing came of.

        tells  whether the queue tells when there is something again
        """
        self._hungry = got == room
        if self._by_hint and not got and not self._fed:
            self._missed_at = now
        self._by_hint, self._fed = False, got > 0
        idle = max(self._poll_seconds, IDLE_SECONDS) if tells else self._poll_seconds
        self._pause = min(idle, HINT_SECONDS_MIN if got else 2 * self._pause)
        self.look_at = now + self._pause * (0.75 + self._rng.random() / 2)
