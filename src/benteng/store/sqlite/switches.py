"""Set the switches: anybody who may, tightens alone; loosening what covers HIGH needs more than one person."""

from __future__ import annotations

from benteng.audit import Event
from benteng.errors import NeedsAction, PolicyError
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.policy import Tier
from benteng.store.sqlite import resources
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Tx
from benteng.store.sqlite.text import REASON_BYTES_MAX, bounded

_CONTROL = statements("control")
_JOB_TYPE = statements("job_type")
WAKES_MAX = 1_000


def tighten(tx: Tx, asked: Control) -> None:
    """Set a switch to a stricter mode, or again to the one it has. Once committed, no claim starts what it forbids."""
    if asked.mode.rank < _mode(tx, asked).rank:
        raise PolicyError(
            "S-tighten", "the switch is stricter already", fix="loosen it with a reason, if that is meant"
        )
    _write(tx, asked, Event.TIGHTENED)


def loosen(tx: Tx, asked: Control) -> None:
    """Set a switch to a looser mode, and wake what slept behind it."""
    if asked.mode.rank >= _mode(tx, asked).rank:
        raise PolicyError("S-loosen", "the switch is not stricter than that", fix="tighten it, if that is meant")
    if not asked.reason.strip():
        raise PolicyError("S-reason", "loosening needs a reason", fix="say why")
    if tx.environment != "dev" and _covers_high(tx, asked):
        raise NeedsAction("the switch covers a HIGH job type: loosening it needs another person's vote")
    _write(tx, asked, Event.LOOSENED)
    resources.sweep(tx, WAKES_MAX)


def _mode(tx: Tx, asked: Control) -> ControlMode:
    row = tx.one(_CONTROL["one"], {"scope": str(asked.scope), "name": bounded(asked.name)})
    return ControlMode.OPEN if row is None else ControlMode(row["mode"])


def _write(tx: Tx, asked: Control, event: Event) -> None:
    reason = bounded(asked.reason, REASON_BYTES_MAX)
    was = _mode(tx, asked)
    name = bounded(asked.name)
    row = {"scope": str(asked.scope), "name": name, "mode": str(asked.mode), "reason": reason, "now": tx.now}
    tx.run(_CONTROL["write"], row)
    tx.memo.clear()
    tx.say(event, reason=reason, detail=f"{asked.scope} {name}: {was} -> {asked.mode}")


def _covers_high(tx: Tx, asked: Control) -> bool:
    high = [row for row in tx.all(_JOB_TYPE["all"]) if row["tier"] == Tier.HIGH]
    match asked.scope:
        case ControlScope.TYPE:
            return any(row["name"] == asked.name for row in high)
        case ControlScope.POOL:
            return any(row["pool"] == asked.name for row in high)
        case ControlScope.ORIGIN:
            return bool(high)
