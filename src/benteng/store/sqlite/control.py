"""The switches, as one transaction sees them: which is strictest for a job, and what may not start."""

from __future__ import annotations

from benteng.evidence import OPEN, Control, ControlMode, ControlScope
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import as_array

_CONTROL = statements("control")
_JOB_TYPE = statements("job_type")


def closed(tx: Tx) -> list[Control]:
    """Return the switches that are not open."""
    if ("control",) not in tx.facts:
        tx.facts["control",] = [as_control(row) for row in tx.all(_CONTROL["closed"])]
    return tx.facts["control",]


def as_control(row: Row) -> Control:
    """Return a switch from its row."""
    return Control(ControlScope(row["scope"]), row["name"], ControlMode(row["mode"]), row["reason"])


def strictest(tx: Tx, *, type_name: str, origin: str, pool: str) -> Control:
    """Return the strictest switch over a job, or OPEN."""
    names = {ControlScope.TYPE: type_name, ControlScope.ORIGIN: origin, ControlScope.POOL: pool}
    over = [control for control in closed(tx) if names[control.scope] == control.name]
    return max(over, key=lambda control: control.mode.rank, default=OPEN)


def halted(tx: Tx, scope: ControlScope) -> list[str]:
    """Return the names under the kill switch in one scope."""
    return [control.name for control in closed(tx) if control.scope is scope and control.mode is ControlMode.HALT]


def not_claimable(tx: Tx) -> dict[str, str]:
    """Return the types and origins that may not start now, as JSON arrays: `halted_types`, `halted_origins`."""
    if ("halted",) not in tx.facts:
        pools = set(halted(tx, ControlScope.POOL))
        types = set(halted(tx, ControlScope.TYPE))
        if pools:
            types |= {row["name"] for row in tx.all(_JOB_TYPE["all"]) if row["pool"] in pools}
        tx.facts["halted",] = {
            "halted_types": as_array(sorted(types)),
            "halted_origins": as_array(sorted(halted(tx, ControlScope.ORIGIN))),
        }
    return tx.facts["halted",]
