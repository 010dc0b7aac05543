"""Wait for what another thread or process does, where it tells nobody."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 30.0


def until(done: Callable[[], object], seconds: float = SECONDS_MAX) -> None:
    """Return when something has become true; fail the test after a generous while."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)
