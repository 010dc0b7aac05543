"""A job as a row and back. What a row says is checked when it is read: somebody may have written it by hand.

Trust: nothing in a row. `decode` raises UndecodableError, and the row is then set apart alone.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from benteng.errors import BentengError
from benteng.job import ArtifactRef, Job, Refs
from benteng.policy import RESOURCES_MAX, TYPE_NAME, Tier
from benteng.store.sqlite.audit import Subject

JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
HEX_64 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class UndecodableError(BentengError):
    """A row that is no job. Carries the name of the field, never its value."""


class Ready(Subject, frozen=True, gc=False):
    """The row of a job that may start: the columns of `load`."""

    state: str
    tier: str
    priority: int
    due_at: int
    available_at: int
    expires_at: int
    crashes: int
    handbacks: int
    snoozes: int
    starts: int
    generation: int
    waits_for: str | None
    alone: int
    payload: bytes
    envelope: bytes
    refs: str


class Running(Subject, frozen=True, gc=False):
    """The row of a job that runs: the columns of `running`. `place` is that of its settlement in the call."""

    state: str
    token: str
    due_at: int
    crashes: int
    handbacks: int
    snoozes: int
    starts: int
    worker: str | None
    waits_for: str | None
    cancel_asked: int
    alone: int
    place: int
    holds: int


class _StoredRefs(msgspec.Struct, forbid_unknown_fields=True):
    artifacts: list[tuple[str, str]]
    targets: list[str]
    resources: list[str]


_refs_encoder = msgspec.json.Encoder()
_refs_decoder = msgspec.json.Decoder(_StoredRefs)


def encode_refs(refs: Refs) -> str:
    """Return the JSON text of a job's references."""
    stored = _StoredRefs(
        artifacts=[(ref.id, ref.sha256) for ref in refs.artifacts],
        targets=list(refs.targets),
        resources=list(refs.resources),
    )
    return _refs_encoder.encode(stored).decode()


_NO_REFS = encode_refs(Refs())


def decode_refs(text: str) -> Refs:
    """Return the references of a row. Raises UndecodableError."""
    if text == _NO_REFS:
        return Refs()
    try:
        stored = _refs_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise UndecodableError("refs cannot be read") from None
    resources = tuple(stored.resources)
    if len(resources) > RESOURCES_MAX or list(resources) != sorted(set(resources)):
        raise UndecodableError("resources are not sorted, distinct and at most 16")
    artifacts = tuple(ArtifactRef(ref_id, sha256) for ref_id, sha256 in stored.artifacts)
    return Refs(artifacts, tuple(stored.targets), resources)


def encode(job: Job) -> dict[str, Any]:
    """Return the columns that a job has when it enters."""
    return {
        "id": job.id,
        "type": job.type,
        "tier": str(job.tier),
        "priority": job.priority,
        "available_at": job.available_at,
        "expires_at": job.expires_at,
        "generation": job.generation,
        "origin": job.origin,
        "actor": job.actor,
        "request_id": job.request_id,
        "payload": job.payload,
        "payload_sha256": job.payload_sha256,
        "operation_key": job.operation_key,
        "envelope": job.envelope,
        "policy_sha256": job.policy_sha256,
        "refs": encode_refs(job.refs),
        "summary": job.summary,
    }


def decode(row: Ready) -> Job:
    """Return the job that a row describes. Raises UndecodableError."""
    if not _NAMED.fullmatch(f"{row.id} {row.operation_key} {row.payload_sha256} {row.type}"):
        raise UndecodableError("id is not a UUID, type not name@major, operation_key or payload_sha256 not a digest")
    return Job(
        id=row.id,
        type=row.type,
        tier=_tier(row.tier),
        payload=row.payload,
        payload_sha256=row.payload_sha256,
        operation_key=row.operation_key,
        origin=row.origin,
        actor=row.actor,
        request_id=row.request_id,
        priority=row.priority,
        available_at=row.available_at,
        expires_at=row.expires_at,
        refs=decode_refs(row.refs),
        policy_sha256=row.policy_sha256,
        generation=row.generation,
        envelope=row.envelope,
        summary=row.summary,
    )


_NAMED = re.compile(rf"{JOB_ID.pattern} {HEX_64.pattern} {HEX_64.pattern} {TYPE_NAME.pattern}", re.ASCII)
_TIERS = {tier.value: tier for tier in Tier}


def _tier(text: str) -> Tier:
    if text not in _TIERS:
        raise UndecodableError("tier is not one of low, medium, high")
    return _TIERS[text]
