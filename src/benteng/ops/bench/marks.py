"""The witness of a benchmark: one slot for each job, in memory that worker and benchmark share.

A handler marks its slot when it starts and when it ends, without a system call; nothing is asked of the ledger. What
ran twice, or never, shows.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

VARIABLE = "BENCH_MARKS"
"""Environment variable that tells a handler where the marks are. It is on the pools' `env` lists."""

ENQUEUED, STARTED, ENDED, RUNS = range(4)
FIELDS = 4


class Marks:
    """Slots of four 64-bit numbers: enqueued, started and ended (CLOCK_MONOTONIC, ns; 0: not yet), and how often."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._view = memoryview(self._map).cast("Q")

    @classmethod
    def make(cls, path: Path, slots: int) -> Marks:
        """Make the file."""
        with path.open("xb") as file:
            file.truncate(slots * FIELDS * 8)
        return cls(path)

    @classmethod
    def of_environment(cls) -> Marks:
        """Return the marks that this process was told of."""
        return cls(Path(os.environ[VARIABLE]))

    def enqueued(self, slot: int) -> None:
        """Note that the job is about to be enqueued."""
        self._view[slot * FIELDS + ENQUEUED] = time.monotonic_ns()

    def run(self, slot: int) -> None:
        """Be the job."""
        at = slot * FIELDS
        self._view[at + STARTED] = time.monotonic_ns()
        self._view[at + RUNS] += 1
        self._view[at + ENDED] = time.monotonic_ns()

    def column(self, field: int, slots: range) -> list[int]:
        """Return one number of each slot."""
        return self._view[slots.start * FIELDS + field : slots.stop * FIELDS : FIELDS].tolist()
