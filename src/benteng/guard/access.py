"""Access: the origin speaks for the actor, who may run the type on each target (seed, "aksi diizinkan")."""

from __future__ import annotations

from benteng.evidence import Evidence
from benteng.guard.case import Case
from benteng.policy import Tier
from benteng.verdict import ADMIT, Refuse, Verdict


def access(case: Case, evidence: Evidence) -> Verdict:
    """Refuse an origin that may not speak for the actor; above LOW also an actor or a target outside the access rule.

    A target outside the rule is suspicious: an honest producer does not send one by mistake (seed, "target di luar
    whitelist").
    """
    job = case.job
    if not evidence.speaks:
        return Refuse("X-speaks", f"{job.origin} may not enqueue {job.type} for this actor", "allow it for this origin")
    if case.policy.tier is Tier.LOW:
        return ADMIT
    if not job.actor:
        return Refuse(
            "X-actor", "a job above LOW names its actor", 'pass actor="svc:..." or actor="user:..."', field="actor"
        )
    if evidence.denied_targets:
        return Refuse(
            "X-target",
            f"{job.actor} may not run {job.type} on {len(evidence.denied_targets)} of its targets",
            "allow actor, type and target in the access rule",
            suspicious=True,
        )
    return ADMIT
