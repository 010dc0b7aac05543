"""Semantic: the type's own checks (`@app.check`), over the payload and the facts its evidence loaders returned."""

from __future__ import annotations

from benteng.evidence import Evidence
from benteng.guard.case import Case
from benteng.verdict import ADMIT, Admit, Check, Refuse, Verdict


def semantic(case: Case, evidence: Evidence) -> Verdict:
    """Ask each check in the order of definition; one that raises, or returns no verdict, refuses."""
    del evidence
    for check in case.checks:
        verdict = _ask(check, case)
        if not isinstance(verdict, Admit):
            return verdict
    return ADMIT


def _ask(check: Check, case: Case) -> Verdict:
    value = case.parsed.value if case.parsed is not None else None
    missing = [name for name in check.needs if name not in case.facts]
    if missing:
        return Refuse("G-evidence", f"check {check.name} needs evidence that was not loaded: {missing[0]}")
    try:
        verdict = check.function(value, *(case.facts[name] for name in check.needs))
    except Exception as error:  # noqa: BLE001 - whatever it is, a broken check refuses
        return Refuse("G-broken", f"check {check.name} failed ({type(error).__name__})", "mend the check")
    if not isinstance(verdict, Verdict):  # pyright: ignore[reportUnnecessaryIsInstance] - user code may lie
        return Refuse("G-broken", f"check {check.name} returned no verdict", "return ADMIT or Refuse(...)")
    return verdict
