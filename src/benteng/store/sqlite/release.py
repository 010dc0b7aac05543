"""Let held jobs go on because a person agrees: one record a step of the life cycle."""

from __future__ import annotations

from collections.abc import Sequence

from benteng import lifecycle
from benteng.audit import Event
from benteng.errors import NeedsAction, PolicyError, StoreDamaged
from benteng.evidence import ControlMode
from benteng.lifecycle import State
from benteng.policy import Tier
from benteng.store.records import Cancelled
from benteng.store.sqlite import control
from benteng.store.sqlite.policies import type_fact
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import bounded

_RELEASE = statements("release")


def release(tx: Tx, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
    """Release held jobs; others are left out. All are looked at before one is moved."""
    rows = [row for job_id in dict.fromkeys(job_ids) if (row := tx.one(_RELEASE["held"], {"id": bounded(job_id)}))]
    for row in rows:
        _may_release(tx, row)
    return [Cancelled(row["id"], _release_one(tx, row, reason)) for row in rows]


def _may_release(tx: Tx, row: Row) -> None:
    if row["tier"] not in {Tier.LOW, Tier.MEDIUM} and tx.environment != "dev":
        raise NeedsAction(f"job {row['id']} is of tier HIGH: releasing it needs another person's vote")
    fact = type_fact(tx, row["type"])
    pool = fact.pool if fact else ""
    over = control.strictest(tx, type_name=row["type"], origin=row["origin"], pool=pool)
    if over.mode in {ControlMode.HOLD, ControlMode.DIVERT}:
        reason = f"{over.scope} {over.name} is switched to {over.mode}"
        raise PolicyError("S-control", reason, fix="open the switch, then release the job")


def _release_one(tx: Tx, row: Row, reason: str) -> State:
    is_early = row["available_at"] > tx.now
    step = lifecycle.Event.POSTPONE if is_early else lifecycle.Event.RELEASE
    state_to = lifecycle.advance(State.HELD, step)
    due_at = max(row["available_at"], tx.now)
    if tx.run(_RELEASE["release"], {"seq": row["seq"], "state_to": str(state_to), "due_at": due_at}) != 1:
        raise StoreDamaged("a held job vanished inside a transaction")
    tx.note(Event.RELEASED, row, state_from=State.HELD, state_to=state_to, reason=reason)
    return state_to
