"""Stop jobs that somebody does not want any more: at once, or by the flag that the worker's next heartbeat sees."""

from __future__ import annotations

from collections.abc import Sequence

from benteng.audit import Event
from benteng.lifecycle import State
from benteng.store.records import Cancelled, Facet
from benteng.store.sqlite import moves
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import REASON_BYTES_MAX, bounded

_CANCEL = statements("cancel")


def cancel(tx: Tx, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
    """Cancel jobs of the own origin, or any for an operator. Unknown, foreign and finished ones are left out."""
    found: list[Cancelled] = []
    for job_id in dict.fromkeys(job_ids):
        asked = {"id": bounded(job_id), "origin": tx.origin, "is_operator": tx.facet is Facet.OPERATOR}
        row = tx.one(_CANCEL["find"], asked)
        if row is not None:
            found.append(Cancelled(row["id"], _cancel_one(tx, row, bounded(reason, REASON_BYTES_MAX))))
    return found


def _cancel_one(tx: Tx, row: Row, reason: str) -> State:
    if row["state"] != State.RUNNING:
        return moves.cancel(tx, row, reason)
    if tx.run(_CANCEL["ask"], {"seq": row["seq"]}):
        tx.note(Event.CANCEL_ASKED, row, reason=reason, worker=row["worker"] or "")
    return State.RUNNING
