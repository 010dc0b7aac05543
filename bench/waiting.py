"""Wait for what a benchmark's processes do. Not a benchmark itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 60.0


def until(holds: Callable[[], bool], look_seconds: float) -> None:
    """Look again and again until it holds."""
    end, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it never came true")
        pause.wait(look_seconds)
