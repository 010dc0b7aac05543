"""Integrity: what stands beside the payload follows from the payload and from the signature.

References, operation key and digest are computed again from the canonical bytes by the field paths of the reviewed
policy, and each signed claim must equal its column. Whatever differs did not come from an honest gate: suspicious,
before any cell starts (DESIGN section 3, "Identity and order").
"""

from __future__ import annotations

from benteng.contract import FieldPath, PayloadLimits, artifact_refs, extract_all_from_bytes, resource_keys
from benteng.contract.parser import read
from benteng.contract.path import ARTIFACT
from benteng.envelope import Columns, JobClaims, match
from benteng.errors import EnvelopeError, RuleError
from benteng.evidence import Evidence
from benteng.guard.case import Case, Door
from benteng.job import ArtifactRef, Job, Refs, operation_key, own_operation_key, sha256_hex
from benteng.policy import RESOURCES_MAX, KeyPath, Tier, TypePolicy
from benteng.verdict import ADMIT, Refuse, Verdict

WIDE = PayloadLimits(65_536, 32, 65_536, 65_536)
"""Bounds for reading a payload without its contract: as wide as any contract may be."""


def integrity(case: Case, evidence: Evidence) -> Verdict:
    """Refuse, as suspicious, a job whose columns do not follow from its payload and its signed claims."""
    job, policy = case.job, case.policy
    known = None if case.door is Door.GATE else evidence.policy_sha256  # of what passes the gate `admit` compares it
    if known is not None and known != policy.sha256:
        return Refuse(
            "G-policy", f"the ledger's policy of {job.type} is not the reviewed one", "run: benteng policy apply"
        )
    if sha256_hex(job.payload) != job.payload_sha256:
        return _forged("payload_sha256")
    if identity_of(policy, job.id, job.payload) != job.operation_key:
        return _forged("operation_key")
    if refs_of(policy, job.payload) != job.refs:
        return _forged("refs")
    return _signature(case)


def identity_of(policy: TypePolicy, job_id: str, payload: bytes) -> str:
    """Return the operation key of a payload under a policy. Raises Malformed when a declared path is not there."""
    if not policy.operation:
        return own_operation_key(job_id)
    values = extract_all_from_bytes(payload, policy.operation)
    return operation_key(policy.name, dict(zip(policy.operation, values, strict=True)))


def refs_of(policy: TypePolicy, payload: bytes) -> Refs:
    """Return the references that a payload makes under a policy. Raises RuleError when one is not of its form."""
    if not (policy.artifacts or policy.targets or policy.resources):
        return Refs()
    tree = read(payload, WIDE)
    resources = resource_keys(tree, _paths(policy.resources))
    if len(resources) > RESOURCES_MAX:
        reason = f"{len(resources)} resources, at most {RESOURCES_MAX}"
        raise RuleError("G-resources", reason, fix="fan out into several jobs")
    artifacts = artifact_refs(tree, [FieldPath(path, ARTIFACT, None) for path in policy.artifacts])
    return Refs(
        artifacts=tuple(ArtifactRef(artifact_id, digest) for artifact_id, digest in artifacts),
        targets=resource_keys(tree, _paths(policy.targets)),
        resources=resources,
    )


def claims_match(claims: JobClaims, job: Job, policy: TypePolicy) -> None:
    """Raise EnvelopeError E-mismatch naming the first signed claim that differs from the job's column.

    A replay below HIGH keeps the producer's envelope, which knows nothing of the generation.
    """
    columns = signed_columns(job, policy)
    if job.tier is not Tier.HIGH:
        columns["generation"] = claims.generation
    match(claims, **columns)


def signed_columns(job: Job, policy: TypePolicy) -> Columns:
    """Return the columns of a job that its envelope signs."""
    return Columns(
        job_id=job.id,
        type=job.type,
        tier=job.tier.value,
        origin=job.origin,
        actor=job.actor,
        request_id=job.request_id,
        operation_key=job.operation_key,
        payload_sha256=job.payload_sha256,
        schema_sha256=policy.schema_sha256,
        policy_sha256=job.policy_sha256,
        artifacts=tuple((ref.id, ref.sha256) for ref in job.refs.artifacts),
        targets=job.refs.targets,
        resources=job.refs.resources,
        priority=job.priority,
        available_at_us=job.available_at,
        generation=job.generation,
        expires_at_us=job.expires_at,
    )


def _signature(case: Case) -> Verdict:
    if case.claims is None:
        if case.policy.signed and case.door is not Door.GATE:  # the gate signs what it has judged
            return Refuse(
                "G-unsigned", "a job of this type must be signed", "make keys with: benteng init", suspicious=True
            )
        return ADMIT
    try:
        claims_match(case.claims, case.job, case.policy)
    except EnvelopeError as error:
        return Refuse(error.rule, error.reason, error.fix, error.field, suspicious=True)
    return ADMIT


def _paths(keys: tuple[KeyPath, ...]) -> list[FieldPath]:
    return [FieldPath(key.path, key.kind, None) for key in keys]


def _forged(field: str) -> Refuse:
    return Refuse("G-forged", "the column does not follow from the payload", field=field, suspicious=True)
