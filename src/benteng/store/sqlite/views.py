"""What people see of jobs: lists without payloads, and everything about one.

Trust: nothing in a row; what cannot be read is shown as far as it can be.
"""

from __future__ import annotations

from typing import Any

from benteng.evidence import Control, ControlMode
from benteng.job import Job, Refs
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.policy import Tier
from benteng.store.records import AuditRow, JobLine, JobView, Page, Query, ResourceView
from benteng.store.sqlite import control
from benteng.store.sqlite.policies import type_fact
from benteng.store.sqlite.resources import as_array
from benteng.store.sqlite.rows import UndecodableError, decode_refs
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import bounded

_FIND = statements("find")
_SHOW = statements("show")
_AUDIT = statements("audit")
_RESOURCE = statements("resource")
PAGE_MAX = 1_000
AUDIT_MAX = 200
_SEQ_MAX = (1 << 63) - 1


def find(tx: Tx, query: Query) -> Page:
    """Return one page of jobs, newest first; the cursor is the number of its last line."""
    limit = max(1, min(query.limit, PAGE_MAX))
    after = query.after
    rows = tx.all(
        _FIND["page"],
        {
            "before": int(after) if after.isascii() and after.isdigit() and len(after) < 19 else _SEQ_MAX,  # noqa: PLR2004  64 bits
            "any_state": not query.states,
            "states": as_array([str(state) for state in query.states]),
            "type": bounded(query.type),
            "origin": bounded(query.origin),
            "actor": bounded(query.actor),
            "request_id": bounded(query.request_id),
            "reason": str(query.reason or ""),
            "resource": bounded(query.resource),
            "limit": limit + 1,
        },
    )
    lines = tuple(_line(row) for row in rows[:limit])
    return Page(lines, str(rows[limit - 1]["seq"]) if len(rows) > limit else "")


def show(tx: Tx, job_id: str) -> JobView | None:
    """Return everything about one job, or None."""
    operation = tx.one(_SHOW["operation"], {"id": bounded(job_id)})
    if operation is None:
        return None
    active = tx.one(_SHOW["job"], {"seq": operation["seq"]})
    apart = tx.one(_SHOW["quarantine"], {"seq": operation["seq"]})
    job = _job(active or apart, operation)
    fact = type_fact(tx, job.type)
    pool = fact.pool if fact else ""
    over = control.strictest(tx, type_name=job.type, origin=job.origin, pool=pool)
    return JobView(
        job=job,
        state=_state(active, apart, operation),
        **_spent(active or apart, operation),
        admitted_at=operation["admitted_at"],
        available_at=active["due_at"] if active else 0,
        finished_at=operation["finished_at"],
        now=tx.now,
        pool=pool,
        **_active(active),
        **_apart(apart, operation),
        error=_error(active, apart, operation),
        parent=operation["parent"],
        operation=OperationState(operation["state"]),
        epoch=operation["epoch"],
        result=operation["result"],
        resources=_resources(tx, job),
        control=_closed(over),
        worker_seen_at=_number(tx.one(_SHOW["worker_seen"], {"pool": pool}), "seen_at"),
        ahead=_ahead(tx, active, pool),
        audit=_audit(tx, operation),
    )


def _line(row: Row) -> JobLine:
    return JobLine(
        job_id=row["job_id"],
        type=row["type"],
        tier=row["tier"],
        state=State(row["state"]),
        priority=row["priority"],
        attempts=row["attempts"],
        origin=row["origin"],
        actor=row["actor"],
        request_id=row["request_id"],
        admitted_at=row["admitted_at"],
        available_at=row["due_at"],
        reason=_reason(row["reason"]),
        error=row["error"],
        summary=row["summary"],
    )


def _job(row: Row | None, operation: Row) -> Job:
    """Return the job as far as it can be read. Of a finished one the payload and the envelope are gone."""
    source = row or operation
    return Job(
        id=operation["job_id"],
        type=source["type"],
        tier=_tier(source["tier"]),
        payload=row["payload"] if row else b"",
        payload_sha256=source["payload_sha256"],
        operation_key=row["operation_key"] if row else operation["key"],
        origin=source["origin"],
        actor=source["actor"],
        request_id=source["request_id"],
        priority=source["priority"],
        available_at=row["available_at"] if row else 0,
        expires_at=row["expires_at"] if row else 0,
        refs=_refs(source["refs"]),
        policy_sha256=source["policy_sha256"],
        generation=source["generation"],
        envelope=row["envelope"] if row else b"",
        summary=source["summary"],
    )


def _state(active: Row | None, apart: Row | None, operation: Row) -> State:
    if active is not None:
        return State(active["state"])
    return State.QUARANTINED if apart is not None else State(operation["ended"])


def _spent(row: Row | None, operation: Row) -> dict[str, int]:
    if row is None:
        spent = {name: operation[name] for name in ("attempts", "crashes", "starts")}
        return spent | {"handbacks": 0, "snoozes": 0, "fence": operation["fence"]}
    return {name: row[name] for name in ("attempts", "crashes", "handbacks", "snoozes", "starts", "fence")}


def _active(row: Row | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {
        "worker": row["worker"] or "" if row["state"] == State.RUNNING else "",
        "lease_until": row["lease_until"] or 0,
        "cancel_asked": bool(row["cancel_asked"]),
        "waits_for": row["waits_for"] or "",
        "progress": row["progress"],
        "rule": row["rule"],
    }


def _apart(row: Row | None, operation: Row) -> dict[str, Any]:
    if row is None:
        return {} if operation["ended"] is None else {"rule": operation["rule"]}
    return {"reason": _reason(row["reason"]), "classified": row["classified"], "rule": row["rule"]}


def _error(active: Row | None, apart: Row | None, operation: Row) -> str:
    if active is not None:
        return active["last_error"]
    return apart["error"] if apart is not None else operation["error"]


def _resources(tx: Tx, job: Job) -> tuple[ResourceView, ...]:
    rows = tx.all(_RESOURCE["of_job"], {"keys": as_array(job.refs.resources)})
    known = {row["key"]: row for row in rows}
    return tuple(_resource(key, known.get(key)) for key in job.refs.resources)


def _resource(key: str, row: Row | None) -> ResourceView:
    if row is None:
        return ResourceView(key)
    return ResourceView(key, row["holder"], row["fence"], bool(row["closed"]), row["waiting"])


def _ahead(tx: Tx, active: Row | None, pool: str) -> int:
    if active is None or active["state"] != State.READY:
        return 0
    asked = {name: active[name] for name in ("priority", "due_at", "seq")}
    return _number(tx.one(_SHOW["ahead"], asked | {"pool": pool}), "jobs")


def _audit(tx: Tx, operation: Row) -> tuple[AuditRow, ...]:
    asked = {"seq": operation["seq"], "job_id": operation["job_id"], "limit": AUDIT_MAX}
    rows = tx.all(_AUDIT["of_job"], asked)
    return tuple(AuditRow(row["seq"], row["leaf"], row["salt"], row["body"]) for row in reversed(rows))


def _closed(over: Control) -> Control | None:
    return None if over.mode is ControlMode.OPEN else over


def _number(row: Row | None, name: str) -> int:
    return 0 if row is None else row[name]


def _refs(text: str) -> Refs:
    try:
        return decode_refs(text)
    except UndecodableError:
        return Refs()


def _tier(text: str) -> Tier:
    return Tier(text) if text in set(Tier) else Tier.HIGH


def _reason(text: str | None) -> QuarantineReason | None:
    return QuarantineReason(text) if text in set(QuarantineReason) else None
