"""Jobs and cases for the tests of guards, gate and worker: built through the real definitions."""

from __future__ import annotations

from msgspec.structs import replace

from benteng.contract import Artifact, Contract, Target
from benteng.evidence import ArtifactFact, ArtifactState, Evidence
from benteng.guard import Case, Door
from benteng.guard.integrity import identity_of, refs_of
from benteng.job import Job
from benteng.policy import Effect, Tier
from benteng.task import JobType, Options, define

DIGEST = "ab" * 32
JOB_ID = "01a22a30-fbd6-767b-8017-be768113f8a9"


class Patch(Contract):
    """A patch of one target with one artifact."""

    target: Target
    artifact: Artifact


def patch(payload: Patch) -> None:
    """Do nothing: only its definition matters here."""


def job_type(tier: Tier = Tier.MEDIUM, **options: object) -> JobType:
    """Return a patch type of a tier."""
    wanted = {"effect": Effect.REPEATABLE, "operation": ("target", "artifact.sha256"), "resources": ("target",)}
    return define(patch, "patch.apply@1", Options(tier=tier, **(wanted | options)))  # type: ignore[arg-type]  # by name


def payload(target: str = "web-7", digest: str = DIGEST) -> dict[str, object]:
    """Return the fields of a good payload."""
    return {"target": target, "artifact": {"id": "agent-1.2", "sha256": digest}}


def case(kind: JobType | None = None, door: Door = Door.WORKER, **changes: object) -> Case:
    """Return a good case; `changes` are fields of the job."""
    kind = kind or job_type()
    parsed = kind.shape.parse_value(payload())
    policy = kind.policy
    job = Job(
        id=JOB_ID,
        type=kind.name,
        tier=policy.tier,
        payload=parsed.canonical,
        payload_sha256=parsed.digest,
        operation_key=identity_of(policy, JOB_ID, parsed.canonical),
        origin="os:0",
        actor="svc:deployer",
        refs=refs_of(policy, parsed.canonical),
        policy_sha256=policy.sha256,
    )
    return Case(replace(job, **changes), policy, door, shape=kind.shape, parsed=parsed)  # type: ignore[arg-type]  # by name


def evidence(**changes: object) -> Evidence:
    """Return evidence under which the good case is admitted."""
    fact = ArtifactFact("agent-1.2", DIGEST, ArtifactState.APPROVED)
    return replace(Evidence(now=1_000_000, speaks=True, artifacts={"agent-1.2": fact}), **changes)  # type: ignore[arg-type]


__all__ = ["DIGEST", "JOB_ID", "Patch", "case", "evidence", "job_type", "patch", "payload"]
