"""Control: the switch over the job's type, origin and pool (seed, "kill switch operasional")."""

from __future__ import annotations

from typing import assert_never

from benteng.evidence import ControlMode, Evidence
from benteng.guard.case import Case
from benteng.verdict import ADMIT, Divert, Hold, Refuse, Verdict


def control(case: Case, evidence: Evidence) -> Verdict:
    """Turn the strictest switch into a verdict: halt refuses, divert diverts, hold holds."""
    del case
    switch = evidence.control
    if switch.mode is ControlMode.OPEN:
        return ADMIT
    why = f"{switch.scope} {switch.name} is switched to {switch.mode}"
    match switch.mode:
        case ControlMode.HOLD:
            return Hold("C-hold", why)
        case ControlMode.DIVERT:
            return Divert("C-divert", why)
        case ControlMode.HALT:
            return Refuse("C-halt", why, "ask an operator; see: benteng why")
        case _:
            assert_never(switch.mode)
