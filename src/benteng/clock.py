"""Time, in one place. The only module that reads the host's wall clock.

Decisions about due, expiry, leases and rates are made by the store's clock (DESIGN section 4; I14): a store is opened
with a `Clock`, and everybody else gets `now` as an argument. Workers measure durations with CLOCK_BOOTTIME, which
neither steps nor stops while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Instant = int
"""A point in time: microseconds since 1970-01-01T00:00:00Z, by the store's clock."""

Clock = Callable[[], Instant]
"""Tells the present instant. Tests pass their own."""

SECOND: Instant = 1_000_000
"""Microseconds in a second."""


def system_clock() -> Instant:
    """Return the host's wall clock as an instant. Used by the embedded store, whose clock is the host's."""
    return time.time_ns() // 1_000


def boot_seconds() -> float:
    """Return seconds since boot, suspended time included: for deadlines inside one host, never for storage."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def microseconds(seconds: float) -> Instant:
    """Return a duration in microseconds, rounded to the nearest."""
    return round(seconds * SECOND)
