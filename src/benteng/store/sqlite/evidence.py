"""Read what the guards want to know about a job, in the transaction that decides."""

from __future__ import annotations

from benteng.evidence import ArtifactFact, ArtifactState, Evidence, OperationFact
from benteng.job import Job
from benteng.store.records import Question
from benteng.store.sqlite import control
from benteng.store.sqlite.policies import type_fact
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Tx
from benteng.store.sqlite.text import bounded

_EVIDENCE = statements("evidence")


def of_question(tx: Tx, question: Question, *, origin: str) -> Evidence:
    """Return the evidence for a job that this origin wants to enqueue."""
    return _evidence(
        tx,
        type_name=bounded(question.type),
        actor=bounded(question.actor),
        origin=origin,
        artifact_ids=tuple(map(bounded, question.artifact_ids)),
        targets=tuple(map(bounded, question.targets)),
        operation=_operation(tx, question, origin),
    )


def of_job(tx: Tx, job: Job) -> Evidence:
    """Return the evidence for the second judgement of a job; the same for all whose type, actor and origin it is."""
    if job.refs.artifacts or job.refs.targets:
        return _of_job(tx, job)
    memo = ("evidence", job.type, job.actor, job.origin)
    if memo not in tx.memo:
        tx.memo[memo] = _of_job(tx, job)
    return tx.memo[memo]


def _of_job(tx: Tx, job: Job) -> Evidence:
    return _evidence(
        tx,
        type_name=job.type,
        actor=job.actor,
        origin=job.origin,
        artifact_ids=tuple(ref.id for ref in job.refs.artifacts),
        targets=job.refs.targets,
        operation=None,
    )


def may_speak(tx: Tx, *, origin: str, actor: str, type_name: str) -> bool:
    """Return whether the origin may enqueue the type on behalf of the actor."""
    fact = ("speaks", origin, actor, type_name)
    if fact not in tx.facts:
        asked = {"origin": origin, "actor": actor, "type": type_name}
        tx.facts[fact] = tx.one(_EVIDENCE["speaks"], asked) is not None
    return tx.facts[fact]


def _evidence(
    tx: Tx,
    *,
    type_name: str,
    actor: str,
    origin: str,
    artifact_ids: tuple[str, ...],
    targets: tuple[str, ...],
    operation: OperationFact | None,
) -> Evidence:
    fact = type_fact(tx, type_name)
    return Evidence(
        now=tx.now,
        control=control.strictest(tx, type_name=type_name, origin=origin, pool=fact.pool if fact else ""),
        policy_sha256=fact.sha256 if fact else None,
        speaks=may_speak(tx, origin=origin, actor=actor, type_name=type_name),
        denied_targets=tuple(target for target in targets if not _may_touch(tx, actor, type_name, target)),
        artifacts=_artifacts(tx, artifact_ids),
        operation=operation,
    )


def _may_touch(tx: Tx, actor: str, type_name: str, target: str) -> bool:
    fact = ("access", actor, type_name, target)
    if fact not in tx.facts:
        asked = {"actor": actor, "type": type_name, "target": target}
        tx.facts[fact] = tx.one(_EVIDENCE["access"], asked) is not None
    return tx.facts[fact]


def _artifacts(tx: Tx, artifact_ids: tuple[str, ...]) -> dict[str, ArtifactFact]:
    found = (_artifact(tx, artifact_id) for artifact_id in artifact_ids)
    return {fact.id: fact for fact in found if fact is not None}


def _artifact(tx: Tx, artifact_id: str) -> ArtifactFact | None:
    row = tx.one(_EVIDENCE["artifact"], {"id": artifact_id})
    return (
        None if row is None else ArtifactFact(row["id"], row["sha256"], ArtifactState(row["state"]), row["expires_at"])
    )


def _operation(tx: Tx, question: Question, origin: str) -> OperationFact | None:
    """Return who holds the key, if that is the origin's own job: of others an origin learns nothing before it tries."""
    asked = {"key": bounded(question.operation_key), "type": bounded(question.type)}
    row = tx.one(_EVIDENCE["operation"], asked)
    if row is None or row["origin"] != origin:
        return None
    return OperationFact(row["job_id"], row["origin"], row["payload_sha256"], row["state"], row["epoch"])
