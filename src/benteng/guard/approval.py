"""Approval: every artifact that a job names is registered with that digest and approved (seed, "Integritas")."""

from __future__ import annotations

from benteng.evidence import ArtifactFact, ArtifactState, Evidence
from benteng.guard.case import Case
from benteng.job import ArtifactRef
from benteng.verdict import ADMIT, Admit, Refuse, Verdict


def approval(case: Case, evidence: Evidence) -> Verdict:
    """Refuse an artifact that is unknown, has another digest, or is not approved at the store's now."""
    for ref in case.job.refs.artifacts:
        verdict = _one(ref, evidence.artifacts.get(ref.id), evidence)
        if not isinstance(verdict, Admit):
            return verdict
    return ADMIT


def _one(ref: ArtifactRef, fact: ArtifactFact | None, evidence: Evidence) -> Verdict:
    short = ref.sha256[:8]
    if fact is None:
        return Refuse("A-unknown", f"artifact {ref.id} ({short}…) is not registered", "register and approve it first")
    if fact.sha256 != ref.sha256:
        return Refuse("A-digest", f"artifact {ref.id} is not {short}…", "name the registered sha256", suspicious=True)
    if fact.state is not ArtifactState.APPROVED:
        return Refuse("A-state", f"artifact {ref.id} is {fact.state}, not approved", "have it approved first")
    if fact.expires_at is not None and fact.expires_at <= evidence.now:
        return Refuse("A-expired", f"the approval of artifact {ref.id} has expired", "have it approved again")
    return ADMIT
