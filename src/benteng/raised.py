"""What a handler raises to say how its attempt ended, and the three classes of error.

Anything else that a handler raises is classified by the table of names of its job type, and otherwise is transient
for a `repeatable` type and uncertain for a `once` type (DESIGN section 3, "Effect").
"""

from __future__ import annotations

from enum import StrEnum


class ErrorClass(StrEnum):
    """The three kinds of error of the seed ("Klasifikasi error sebelum retry"). Only transient is retried."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    SUSPICIOUS = "suspicious"


class HandlerSignal(Exception):  # noqa: N818 - these are words a handler says, not errors
    """Base of the four words. The message is for people; it is cleaned and scrubbed before it is stored."""


class Retry(HandlerSignal):
    """The attempt failed for a passing reason: try again, after `after` seconds at least when given."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Permanent(HandlerSignal):
    """The attempt failed for a reason that no retry can heal: quarantine."""


class Suspicious(HandlerSignal):
    """The job looks hostile: quarantine, alert, and count against its origin."""


class Snooze(HandlerSignal):
    """Not yet: come back after `after` seconds. Spends no attempt; the policy bounds how often and for how long."""

    def __init__(self, after: float, reason: str = "") -> None:
        super().__init__(reason)
        self.after = after
