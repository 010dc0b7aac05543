"""Rows of verbs as the values that cross the seam.

Trust: not the rows of jobs; somebody with the owner's rights may have written them. What cannot be read raises
UndecodableError, and the caller sets that job apart alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from benteng.audit import AuditRecord, Event, body_bytes, leaf_of
from benteng.errors import BentengError
from benteng.evidence import (
    OPEN,
    ArtifactFact,
    ArtifactState,
    Control,
    ControlMode,
    ControlScope,
    Evidence,
    OperationFact,
)
from benteng.job import ArtifactRef, Attempt, Grant, Job, Lease, Refs
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.policy import Tier
from benteng.store.records import (
    AuditRow,
    Cancelled,
    Disposal,
    JobLine,
    JobView,
    LeaseProof,
    Receipt,
    ResourceView,
    Settled,
    Status,
)

Row = Mapping[str, Any]
_MAJOR = re.compile(r".*@([1-9][0-9]{0,3})", re.ASCII)


class UndecodableError(BentengError):
    """A row that is no job. Carries the name of the field, never its value."""


class Started(NamedTuple):
    """A row of what a turn answers: the columns of the type `granted`, in order (a test compares them).

    A job that starts; or, without a job's id, the facts that those behind it share, or what was settled.
    """

    job_id: str | None
    type: str
    tier: str
    priority: int
    available_at: int
    expires_at: int
    generation: int
    origin: str
    actor: str
    request_id: str
    payload: bytes
    payload_sha256: bytes
    operation_key: bytes
    envelope: bytes
    policy_sha256: str
    artifacts: list[str]
    targets: list[str]
    resources: list[str]
    summary: str
    attempt: int
    crashes: int
    handbacks: int
    snoozes: int
    alone: bool
    fence: int
    token: str
    facts: str | None
    settled_ids: list[str] | None
    settled_states: list[str] | None
    settled_reasons: list[str | None] | None


def receipt(
    disposal: str, job_id: str | None, state: str | None, rule: str | None, reason: str | None, result: bytes | None
) -> Receipt:
    """Return the answer to one admission: the columns of `admit`, in order, but for the first."""
    return Receipt(Disposal(disposal), _id(job_id), State(state) if state else None, rule or "", reason or "", result)


def status(row: Row) -> Status:
    """Return how one job is doing."""
    return Status(
        _id(row["job_id"]),
        State(row["state"]),
        row["reason"] and QuarantineReason(row["reason"]),
        row["error"],
        row["result"],
        row["available_at"] or 0,
        row["finished_at"] or 0,
    )


def cancelled(row: Row) -> Cancelled:
    """Return what became of one job."""
    return Cancelled(_id(row["job_id"]), State(row["state"]))


def all_settled(row: Started) -> list[Settled]:
    """Return the settlements that a turn accepted. It says no states where all attempts completed."""
    job_ids = row.settled_ids or ()
    if row.settled_states is None or row.settled_reasons is None:
        return [Settled(job_id, State.COMPLETED, None) for job_id in job_ids]
    return list(map(settled, job_ids, row.settled_states, row.settled_reasons))


def settled(job_id: str, state: str, reason: str | None) -> Settled:
    """Return one settlement that was accepted."""
    return Settled(job_id, State(state), QuarantineReason(reason) if reason else None)


def evidence(row: Row) -> Evidence:
    """Return the answer to one question."""
    return Evidence(
        now=row["now"],
        control=control(row),
        policy_sha256=row["policy_sha256"],
        speaks=row["speaks"],
        denied_targets=tuple(row["denied"] or ()),
        artifacts=_artifacts(row["artifacts"] or ()),
        operation=_operation(row),
    )


def control(row: Row, prefix: str = "") -> Control:
    """Return a switch, OPEN when there is none."""
    if row[f"{prefix}scope"] is None:
        return OPEN
    scope, mode = ControlScope(row[f"{prefix}scope"]), ControlMode(row[f"{prefix}mode"])
    return Control(scope, row[f"{prefix}name"], mode, row[f"{prefix}reason"])


def _artifacts(parts: Sequence[str]) -> dict[str, ArtifactFact]:
    facts = [
        ArtifactFact(
            parts[at], parts[at + 1], ArtifactState(parts[at + 2]), int(parts[at + 3]) if parts[at + 3] else None
        )
        for at in range(0, len(parts), 4)
    ]
    return {fact.id: fact for fact in facts}


def _operation(row: Row) -> OperationFact | None:
    if row["job_id"] is None:
        return None
    return OperationFact(_id(row["job_id"]), row["origin"], row["payload_sha256"], row["operation"], row["epoch"])


class _Group(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The facts of jobs that are alike, as the verb that starts them writes them."""

    type: str
    actor: str
    origin: str
    artifacts: list[str]
    targets: list[str]
    lease_seconds: float
    scope: str | None
    name: str | None
    mode: str | None
    reason: str | None
    policy_sha256: str | None
    speaks: bool
    denied: list[str] | None
    facts: list[str] | None


class _Facts(msgspec.Struct, frozen=True, gc=False):
    now: int
    groups: list[_Group]


_FACTS = msgspec.json.Decoder(_Facts)


class Shared:
    """What jobs that are alike share: fresh evidence, and how long a lease is."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._groups = {
            (each.type, each.actor, each.origin, *each.artifacts, "", *each.targets): (
                _fresh(facts.now, each),
                each.lease_seconds,
            )
            for facts in map(_FACTS.decode, texts)
            for each in facts.groups
        }

    def of(self, row: Started) -> tuple[Evidence, float]:
        """Return the evidence and the lease's seconds of a claimed job."""
        return self._groups[row.type, row.actor, row.origin, *row.artifacts, "", *row.targets]


def _fresh(now: int, group: _Group) -> Evidence:
    switch = {"scope": group.scope, "name": group.name, "mode": group.mode, "reason": group.reason}
    return Evidence(
        now=now,
        control=control(switch),
        policy_sha256=group.policy_sha256,
        speaks=group.speaks,
        denied_targets=tuple(group.denied or ()),
        artifacts=_artifacts(group.facts or ()),
    )


def grant(row: Started, shared: Shared) -> Grant:
    """Return a claimed job. Raises UndecodableError."""
    found = job(row, row.payload_sha256.hex(), row.operation_key.hex())
    fresh, seconds = shared.of(row)
    attempt = Attempt(row.attempt, row.crashes, row.handbacks, row.snoozes)
    return Grant(found, attempt, Lease(found.id, row.fence, row.token, seconds), fresh, row.alone)


def proof(row: Started) -> LeaseProof:
    """Return what shows that a claimed job is ours."""
    return LeaseProof(_id(row.job_id), row.fence, row.token)


_TIERS = {tier.value: tier for tier in Tier}


def job(row: Any, payload_sha256: str, operation_key: str) -> Job:
    """Return the job that a row describes, by its columns, with its digests as text. Raises UndecodableError.

    In the order of the fields of Job: a worker reads thousands a second.
    """
    tier = _TIERS.get(row.tier)
    if tier is None:
        raise UndecodableError("tier is not one of low, medium, high")
    return Job(
        _id(row.job_id),
        row.type,
        tier,
        row.payload,
        payload_sha256,
        operation_key,
        row.origin,
        row.actor,
        row.request_id,
        row.priority,
        row.available_at,
        row.expires_at,
        _refs(row.artifacts, row.targets, row.resources),
        row.policy_sha256,
        row.generation,
        row.envelope,
        row.summary,
    )


_NO_REFS = Refs()


def _refs(parts: Sequence[str], targets: Sequence[str], resources: Sequence[str]) -> Refs:
    if not (parts or targets or resources):
        return _NO_REFS
    if len(parts) % 2:
        raise UndecodableError("artifacts are not pairs of id and digest")
    artifacts = tuple(ArtifactRef(parts[at], parts[at + 1]) for at in range(0, len(parts), 2))
    return Refs(artifacts, tuple(targets), tuple(resources))


def line(row: Row) -> JobLine:
    """Return one line of a list."""
    return JobLine(
        job_id=_id(row["job_id"]),
        type=row["type"],
        tier=row["tier"],
        state=State(row["state"]),
        priority=row["priority"],
        attempts=row["attempts"],
        origin=row["origin"],
        actor=row["actor"],
        request_id=row["request_id"],
        admitted_at=row["admitted_at"],
        available_at=row["available_at"],
        reason=row["reason"] and QuarantineReason(row["reason"]),
        error=row["error"],
        summary=row["summary"],
    )


def view(row: Row) -> JobView:
    """Return everything about one job, as far as it can be read."""
    known = dict(row)
    if known["tier"] not in set(Tier):
        known["tier"] = Tier.HIGH.value
    switch = control(row, "control_")
    names = ("attempts", "crashes", "handbacks", "snoozes", "starts", "admitted_at", "finished_at", "now", "pool")
    more = (
        "classified",
        "rule",
        "error",
        "fence",
        "worker",
        "lease_until",
        "cancel_asked",
        "waits_for",
        "progress",
        "epoch",
        "result",
    )
    return JobView(
        job=job(SimpleNamespace(**known), known["payload_sha256"], known["operation_key"]),
        state=State(row["state"]),
        available_at=row["due_at"],
        **{name: row[name] for name in (*names, *more, "worker_seen_at", "ahead")},
        reason=row["reason"] and QuarantineReason(row["reason"]),
        parent=_id(row["parent"]),
        operation=OperationState(row["operation"]),
        resources=tuple(ResourceView(**each) for each in _list(row["resource_views"])),
        control=None if switch.mode is ControlMode.OPEN else switch,
        audit=tuple(audit_row(each | {"job_id": each["job_text"]}) for each in _list(row["audit"])),
    )


def audit_row(row: Row) -> AuditRow:
    """Return one record of the log: its body and its leaf are composed here from the stored columns."""
    salt = bytes.fromhex(row["salt"])
    body = body_bytes(_record(row))
    return AuditRow(row["seq"], leaf_of(salt, body), salt, body)


_SAME = (
    *("at_us", "job_id", "type", "policy_sha256", "state_from", "state_to", "attempt", "fence", "origin", "actor"),
    *("request_id", "operation", "payload", "summary", "worker", "login", "rule", "reason", "detail"),
)


def _record(row: Row) -> AuditRecord:
    found = _MAJOR.fullmatch(row["type"])
    return AuditRecord(
        event=Event(row["event"]),
        contract_version=int(found[1]) if found else 0,
        resources=tuple(row["resources"]),
        **{name: row[name] for name in _SAME},
    )


def _list(text: str | None) -> list[dict[str, Any]]:
    return msgspec.json.decode(text, type=list[dict[str, Any]]) if text else []


def _id(value: str | None) -> str:
    return value or ""
