"""How an attempt ended, as one value; and which exception means which outcome.

An attempt ends exactly once, as one of these. `decide.decide` is the one place that turns an outcome into what happens
next. A claim about an outcome that comes from a cell can only make things worse than what the supervisor saw itself
(reference/security.md section 2): a dead cell is Crashed or Lost, whatever it said before.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from benteng.raised import ErrorClass, Retry, Snooze
from benteng.raised import Permanent as RaisedPermanent
from benteng.raised import Suspicious as RaisedSuspicious
from benteng.verdict import Divert, Hold, Refuse


class Successor(msgspec.Struct, frozen=True, gc=False):
    """A job that the completing commit adds: a type listed in the parent's policy, and the canonical payload."""

    type: str
    payload: bytes


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The handler returned. `result` is canonical JSON (b"null" for None), already scrubbed and within its limit."""

    result: bytes = b"null"
    successors: tuple[Successor, ...] = ()


class Transient(msgspec.Struct, frozen=True, gc=False):
    """A passing failure. `explicit`: the handler asked for the retry, so that a `once` type may run again."""

    error: str
    retry_after_seconds: float | None = None
    explicit: bool = False


class Permanent(msgspec.Struct, frozen=True, gc=False):
    """A failure that no retry can heal."""

    error: str


class Suspicious(msgspec.Struct, frozen=True, gc=False):
    """A failure that looks hostile: permanent, with an alert and a tally."""

    error: str


class Snoozed(msgspec.Struct, frozen=True, gc=False):
    """The handler asked to come back later."""

    after_seconds: float
    reason: str = ""


class Interrupted(msgspec.Struct, frozen=True, gc=False):
    """The attempt was started and then killed by a drain. Free for a `repeatable` type."""


class Crashed(msgspec.Struct, frozen=True, gc=False):
    """The cell died with this attempt in it. `shared`: others were in the same cell, so it may not be to blame."""

    how: str
    shared: bool = False


class Lost(msgspec.Struct, frozen=True, gc=False):
    """The lease was lost: somebody else may own the job now. Nothing is settled; the store decides by the lease."""


class Unstarted(msgspec.Struct, frozen=True, gc=False):
    """The attempt never reached user code: it is handed back and spends nothing."""

    why: str = ""


class Judged(msgspec.Struct, frozen=True, gc=False):
    """The second judgement said something else than Admit, before user code was started."""

    verdict: Hold | Divert | Refuse


Outcome = Completed | Transient | Permanent | Suspicious | Snoozed | Interrupted | Crashed | Lost | Unstarted | Judged

ERRORS: dict[str, ErrorClass] = {
    "builtins.MemoryError": ErrorClass.TRANSIENT,
    "builtins.ConnectionError": ErrorClass.TRANSIENT,
    "builtins.TimeoutError": ErrorClass.TRANSIENT,
    "builtins.NotImplementedError": ErrorClass.PERMANENT,
    "builtins.SyntaxError": ErrorClass.PERMANENT,
    "builtins.ImportError": ErrorClass.PERMANENT,
    "benteng.errors.Malformed": ErrorClass.PERMANENT,
    "benteng.errors.PolicyError": ErrorClass.PERMANENT,
    "benteng.errors.EnvelopeError": ErrorClass.SUSPICIOUS,
}
"""Qualified exception name -> class, looked up along its bases, most derived first. A job type adds its own."""


def classify(raised: BaseException, table: Mapping[str, ErrorClass], text: str) -> Outcome:
    """Return the outcome that an exception means. `text` is its message, already cleaned, scrubbed and bounded.

    The handler's own words come first, then the type's table, then ERRORS; an unknown exception is transient but not
    explicit, so that `decide` parks a `once` job as uncertain.
    """
    match raised:
        case Retry():
            return Transient(text, raised.after, explicit=True)
        case Snooze():
            return Snoozed(raised.after, text)
        case RaisedPermanent():
            return Permanent(text)
        case RaisedSuspicious():
            return Suspicious(text)
        case _:
            return _by_name(raised, table, text)


def _by_name(raised: BaseException, table: Mapping[str, ErrorClass], text: str) -> Outcome:
    match _error_class(type(raised), table):
        case ErrorClass.PERMANENT:
            return Permanent(text)
        case ErrorClass.SUSPICIOUS:
            return Suspicious(text)
        case ErrorClass.TRANSIENT:
            return Transient(text)


def _error_class(raised: type[BaseException], table: Mapping[str, ErrorClass]) -> ErrorClass:
    names = [f"{base.__module__}.{base.__qualname__}" for base in raised.__mro__]
    for known in (table, ERRORS):
        for name in names:
            if name in known:
                return known[name]
    return ErrorClass.TRANSIENT
