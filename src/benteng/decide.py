"""What happens next, given how an attempt ended. Pure: clock-free, and randomness is an argument.

`decide` says what the worker asks for; the store's `settle` enforces the counted bounds again, so that a hostile worker
cannot retry for ever (DESIGN section 2). Only transient errors are retried: bounded, exponential, with full jitter
(seed, "Retry dengan backoff"; AWS Builders' Library, "Timeouts, retries and backoff with jitter").
"""

from __future__ import annotations

import math
from enum import StrEnum
from random import Random
from typing import assert_never

import msgspec

from benteng.job import Attempt
from benteng.lifecycle import QuarantineReason
from benteng.outcome import (
    Completed,
    Crashed,
    Interrupted,
    Judged,
    Lost,
    Outcome,
    Permanent,
    Snoozed,
    Successor,
    Suspicious,
    Transient,
    Unstarted,
)
from benteng.policy import Effect, Limits, TypePolicy
from benteng.verdict import Divert, Hold, Refuse


class Disposition(StrEnum):
    """What `settle` is asked to do with a running job.

    complete    the operation is completed and keeps the result
    retry       scheduled after a delay; the attempt stays spent
    crash       as retry, and counted as a crash
    snooze      scheduled after a delay; the attempt is given back, the snooze counted
    hand_back   ready again, never started: attempt and start are given back, the hand-back counted
    interrupt   ready again, started but killed by us: the attempt is given back, the hand-back counted
    hold        held; never started: attempt and start are given back
    quarantine  quarantined with a reason
    """

    COMPLETE = "complete"
    RETRY = "retry"
    CRASH = "crash"
    SNOOZE = "snooze"
    HAND_BACK = "hand_back"
    INTERRUPT = "interrupt"
    HOLD = "hold"
    QUARANTINE = "quarantine"


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What to ask of the store.

    reason   why, when quarantined;  error: cleaned text of the failure;  rule: the rule of a second judgement
    started  whether user code was handed the job in this attempt
    alone    run it next time in a cell of its own
    """

    disposition: Disposition
    delay_seconds: float = 0.0
    reason: QuarantineReason | None = None
    error: str = ""
    rule: str = ""
    result: bytes = b""
    successors: tuple[Successor, ...] = ()
    started: bool = True
    alone: bool = False


def decide(attempt: Attempt, outcome: Outcome, policy: TypePolicy, *, rng: Random) -> Decision | None:
    """Return what to ask of the store, or None when nothing may be settled because the lease was lost."""
    match outcome:
        case Completed():
            return Decision(Disposition.COMPLETE, result=outcome.result, successors=outcome.successors)
        case Transient():
            return _transient(attempt, outcome, policy, rng)
        case Permanent():
            return _quarantine(QuarantineReason.PERMANENT, outcome.error)
        case Suspicious():
            return _quarantine(QuarantineReason.SUSPICIOUS, outcome.error)
        case Snoozed():
            return _snooze(attempt, outcome, policy.limits)
        case Interrupted():
            return _interrupted(policy)
        case Crashed():
            return _crashed(attempt, outcome, policy, rng)
        case Unstarted():
            return Decision(Disposition.HAND_BACK, error=outcome.why, started=False)
        case Judged():
            return _judged(outcome.verdict)
        case Lost():
            return None
        case _:
            assert_never(outcome)


def backoff_seconds(attempt_number: int, limits: Limits, rng: Random) -> float:
    """Return the delay before the next try: full jitter under an exponential ceiling, between min and max."""
    doublings = min(attempt_number - 1, 32)
    ceiling = min(limits.backoff_seconds_max, limits.backoff_seconds_base * 2**doublings)
    return max(limits.backoff_seconds_min, rng.uniform(0.0, ceiling))


def _transient(attempt: Attempt, outcome: Transient, policy: TypePolicy, rng: Random) -> Decision:
    if policy.effect is Effect.ONCE and not outcome.explicit:
        return _quarantine(QuarantineReason.UNCERTAIN, outcome.error)
    if attempt.number >= policy.limits.attempts_max:
        return _quarantine(QuarantineReason.EXHAUSTED, outcome.error)
    delay = backoff_seconds(attempt.number, policy.limits, rng)
    if outcome.retry_after_seconds is not None:
        delay = _bounded(outcome.retry_after_seconds, delay, policy.limits.backoff_seconds_max)
    return Decision(Disposition.RETRY, delay, error=outcome.error)


def _crashed(attempt: Attempt, outcome: Crashed, policy: TypePolicy, rng: Random) -> Decision:
    if policy.effect is Effect.ONCE:
        return _quarantine(QuarantineReason.UNCERTAIN, outcome.how)
    if outcome.shared:
        return Decision(Disposition.INTERRUPT, error=outcome.how, alone=True)
    if attempt.crashes + 1 >= policy.limits.crashes_max or attempt.number >= policy.limits.attempts_max:
        return _quarantine(QuarantineReason.CRASHED, outcome.how)
    return Decision(Disposition.CRASH, backoff_seconds(attempt.number, policy.limits, rng), error=outcome.how)


def _snooze(attempt: Attempt, outcome: Snoozed, limits: Limits) -> Decision:
    if attempt.snoozes >= limits.snoozes_max:
        return _quarantine(QuarantineReason.EXHAUSTED, outcome.reason or "snoozed too often")
    delay = _bounded(outcome.after_seconds, limits.backoff_seconds_min, limits.snooze_seconds_max)
    return Decision(Disposition.SNOOZE, delay, error=outcome.reason)


def _bounded(seconds: float, low: float, high: float) -> float:
    """Return a delay that a handler asked for, within bounds; what is no number waits longest."""
    return high if math.isnan(seconds) else min(max(seconds, low), high)


def _interrupted(policy: TypePolicy) -> Decision:
    if policy.effect is Effect.ONCE:
        return _quarantine(QuarantineReason.UNCERTAIN, "killed by a drain")
    return Decision(Disposition.INTERRUPT, error="killed by a drain")


def _judged(verdict: Hold | Divert | Refuse) -> Decision:
    match verdict:
        case Hold():
            return Decision(Disposition.HOLD, error=verdict.reason, rule=verdict.rule, started=False)
        case Divert():
            return _unstarted(QuarantineReason.DIVERTED, verdict)
        case Refuse(suspicious=True):
            return _unstarted(QuarantineReason.SUSPICIOUS, verdict)
        case Refuse():
            return _unstarted(QuarantineReason.REFUSED, verdict)


def _unstarted(reason: QuarantineReason, verdict: Divert | Refuse) -> Decision:
    return Decision(
        Disposition.QUARANTINE,
        reason=reason,
        error=verdict.reason,
        rule=verdict.rule,
        started=False,
    )


def _quarantine(reason: QuarantineReason, error: str) -> Decision:
    return Decision(Disposition.QUARANTINE, reason=reason, error=error)
