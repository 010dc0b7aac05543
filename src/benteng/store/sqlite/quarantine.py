"""What a person does with a quarantined job: classify, discard, resolve, replay. One audit record a move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benteng import lifecycle
from benteng.audit import Event
from benteng.errors import NeedsAction, PolicyError, StoreDamaged
from benteng.evidence import ControlMode
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.policy import Tier
from benteng.store.records import Cancelled, Replay
from benteng.store.sqlite import control, resources
from benteng.store.sqlite.entrance import refusal_to_return
from benteng.store.sqlite.policies import policy_of, type_fact
from benteng.store.sqlite.rows import encode
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import bounded

_QUARANTINE = statements("quarantine")
_ADMIT = statements("admit")


def classify(tx: Tx, job_id: str, reason: QuarantineReason, note: str) -> None:
    """Say what a person thinks the job is. Whether an effect happened is not said here but by `resolve`."""
    row = _found(tx, job_id)
    if QuarantineReason.UNCERTAIN in {row["reason"], reason}:
        raise PolicyError("S-uncertain", "uncertain is neither given nor taken away", fix="resolve the job instead")
    _expect_one(tx.run(_QUARANTINE["classify"], {"seq": row["seq"], "reason": str(reason)}))
    tx.note(Event.CLASSIFIED, row, reason=str(reason), detail=note)


def discard(tx: Tx, job_ids: Sequence[str], reason: str, *, free: bool) -> list[Cancelled]:
    """Give up quarantined jobs; others are left out. All are looked at before one is moved."""
    rows = [row for job_id in dict.fromkeys(job_ids) if (row := _find(tx, job_id)) is not None]
    for row in rows:
        _may_discard(row, free=free)
    return [_discard_one(tx, row, reason, free=free) for row in rows]


def resolve(tx: Tx, job_id: str, *, happened: bool, reason: str) -> Cancelled:
    """Complete an uncertain job, or discard it with its key freed; its resources open."""
    row = _found(tx, job_id)
    if row["reason"] != QuarantineReason.UNCERTAIN:
        raise PolicyError("S-resolve", "only an uncertain job is resolved", fix="discard or replay it")
    _alone_at_high(tx, row, "resolving")
    step = lifecycle.Event.RESOLVE if happened else lifecycle.Event.DISCARD
    state_to = lifecycle.advance(State.QUARANTINED, step)
    _end(tx, row, OperationState.COMPLETED if happened else OperationState.FREED, state_to, reason)
    detail = "it happened" if happened else "it did not happen"
    tx.note(Event.RESOLVED, row, state_from=State.QUARANTINED, state_to=state_to, reason=reason, detail=detail)
    resources.open_again(tx, row["id"])
    return Cancelled(row["id"], state_to)


def replay(tx: Tx, asked: Replay, reason: str) -> Cancelled:
    """Put a judged job back: the same operation, one generation on, a new budget; starts stay counted."""
    row = _found(tx, asked.job.id)
    _may_replay(tx, row, asked)
    state = _state(tx, asked)
    columns = _columns(tx, row, asked) | {"state": str(state)}
    _expect_one(tx.run(_QUARANTINE["reserve_again"], columns))
    _expect_one(tx.run(_QUARANTINE["bring_back"], columns))
    tx.run(_QUARANTINE["counts_again"], columns)
    _expect_one(tx.run(_QUARANTINE["remove"], {"seq": row["seq"]}))
    said = {"reason": reason, "detail": f"generation {asked.job.generation}"}
    ready = lifecycle.advance(State.QUARANTINED, lifecycle.Event.REPLAY)
    tx.note(Event.REPLAYED, row, state_from=State.QUARANTINED, state_to=ready, **said)
    if state in _ONWARD:  # a second step of the life cycle, and so a record of its own
        step, event = _ONWARD[state]
        tx.note(event, row, state_from=ready, state_to=lifecycle.advance(ready, step), **said)
    return Cancelled(row["id"], state)


_ONWARD = {
    State.HELD: (lifecycle.Event.HOLD, Event.HELD),
    State.SCHEDULED: (lifecycle.Event.POSTPONE, Event.REPLAYED),
}


def _find(tx: Tx, job_id: str) -> Row | None:
    return tx.one(_QUARANTINE["find"], {"id": bounded(job_id)})


def _found(tx: Tx, job_id: str) -> Row:
    row = _find(tx, job_id)
    if row is None:
        raise PolicyError("S-unknown", "no such job is in quarantine", fix="look for it with: benteng quarantine list")
    return row


def _may_discard(row: Row, *, free: bool) -> None:
    if row["reason"] == QuarantineReason.UNCERTAIN:
        raise PolicyError("S-uncertain", f"job {row['id']} is uncertain", fix="resolve it: did it happen or not?")
    if free and row["tier"] == Tier.HIGH:
        raise NeedsAction(f"job {row['id']} is of tier HIGH: freeing its operation needs another person's vote")


def _discard_one(tx: Tx, row: Row, reason: str, *, free: bool) -> Cancelled:
    state_to = lifecycle.advance(State.QUARANTINED, lifecycle.Event.DISCARD)
    kept = lifecycle.operation_after(state_to, started=row["starts"] > 0)
    kept = OperationState.FREED if free else kept
    _end(tx, row, kept, state_to, reason)
    detail = f"operation {kept}"
    tx.note(Event.DISCARDED, row, state_from=State.QUARANTINED, state_to=state_to, reason=reason, detail=detail)
    return Cancelled(row["id"], state_to)


def _end(tx: Tx, row: Row, kept: OperationState, ended: State, reason: str) -> None:
    _expect_one(tx.run(_QUARANTINE["remove"], {"seq": row["seq"]}))
    keep = policy_of(tx, row["type"]).limits.operation_keep_seconds
    _expect_one(
        tx.run(
            _QUARANTINE["settle_operation"],
            {
                "seq": row["seq"],
                "expected": row["operation_state"],
                "operation_state": str(kept),
                "freed": int(kept is OperationState.FREED),
                "ended": str(ended),
                "error": reason,
                "keep_until": None if keep is None else tx.after(keep),
                "now": tx.now,
            },
        ),
    )


def _may_replay(tx: Tx, row: Row, asked: Replay) -> None:
    """Raise for what may not come back, or is not the job that was set apart. First reason counts."""
    seen_as = row["classified"] or row["reason"]
    if row["reason"] == QuarantineReason.UNCERTAIN:
        raise PolicyError("S-uncertain", "an uncertain job may have happened", fix="resolve it first")
    if seen_as == QuarantineReason.SUSPICIOUS:
        raise PolicyError("S-suspicious", "the job is suspicious", fix="look at it, then classify it as something else")
    _alone_at_high(tx, row, "replaying")
    job = asked.job
    same = ("type", "origin", "actor", "payload_sha256", "operation_key")
    if job.payload != row["payload"] or any(getattr(job, name) != row[name] for name in same):
        raise PolicyError("S-replay", "that is not the job in quarantine", fix="replay exactly what was set apart")
    if job.generation != row["generation"] + 1:
        raise PolicyError("S-replay", "the generation is not the next one", fix="read the job again, then replay")
    other = tx.one(_QUARANTINE["other_owner"], {"key": row["operation_key"], "type": row["type"], "seq": row["seq"]})
    if other is not None:
        raise PolicyError("S-replay", f"job {other['job_id']} has taken the operation", fix="discard this one")
    refusal = refusal_to_return(tx, job)
    if refusal is not None:
        raise PolicyError(refusal.rule, refusal.reason, fix="judge the job again, then replay")


def _state(tx: Tx, asked: Replay) -> State:
    fact = type_fact(tx, asked.job.type)
    pool = fact.pool if fact else ""
    over = control.strictest(tx, type_name=asked.job.type, origin=asked.job.origin, pool=pool)
    if over.mode is ControlMode.DIVERT:
        raise PolicyError("S-control", f"{over.scope} {over.name} diverts jobs into quarantine", fix="loosen it first")
    if asked.entry is State.HELD or over.mode is ControlMode.HOLD:
        return State.HELD
    if asked.entry not in {State.READY, State.SCHEDULED}:
        raise PolicyError("S-replay", "a replay enters ready or held", fix="judge the job again")
    return State.SCHEDULED if asked.job.available_at > tx.now else State.READY


def _columns(tx: Tx, row: Row, asked: Replay) -> dict[str, Any]:
    return encode(asked.job) | {
        "seq": row["seq"],
        "expected": row["operation_state"],
        "due_at": max(asked.job.available_at, tx.now),
    }


def _alone_at_high(tx: Tx, row: Row, what: str) -> None:
    if row["tier"] not in {Tier.LOW, Tier.MEDIUM} and tx.environment != "dev":
        raise NeedsAction(f"job {row['id']} is of tier HIGH: {what} it needs another person's vote")


def _expect_one(changed: int) -> None:
    if changed != 1:
        raise StoreDamaged("a quarantined job and its operation do not fit together. Stop, copy the ledger, and look")
