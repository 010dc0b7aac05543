"""Let jobs in: the operations they reserve, the states in which they enter, and the receipts for all of them.

The gate has judged already, and `entrance` asks again what the gate cannot be trusted with or cannot see in time. Jobs
of one call are decided in order, as if each had entered before the next was looked at, and are written together.
Trust: nothing of a job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benteng.audit import Event
from benteng.evidence import ControlMode
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import DEPTH_DEFAULT
from benteng.store.records import Disposal, Receipt
from benteng.store.sqlite import control, moves, refusals
from benteng.store.sqlite.audit import digest
from benteng.store.sqlite.entrance import NAME_BYTES_MAX, Entrance, Refusal, refusal_of
from benteng.store.sqlite.policies import type_fact
from benteng.store.sqlite.rows import JOB_ID, encode
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Tx
from benteng.store.sqlite.text import as_array, bounded

_ADMIT = statements("admit")

COUNT_MICROSECONDS = 2
"""An origin whose jobs were counted is not counted again for so long a job: ten times what counting one takes."""

_Owner = Mapping[str, Any]
"""The job to which an operation belongs: its id, origin, payload digest, state and result."""


class _Entering(msgspec.Struct, frozen=True, gc=False):
    """A job that enters: its columns, and the state in which it does."""

    entrance: Entrance
    columns: dict[str, Any]
    state: State


_REPEATED = Refusal("S-id", "the job id is repeated in the batch", suspicious=True)
_TAKEN = Refusal("S-id", "the job id belongs to another operation", suspicious=True)


def enter(tx: Tx, entrances: Sequence[Entrance]) -> list[Receipt]:
    """Let jobs of one origin in, or say why not: a receipt for each, in order. Whatever comes out is recorded."""
    if not entrances:
        return []
    repeated = _repeated(entrances)
    refused = [_REPEATED if at in repeated else refusal_of(tx, each) for at, each in enumerate(entrances)]
    hall = _Hall(tx, [entrance for entrance, refusal in zip(entrances, refused, strict=True) if refusal is None])
    receipts = [
        refuse(tx, entrance, refusal) if refusal else hall.receive(entrance)
        for entrance, refusal in zip(entrances, refused, strict=True)
    ]
    _write(tx, hall.entering)
    return receipts


class _Hall:
    """Where the jobs of one call meet what the ledger knows, and each other."""

    def __init__(self, tx: Tx, entrances: Sequence[Entrance]) -> None:
        self._tx = tx
        self._owners: dict[tuple[str, str], _Owner] = _owners(tx, entrances)
        self._taken = _taken(tx, entrances)
        self._depth, self._room = _depth_and_room(tx, entrances)
        self.entering: list[_Entering] = []

    def receive(self, entrance: Entrance) -> Receipt:
        """Answer one that broke no rule: it has an owner, or may not enter beside the others, or it enters."""
        owner = self._owners.get(_operation(entrance))
        if owner:
            return _known(self._tx, entrance, owner)
        if entrance.job.id in self._taken:
            return refuse(self._tx, entrance, _TAKEN)
        if len(self.entering) >= self._room:
            return refuse(self._tx, entrance, Refusal("S-depth", f"the origin has {self._depth} jobs waiting"))
        return self._admit(entrance)

    def _admit(self, entrance: Entrance) -> Receipt:
        tx, job = self._tx, entrance.job
        columns = encode(job) | {"seq": tx.draw_seq(), "parent": entrance.parent, "now": tx.now}
        entering = _Entering(entrance, columns, _entry_state(tx, entrance))
        self.entering.append(entering)
        self._owners[_operation(entrance)] = columns | {"job_id": job.id, "state": entering.state, "result": None}
        _note(tx, entering)
        return Receipt(Disposal.ADMITTED, job.id, entering.state, entrance.rule, entrance.reason)


def _repeated(entrances: Sequence[Entrance]) -> set[int]:
    """Return the places of those whose job id stands before them in the same call."""
    first = {entrance.job.id: at for at, entrance in reversed(list(enumerate(entrances)))}
    return set(range(len(entrances))) - set(first.values())


def _operation(entrance: Entrance) -> tuple[str, str]:
    """Return what names an operation: its key and, as in the column `name`, its type without the major."""
    return entrance.job.operation_key, entrance.job.type.partition("@")[0]


def _owners(tx: Tx, entrances: Sequence[Entrance]) -> dict[tuple[str, str], _Owner]:
    rows = tx.all(_ADMIT["owners"], {"operations": as_array([_operation(entrance) for entrance in entrances])})
    return {(row["key"], row["name"]): row for row in rows}


def _taken(tx: Tx, entrances: Sequence[Entrance]) -> set[str]:
    """Return which job ids the ledger has seen already."""
    rows = tx.all(_ADMIT["taken"], {"ids": as_array([entrance.job.id for entrance in entrances])})
    return {row["job_id"] for row in rows}


def refuse(tx: Tx, entrance: Entrance, refusal: Refusal) -> Receipt:
    """Record that the store did not let the job in."""
    _record(tx, entrance, refusal.rule, refusal.reason, suspicious=refusal.suspicious)
    return Receipt(Disposal.REFUSED, rule=refusal.rule, reason=refusal.reason)


def _known(tx: Tx, entrance: Entrance, owner: _Owner) -> Receipt:
    """Answer for an operation that exists: the first receipt, or a conflict; to another origin without a name."""
    job = entrance.job
    if owner["origin"] != entrance.origin:
        reason = "the operation exists already, from another origin"
        _record(tx, entrance, refusals.CONFLICT, reason, suspicious=True)
        return Receipt(Disposal.CONFLICT, rule=refusals.CONFLICT, reason=reason)
    if owner["payload_sha256"] != job.payload_sha256:
        reason = "the operation exists already, with another payload"
        _record(tx, entrance, refusals.CONFLICT, reason, detail=owner["job_id"])
        return Receipt(Disposal.CONFLICT, owner["job_id"], State(owner["state"]), refusals.CONFLICT, reason)
    _record(tx, entrance, refusals.DUPLICATE, "the operation exists already", detail=owner["job_id"])
    return Receipt(Disposal.DUPLICATE, owner["job_id"], State(owner["state"]), result=owner["result"])


def _note(tx: Tx, entering: _Entering) -> None:
    entrance = entering.entrance
    row: Any = entering.columns | {"attempts": 0, "fence": 0}
    said = {
        "rule": entrance.rule,
        "reason": entrance.reason,
        "resources": entrance.job.refs.resources,
        "detail": entrance.parent,
    }
    tx.note(_ENTRY_EVENTS.get(entering.state, Event.ADMITTED), row, state_to=entering.state, **said)


_ENTRY_EVENTS = {State.HELD: Event.HELD, State.QUARANTINED: Event.DIVERTED}


def _entry_state(tx: Tx, entrance: Entrance) -> State:
    """Return the strictest of what the gate, the switches and the due time ask for."""
    job = entrance.job
    fact = type_fact(tx, job.type)
    mode = control.strictest(tx, type_name=job.type, origin=job.origin, pool=fact.pool if fact else "").mode
    if entrance.entry is State.QUARANTINED or mode is ControlMode.DIVERT:
        return State.QUARANTINED
    if entrance.entry is State.HELD or mode is ControlMode.HOLD:
        return State.HELD
    return State.SCHEDULED if job.available_at > tx.now else State.READY


def _depth_and_room(tx: Tx, entrances: Sequence[Entrance]) -> tuple[int, int]:
    """Return the depth of the origin, and how many more jobs it may have.

    It is counted only when that is close, and when it is close again only after a while: what is refused meanwhile was
    counted COUNT_MICROSECONDS a job ago at most. A count at a number in line that was never drawn is void.
    """
    if not entrances:
        return 0, 0
    origin = entrances[0].origin
    (known,) = tx.all(_ADMIT["span"], {"origin": origin, "default": DEPTH_DEFAULT})
    last, jobs_max, jobs = tx.seq, known["jobs_max"], known["span"]
    is_counted = known["jobs"] is not None
    if is_counted and last < known["seq"]:
        jobs = _count(tx, origin, last)
    elif is_counted:
        jobs = min(jobs, known["jobs"] + last - known["seq"])
    if jobs + len(entrances) > jobs_max and not (is_counted and _is_fresh(tx, known)):
        jobs = _count(tx, origin, last)
    return jobs_max, jobs_max - jobs


def _is_fresh(tx: Tx, known: Mapping[str, Any]) -> bool:
    """Return whether the origin was counted a moment ago. A count from the future is of another clock, and void."""
    return 0 <= tx.now - known["counted_at"] < known["jobs"] * COUNT_MICROSECONDS


def _count(tx: Tx, origin: str, last: int) -> int:
    """Return how many active jobs an origin has, and write it down."""
    (counted,) = tx.all(_ADMIT["depth"], {"origin": origin})
    jobs = counted["jobs"]
    tx.run(_ADMIT["counted"], {"origin": origin, "jobs": jobs, "seq": last, "now": tx.now})
    return jobs


def _write(tx: Tx, entering: Sequence[_Entering]) -> None:
    """Reserve the operations, then insert the jobs."""
    rows = [_row(tx, each) for each in entering]
    tx.many_named(_ADMIT["reserve"], rows)
    tx.many_named(_ADMIT["insert"], rows)
    numbered = [(row["seq"], each.entrance) for row, each in zip(rows, entering, strict=True)]
    tx.many(
        _ADMIT["names_resource"],
        [(key, seq) for seq, entrance in numbered for key in entrance.job.refs.resources],
    )
    for (seq, entrance), each in zip(numbered, entering, strict=True):
        if each.state is State.QUARANTINED:
            why = {"rule": entrance.rule, "error": entrance.reason}
            moves.set_apart_new(tx, seq, _waiting(each.state), QuarantineReason.DIVERTED, **why)


def _row(tx: Tx, entering: _Entering) -> dict[str, Any]:
    entrance = entering.entrance
    return entering.columns | {
        "state": str(_waiting(entering.state)),
        "due_at": max(entrance.job.available_at, tx.now),
        "rule": bounded(entrance.rule),
        "error": bounded(entrance.reason),
    }


def _waiting(state: State) -> State:
    """Return the state of the row in `job`: a diverted one is set apart from a row, so that it keeps the context."""
    return State.HELD if state is State.QUARANTINED else state


def _record(tx: Tx, entrance: Entrance, rule: str, reason: str, *, suspicious: bool = False, detail: str = "") -> None:
    job = entrance.job
    refusals.record(
        tx,
        type_name=bounded(job.type, NAME_BYTES_MAX),
        origin=entrance.origin,
        rule=rule,
        reason=reason,
        job_id=job.id if JOB_ID.fullmatch(job.id) else "",
        actor=job.actor,
        request_id=job.request_id,
        payload=digest(tx.audit_key, bounded(job.payload_sha256)),
        operation=digest(tx.audit_key, bounded(job.operation_key)),
        detail=" ".join(filter(None, ("suspicious" if suspicious else "", detail, entrance.parent))),
    )
