"""Read what the guards want to know about a job, in the transaction that decides."""

from __future__ import annotations

from collections.abc import Sequence

from benteng.evidence import ArtifactFact, ArtifactState, Evidence, OperationFact
from benteng.job import Job
from benteng.store.records import Question
from benteng.store.sqlite import control
from benteng.store.sqlite.policies import type_fact
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Tx
from benteng.store.sqlite.text import as_array, bounded

_EVIDENCE = statements("evidence")


def of_questions(tx: Tx, questions: Sequence[Question], *, origin: str) -> list[Evidence]:
    """Return the evidence for jobs that this origin wants to enqueue: of others' it learns nothing before it tries."""
    owners = _owners(tx, questions)
    own = (owner if owner and owner.origin == origin else None for owner in owners)
    return [_of_question(tx, question, origin, owner) for question, owner in zip(questions, own, strict=True)]


def of_owned(tx: Tx, questions: Sequence[Question]) -> list[Evidence]:
    """Return the evidence for jobs whose origins are those of the jobs that have their operations."""
    owners = _owners(tx, questions)
    return [
        _of_question(tx, question, owner.origin if owner else tx.origin, owner)
        for question, owner in zip(questions, owners, strict=True)
    ]


def _of_question(tx: Tx, question: Question, origin: str, operation: OperationFact | None) -> Evidence:
    return _evidence(
        tx,
        type_name=bounded(question.type),
        actor=bounded(question.actor),
        origin=origin,
        artifact_ids=tuple(map(bounded, question.artifact_ids)),
        targets=tuple(map(bounded, question.targets)),
        operation=operation,
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


def _owners(tx: Tx, questions: Sequence[Question]) -> list[OperationFact | None]:
    """Return who holds the key of each."""
    asked = [(bounded(question.operation_key), bounded(question.type).partition("@")[0]) for question in questions]
    rows = tx.all(_EVIDENCE["owners"], {"operations": as_array(asked)})
    owners = {row["place"]: OperationFact(*(row[name] for name in OperationFact.__struct_fields__)) for row in rows}
    return [owners.get(place) for place in range(len(questions))]
