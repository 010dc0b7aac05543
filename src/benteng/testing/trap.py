"""A trap that kills its own process at the k-th statement. See faults.py."""

from __future__ import annotations

import os
import signal


class Trap:
    """Counts steps once armed; before step `kill_at` the process dies by SIGKILL. `kill_at` 0 only counts."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.steps = 0
        self._armed = False

    def arm(self) -> None:
        """Count from here on."""
        self._armed = True

    def step(self, _: object = None) -> None:
        """Note that a statement is about to run."""
        if not self._armed:
            return
        self.steps += 1
        if self.steps == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
