"""The guards: pure functions (case, evidence) -> Verdict, in a fixed order, the same at every door.

`judge` stops at the first verdict that is not Admit. A guard that raises has refused: a bug in a check must never let
a job through (measured: validators written as middleware fail open in other queues, reference/ux.md F1).
Trust: the payload is hostile until `schema` admitted it; the columns of a job are hostile until `integrity` did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benteng.evidence import Evidence
from benteng.guard.access import access
from benteng.guard.approval import approval
from benteng.guard.case import Case, Door
from benteng.guard.control import control
from benteng.guard.integrity import integrity
from benteng.guard.schema import schema
from benteng.guard.security import security
from benteng.guard.semantic import semantic
from benteng.verdict import ADMIT, Admit, Refuse, Verdict

Guard = Callable[[Case, Evidence], Verdict]

GATE: tuple[Guard, ...] = (schema, security, integrity, approval, access, semantic, control)
"""Every guard: before a job enters, and again before a replay."""

SUPERVISOR: tuple[Guard, ...] = (integrity, approval, access, control)
"""After the claim, in the process that holds the credential and no user code."""

CELL: tuple[Guard, ...] = (schema, security, semantic)
"""After that, in the cell that knows the user's contract and checks."""


def judge(case: Case, evidence: Evidence, guards: Sequence[Guard]) -> Verdict:
    """Return the first verdict that is not Admit, else Admit. A guard that raises, or answers no verdict, refuses."""
    for guard in guards:
        try:
            verdict = guard(case, evidence)
        except Exception as error:  # noqa: BLE001 - whatever it is, a broken check refuses
            return _broken(guard, type(error).__name__)
        if not isinstance(verdict, Admit):
            lies = not isinstance(verdict, Verdict)  # pyright: ignore[reportUnnecessaryIsInstance] - users' checks may
            return _broken(guard, "no verdict") if lies else verdict
    return ADMIT


def _broken(guard: Guard, what: str) -> Refuse:
    name = getattr(guard, "__name__", "guard")
    return Refuse("G-broken", f"the check {name} failed ({what})", "mend the check: a check must return a verdict")


__all__ = ["CELL", "GATE", "SUPERVISOR", "Case", "Door", "Guard", "judge"]
