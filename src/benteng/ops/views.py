"""What readers show of a job, a switch and an audit record: plain data for JSON, never a payload."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from benteng.audit import AuditRecord, Event
from benteng.evidence import Control
from benteng.ops.output import when
from benteng.ops.why import decode
from benteng.store.records import AuditRow, JobLine, JobView


def line(job: JobLine) -> dict[str, object]:
    """Return one line of a list of jobs."""
    return {
        "job": job.job_id,
        "type": job.type,
        "tier": job.tier,
        "state": job.state.value,
        "reason": job.reason.value if job.reason else "",
        "priority": job.priority,
        "attempts": job.attempts,
        "origin": job.origin,
        "actor": job.actor,
        "request_id": job.request_id,
        "admitted_at": when(job.admitted_at),
        "available_at": when(job.available_at),
        "error": job.error,
        "summary": summary(job.summary),
    }


def job(view: JobView) -> dict[str, object]:
    """Return everything about a job that people may see: its summary, never its payload, token or envelope."""
    return _identity(view) | _progress(view) | _times(view) | _references(view)


def _identity(view: JobView) -> dict[str, object]:
    return {
        "job": view.job.id,
        "type": view.job.type,
        "tier": view.job.tier.value,
        "state": view.state.value,
        "pool": view.pool,
        "priority": view.job.priority,
        "origin": view.job.origin,
        "actor": view.job.actor,
        "request_id": view.job.request_id,
        "parent": view.parent,
        "summary": summary(view.job.summary),
    }


def _progress(view: JobView) -> dict[str, object]:
    return {
        "reason": view.reason.value if view.reason else "",
        "classified": view.classified,
        "rule": view.rule,
        "error": view.error,
        "progress": view.progress,
        "attempts": view.attempts,
        "crashes": view.crashes,
        "handbacks": view.handbacks,
        "snoozes": view.snoozes,
        "starts": view.starts,
        "generation": view.job.generation,
        "fence": view.fence,
        "worker": view.worker,
        "cancel_asked": view.cancel_asked,
        "waits_for": view.waits_for,
        "operation": {"key": view.job.operation_key, "state": view.operation.value, "epoch": view.epoch},
    }


def _times(view: JobView) -> dict[str, object]:
    return {
        "admitted_at": when(view.admitted_at),
        "available_at": when(view.available_at),
        "expires_at": when(view.job.expires_at),
        "lease_until": when(view.lease_until),
        "finished_at": when(view.finished_at),
    }


def _references(view: JobView) -> dict[str, object]:
    return {
        "payload_sha256": view.job.payload_sha256,
        "policy_sha256": view.job.policy_sha256,
        "signed": bool(view.job.envelope),
        "artifacts": [{"id": ref.id, "sha256": ref.sha256} for ref in view.job.refs.artifacts],
        "targets": list(view.job.refs.targets),
        "resources": [
            {"key": one.key, "holder": one.holder, "fence": one.fence, "closed": one.closed, "waiting": one.waiting}
            for one in view.resources
        ],
    }


def control(switch: Control) -> dict[str, object]:
    """Return one switch."""
    return {
        "scope": switch.scope.value,
        "name": switch.name,
        "mode": switch.mode.value,
        "reason": switch.reason,
    }


def record(row: AuditRow) -> dict[str, object]:
    """Return one record of the audit log. Its texts were cleaned and redacted before they were stored."""
    found = decode(row)
    place: dict[str, object] = {"seq": row.seq, "leaf": row.leaf.hex()}
    if found is None:
        return place | {"erased": row.body is None, "readable": False}
    facts = cast("dict[str, Any]", msgspec.to_builtins(found))
    return place | facts | {"at": when(found.at_us), "summary": summary(found.summary)}


def sentence(row: AuditRow) -> list[str]:
    """Return one record as the cells of a table: seq, time, event, job, what."""
    found = decode(row)
    if found is None:
        return [str(row.seq), "", "erased" if row.body is None else "unreadable", "", ""]
    return [str(row.seq), when(found.at_us), found.event.value, found.job_id, _what(found)]


def _what(found: AuditRecord) -> str:
    moved = f"{found.state_from} -> {found.state_to}" if found.state_to and found.state_from != found.state_to else ""
    fence = f"fence {found.fence}" if found.fence else ""
    waived = f"waives {', '.join(_waived(found))}" if _waived(found) else ""
    why = found.reason or found.detail
    return " · ".join(part for part in (found.type, moved, fence, found.rule, why, waived) if part)


class _Posture(msgspec.Struct):
    waive: tuple[str, ...] = ()


def _waived(found: AuditRecord) -> tuple[str, ...]:
    """Return the layers that a worker said it does without."""
    if found.event not in (Event.REGISTERED, Event.WORKER_REFUSED):
        return ()
    try:
        return msgspec.json.decode(found.summary, type=_Posture).waive
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ()


def summary(text: str) -> object:
    """Return an allow-listed summary as JSON; a damaged one as nothing."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
