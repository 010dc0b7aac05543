"""A clock that only moves when a test says so, in every process that opened it.

The instant stands in a small file that is mapped into memory, so that a store in a child process sees the same time as
the test that moves it. Reading is one aligned load of eight bytes.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from benteng.clock import Instant, microseconds

START: Instant = 1_750_000_000_000_000
"""Where a new test clock stands: 2025-06-15T15:06:40Z."""

_BYTES = 8


class TestClock:
    """A `benteng.clock.Clock` backed by the file at `path`, which is made when it is not there."""

    __test__ = False  # pytest: not a class of tests

    def __init__(self, path: Path, *, start: Instant = START) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fresh = os.fstat(descriptor).st_size < _BYTES
            if fresh:
                os.truncate(descriptor, _BYTES)
            self._cell = memoryview(mmap.mmap(descriptor, _BYTES)).cast("q")
        finally:
            os.close(descriptor)
        if fresh:
            self._cell[0] = start

    def __call__(self) -> Instant:
        """Return the instant at which the clock stands."""
        return self._cell[0]

    def advance(self, seconds: float) -> None:
        """Move the clock by seconds; backwards when negative, as a host's clock may."""
        self._cell[0] += microseconds(seconds)

    def set(self, now: Instant) -> None:
        """Move the clock to an instant."""
        self._cell[0] = now
