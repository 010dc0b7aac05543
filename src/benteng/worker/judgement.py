"""The supervisor's own judgement after a claim, without user code; and what it asks of the store in the end.

Policies come from this host's reviewed lock file, claims from envelopes that this host's trust roots verify. What
does not fit is refused before any cell hears of it (DESIGN section 4). Trust: nothing of a granted row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from benteng.clock import Instant, microseconds
from benteng.decide import Decision, decide
from benteng.envelope import RULES, JobClaims, open_envelope
from benteng.errors import EnvelopeError, RuleError
from benteng.guard import SUPERVISOR, Case, Door, judge
from benteng.guard.integrity import identity_of, refs_of
from benteng.job import Grant, Job, new_job_id, sha256_hex
from benteng.keyring import TrustRoots
from benteng.outcome import Completed, Judged, Lost, Outcome, Successor, Suspicious
from benteng.policy import TypePolicy
from benteng.store.records import Settlement
from benteng.verdict import Admit, Refuse
from benteng.worker.flights import Flight

SKEW: Instant = microseconds(60)
"""How far a producer's clock may be ahead of the store's."""


@dataclass(frozen=True, slots=True)
class Judge:
    """What this host knows: the reviewed policies, and whom it trusts."""

    policies: Mapping[str, TypePolicy]
    trust: TrustRoots

    def verdict(self, grant: Grant) -> Judged | None:
        """Return how a grant ends before it is sent anywhere, or None when it may go to a cell. Never raises."""
        try:
            verdict = self._verdict(grant)
        except EnvelopeError as error:
            verdict = Refuse(error.rule, error.reason, error.fix, error.field, suspicious=RULES[error.rule].suspicious)
        except Exception as error:  # noqa: BLE001 - an unexpected exception in a check means refuse
            verdict = Refuse("G-broken", f"the judgement failed ({type(error).__name__})", "report it")
        return None if isinstance(verdict, Admit) else Judged(verdict)

    def _verdict(self, grant: Grant) -> Admit | Refuse:
        policy = self.policies.get(grant.job.type)
        if policy is None:
            return Refuse("L-unknown", "the lock file of this host does not have the type", "run: benteng policy lock")
        case = Case(grant.job, policy, Door.WORKER, claims=self._claims(grant))
        return judge(case, grant.evidence, SUPERVISOR)  # type: ignore[return-value]

    def _claims(self, grant: Grant) -> JobClaims | None:
        if not grant.job.envelope:
            return None
        return open_envelope(grant.job.envelope, self.trust, now_us=grant.evidence.now, skew_us=SKEW)


@dataclass(frozen=True, slots=True)
class Settler:
    """Turns ended flights into settlements."""

    policies: Mapping[str, TypePolicy]
    rng: Random

    def settle(self, flight: Flight, now: Instant) -> Settlement | None:
        """Return what to ask of the store for an ended flight; None when the lease was lost and nothing may be asked.

        Asked once for each flight: a repeated call to the store repeats the same settlement.
        """
        outcome = flight.outcome if flight.outcome is not None else Lost()
        try:
            successors = self._successors(flight, outcome, now)
        except RuleError as error:
            outcome, successors = Suspicious(f"successor: {error}"), ()
        decision = decide(flight.grant.attempt, outcome, flight.policy, rng=self.rng)
        return None if decision is None else _settlement(flight, decision, successors)

    def _successors(self, flight: Flight, outcome: Outcome, now: Instant) -> tuple[Job, ...]:
        if not isinstance(outcome, Completed):
            return ()
        return tuple(successor_job(flight.grant.job, each, self.policies, now) for each in outcome.successors)


def successor_job(parent: Job, successor: Successor, policies: Mapping[str, TypePolicy], now: Instant) -> Job:
    """Return a successor as a job: same actor, origin, request and priority, unsigned. Raises RuleError."""
    policy = policies.get(successor.type)
    if policy is None or policy.tier.rank > parent.tier.rank:
        raise RuleError("W-successor", "the type is unknown, or above its parent's tier")
    job_id = new_job_id(now, os.urandom(10))
    limits = policy.limits
    return Job(
        id=job_id,
        type=policy.name,
        tier=policy.tier,
        payload=successor.payload,
        payload_sha256=sha256_hex(successor.payload),
        operation_key=identity_of(policy, job_id, successor.payload),
        origin=parent.origin,
        actor=parent.actor,
        request_id=parent.request_id,
        priority=parent.priority,
        expires_at=now + microseconds(limits.expires_seconds) if limits.expires_seconds else 0,
        refs=refs_of(policy, successor.payload),
        policy_sha256=policy.sha256,
    )


def _settlement(flight: Flight, decision: Decision, successors: tuple[Job, ...]) -> Settlement:
    return Settlement(
        proof=flight.proof,
        disposition=decision.disposition,
        delay_seconds=decision.delay_seconds,
        reason=decision.reason,
        error=decision.error,
        rule=decision.rule,
        result=decision.result,
        successors=successors,
        started=decision.started,
        alone=decision.alone,
        connects=flight.connects,
        refused=flight.refused,
        holds=bool(flight.grant.job.refs.resources),
    )
