"""What a guard says about a job: admit, hold, divert or refuse.

A verdict names the rule that decided, says why, and what to do about it. It has no truth value: code that
forgets to look at it fails loudly instead of letting a job pass (python-tuf#1377: callers forgot a boolean).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True, slots=True)
class _Said:
    def __bool__(self) -> NoReturn:
        msg = "a verdict has no truth value: match it (Admit, Hold, Divert, Refuse)"
        raise TypeError(msg)


@dataclass(frozen=True, slots=True)
class Admit(_Said):
    """The job may go on."""


@dataclass(frozen=True, slots=True)
class Hold(_Said):
    """The job waits, as `held`, until somebody agrees."""

    rule: str
    reason: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Divert(_Said):
    """The job goes to quarantine without being run."""

    rule: str
    reason: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Refuse(_Said):
    """The job does not enter; after a claim it is quarantined.

    `field` is the path of the field that broke the rule, or "" when no single field did. `suspicious` marks what an
    honest producer cannot send by mistake: it is alerted and tallied, not only refused (seed, "Klasifikasi error").
    """

    rule: str
    reason: str
    fix: str = ""
    field: str = ""
    suspicious: bool = False


Verdict = Admit | Hold | Divert | Refuse

ADMIT = Admit()


@dataclass(frozen=True, slots=True)
class Check:
    """A user's semantic check: pure, over the payload and the facts it needs, which are passed by name."""

    name: str
    function: Callable[..., Verdict]
    needs: tuple[str, ...] = ()
