"""Move a job: out of the active table into quarantine or its end, or back in it. One audit record a move.

Every caller has found the row inside the same immediate transaction; the statements name its state again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from benteng import lifecycle
from benteng.audit import Event
from benteng.clock import Instant
from benteng.errors import StoreDamaged
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.store.sqlite import resources
from benteng.store.sqlite.policies import policy_of
from benteng.store.sqlite.rows import Running
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import as_array, bounded

_LEAVE = statements("leave")


class Counts(msgspec.Struct, frozen=True, gc=False):
    """What a job has spent. A job was started when `starts` is above 0."""

    attempts: int
    crashes: int
    handbacks: int
    snoozes: int
    starts: int


def counts_of(row: Row) -> Counts:
    """Return what a row says it has spent."""
    return Counts(row["attempts"], row["crashes"], row["handbacks"], row["snoozes"], row["starts"])


def with_crash(counts: Counts) -> Counts:
    """Return the counts after one more crash."""
    return replace(counts, crashes=counts.crashes + 1)


def quarantine(
    tx: Tx,
    row: Row,
    reason: QuarantineReason,
    *,
    error: str = "",
    rule: str = "",
    counts: Counts | None = None,
    used: str = "",
) -> State:
    """Set a job apart with its context, and return where it is. Uncertain at HIGH keeps its resources closed.

    used    what its attempt did with the network: it begins the record's detail; so also below
    """
    after = counts or counts_of(row)
    state_to = lifecycle.advance(State(row["state"]), lifecycle.Event.QUARANTINE)
    text = bounded(error)
    _set_apart(tx, row["seq"], row["state"], after, reason=str(reason), rule=bounded(rule), error=text)
    kept = lifecycle.operation_after(state_to, started=after.starts > 0, reason=reason)
    _leave(tx, row, kept, ended=None, counts=after, error=text, rule=rule)
    event = Event.UNCERTAIN if reason is QuarantineReason.UNCERTAIN else Event.QUARANTINED
    detail = _detail(used, text)
    tx.note(event, row, state_from=row["state"], state_to=state_to, rule=rule, reason=str(reason), detail=detail)
    if reason is QuarantineReason.UNCERTAIN and policy_of(tx, row["type"]).closes:
        resources.close(tx, row["id"])
    else:
        resources.hand_on(tx, row)
    return state_to


def set_apart_new(tx: Tx, seq: int, entry: State, reason: QuarantineReason, *, rule: str, error: str) -> None:
    """Set a job apart that has just entered: its operation stays reserved, and the caller says it to the audit."""
    _set_apart(tx, seq, entry, Counts(0, 0, 0, 0, 0), reason=str(reason), rule=bounded(rule), error=bounded(error))
    _expect_one(tx.run(_LEAVE["remove"], {"seqs": as_array([seq]), "state": str(entry)}))


def cancel(tx: Tx, row: Row, reason: str, *, counts: Counts | None = None, used: str = "") -> State:
    """End a job that somebody does not want any more; its key is freed when it never started."""
    after = counts or counts_of(row)
    state_to = lifecycle.advance(State(row["state"]), lifecycle.Event.CANCEL)
    kept = lifecycle.operation_after(state_to, started=after.starts > 0)
    _leave(tx, row, kept, ended=state_to, counts=after, error=bounded(reason))
    tx.note(Event.CANCELLED, row, state_from=row["state"], state_to=state_to, reason=reason, detail=used)
    resources.hand_on(tx, row)
    return state_to


class Completion(msgspec.Struct, frozen=True, gc=False):
    """A running job whose attempt succeeded; its operation keeps the result."""

    row: Running
    result: bytes
    result_until: Instant
    keep_until: Instant | None
    used: str = ""


def complete(tx: Tx, completions: Sequence[Completion]) -> State:
    """End jobs whose attempts succeeded."""
    state_to = lifecycle.advance(State.RUNNING, lifecycle.Event.COMPLETE)
    _expect(
        len(completions), tx.run(_LEAVE["remove_running"], {"seqs": as_array([each.row.seq for each in completions])})
    )
    kept = tx.many(_LEAVE["complete"], [_completed(tx, each) for each in completions])
    _expect(len(completions), kept)
    for each in completions:
        _note_completed(tx, each, state_to)
    resources.release(tx, [each.row.id for each in completions if each.row.holds])
    return state_to


def _completed(tx: Tx, done: Completion) -> tuple[Any, ...]:
    """Return the parameters of `complete`."""
    row = done.row
    spent = (row.attempts, row.crashes, row.starts, row.fence)
    return (*spent, tx.now, done.result, done.result_until, done.keep_until, row.seq)


def _note_completed(tx: Tx, done: Completion, state_to: State) -> None:
    row = done.row
    worker = row.worker or ""
    said = (("state_from", State.RUNNING), ("state_to", state_to), ("worker", worker), ("detail", done.used))
    tx.note_of(Event.COMPLETED, row, said, attempt=row.attempts, fence=row.fence)


def back(
    tx: Tx,
    row: Row,
    event: Event,
    step: lifecycle.Event,
    *,
    counts: Counts,
    due_at: Instant | None = None,
    alone: bool = False,
    error: str = "",
    rule: str = "",
    used: str = "",
) -> State:
    """Put a running job back to wait: for its due time, its turn or somebody's agreement."""
    state_to = lifecycle.advance(State(row["state"]), step)
    text = bounded(error)
    _expect_one(
        tx.run(
            _LEAVE["back"],
            {
                "seq": row["seq"],
                "state_to": str(state_to),
                "due_at": row["due_at"] if due_at is None else due_at,
                **asdict(counts),
                "alone": int(alone),
                "error": text,
                "rule": bounded(rule),
            },
        ),
    )
    worker = row["worker"] or ""
    detail = _detail(used, text)
    tx.note(event, row, state_from=row["state"], state_to=state_to, worker=worker, rule=rule, detail=detail)
    resources.hand_on(tx, row)
    return state_to


def _detail(used: str, error: str) -> str:
    return "; ".join(each for each in (used, error) if each)


def _set_apart(tx: Tx, seq: int, state: str, counts: Counts, **why: str) -> None:
    asked = {"seq": seq, "state": str(state), "now": tx.now, **asdict(counts), **why}
    _expect_one(tx.run(_LEAVE["set_apart"], asked))


def _leave(
    tx: Tx,
    row: Row,
    kept: OperationState,
    *,
    ended: State | None,
    counts: Counts,
    error: str = "",
    rule: str = "",
) -> None:
    keep = policy_of(tx, row["type"]).limits.operation_keep_seconds
    _expect_one(tx.run(_LEAVE["remove"], {"seqs": as_array([row["seq"]]), "state": row["state"]}))
    _expect_one(
        tx.run(
            _LEAVE["record"],
            {
                "seq": row["seq"],
                "operation_state": str(kept),
                "freed": int(kept is OperationState.FREED),
                "ended": ended and str(ended),
                "attempts": counts.attempts,
                "crashes": counts.crashes,
                "starts": counts.starts,
                "fence": row["fence"],
                "error": error,
                "rule": bounded(rule),
                "finished_at": tx.now if ended else 0,
                "keep_until": None if keep is None or not ended else tx.after(keep),
            },
        ),
    )


def _expect_one(changed: int) -> None:
    _expect(1, changed)


def _expect(wanted: int, changed: int) -> None:
    if changed != wanted:
        raise StoreDamaged("a job and its operation do not fit together. Stop, copy the ledger, and look")
