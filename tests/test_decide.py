from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benteng.decide import Decision, Disposition, backoff_seconds, decide
from benteng.job import Attempt
from benteng.lifecycle import QuarantineReason
from benteng.outcome import (
    Completed,
    Crashed,
    Interrupted,
    Judged,
    Lost,
    Permanent,
    Snoozed,
    Successor,
    Suspicious,
    Transient,
    Unstarted,
)
from benteng.policy import Effect, Limits, Tier, TypePolicy
from benteng.verdict import Divert, Hold, Refuse

LIMITS = Limits(
    attempts_max=3,
    crashes_max=2,
    snoozes_max=2,
    snooze_seconds_max=600.0,
    backoff_seconds_base=1.0,
    backoff_seconds_min=0.5,
    backoff_seconds_max=60.0,
)
REPEATABLE = TypePolicy(name="a@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, limits=LIMITS)
ONCE = TypePolicy(name="b@1", tier=Tier.MEDIUM, effect=Effect.ONCE, limits=LIMITS)
FIRST = Attempt(1)
LAST = Attempt(3)

TEXT = st.text(max_size=5)
WILD = st.sampled_from([math.nan, math.inf, -math.inf, -1.0]) | st.floats()
FAILURES = st.one_of(
    st.builds(Transient, TEXT, st.none() | WILD, st.booleans()),
    st.builds(Snoozed, WILD, TEXT),
    st.builds(Crashed, TEXT, st.booleans()),
    st.builds(Permanent, TEXT),
    st.builds(Suspicious, TEXT),
    st.just(Interrupted()),
)
ATTEMPTS = st.builds(Attempt, st.integers(1, 5), st.integers(0, 3), st.integers(0, 30), st.integers(0, 3))
GOES_BACK = {Disposition.RETRY, Disposition.CRASH, Disposition.SNOOZE, Disposition.INTERRUPT, Disposition.HAND_BACK}


def dice(seed=1) -> Random:
    """Repeatable randomness."""
    return Random(seed)  # noqa: S311 - jitter of a test, not a secret


def decided(outcome, policy=REPEATABLE, attempt=FIRST, seed=1) -> Decision:
    """What `decide` says, where it has something to say."""
    decision = decide(attempt, outcome, policy, rng=dice(seed))
    assert decision is not None
    return decision


def test_completed_completes_with_result_and_successors():
    """A returned value ends the job and goes with its successors to the store."""
    successors = (Successor("c@1", b"{}"),)

    decision = decided(Completed(b'{"n":1}', successors))

    assert Decision(Disposition.COMPLETE, result=b'{"n":1}', successors=successors) == decision


def test_lost_settles_nothing():
    """Whoever lost the lease says nothing more: the store decides by the lease."""
    assert decide(FIRST, Lost(), REPEATABLE, rng=dice()) is None


@pytest.mark.parametrize("policy", [REPEATABLE, ONCE], ids=["repeatable", "once"])
@pytest.mark.parametrize(
    "outcome, reason",
    [(Permanent("e"), QuarantineReason.PERMANENT), (Suspicious("e"), QuarantineReason.SUSPICIOUS)],
    ids=["permanent", "suspicious"],
)
def test_permanent_and_suspicious_are_never_retried(policy, outcome, reason):
    """Only transient errors are retried, also at the first attempt."""
    assert Decision(Disposition.QUARANTINE, reason=reason, error="e") == decided(outcome, policy)


def test_transient_is_retried_while_attempts_are_left():
    """The second of three attempts may be followed by a third."""
    decision = decided(Transient("e"), attempt=Attempt(2))

    assert (Disposition.RETRY, "e", True) == (decision.disposition, decision.error, decision.started)


def test_transient_at_the_last_attempt_is_exhausted():
    """The last attempt that fails ends in quarantine, with its error."""
    assert Decision(Disposition.QUARANTINE, reason=QuarantineReason.EXHAUSTED, error="e") == decided(
        Transient("e"), attempt=LAST
    )


def test_retry_after_is_respected_as_the_least_delay():
    """A handler that knows when to come back is believed, up to the policy's maximum."""
    assert math.isclose(30.0, decided(Transient("e", 30.0)).delay_seconds)


def test_retry_after_is_capped():
    """A handler cannot park its job longer than the policy's maximum."""
    assert math.isclose(60.0, decided(Transient("e", 1e9)).delay_seconds)


def test_transient_of_once_is_uncertain():
    """An unclassified failure after the start of a `once` job is not re-run: nobody knows what happened."""
    expected = Decision(Disposition.QUARANTINE, reason=QuarantineReason.UNCERTAIN, error="e")

    assert expected == decided(Transient("e"), ONCE)
    assert expected == decided(Transient("e"), ONCE, attempt=LAST)


def test_explicit_retry_of_once_runs_again():
    """A `once` handler that raises Retry says that nothing happened."""
    assert Disposition.RETRY is decided(Transient("e", explicit=True), ONCE).disposition


@pytest.mark.parametrize("outcome", [Crashed("killed"), Crashed("killed", shared=True), Interrupted()])
def test_unclear_end_of_once_is_uncertain(outcome):
    """Crash, crash beside others, drain kill: a `once` job that was started is parked as uncertain."""
    assert QuarantineReason.UNCERTAIN is decided(outcome, ONCE).reason


def test_crash_is_counted_and_bounded():
    """The first of two allowed crashes is retried as a crash, the second is quarantined as crashed."""
    first, second = decided(Crashed("k"), attempt=Attempt(1)), decided(Crashed("k"), attempt=Attempt(2, crashes=1))

    assert Disposition.CRASH is first.disposition
    assert (Disposition.QUARANTINE, QuarantineReason.CRASHED) == (second.disposition, second.reason)


def test_crash_at_the_last_attempt_is_quarantined():
    """A crash counts as an attempt: at the last one there is no other try."""
    assert QuarantineReason.CRASHED is decided(Crashed("k"), attempt=LAST).reason


def test_crash_in_company_is_not_charged_but_runs_alone():
    """Whoever was beside a crash goes back for free, and next time into a cell of its own."""
    expected = Decision(Disposition.INTERRUPT, error="k", alone=True)

    assert expected == decided(Crashed("k", shared=True))


def test_interrupted_goes_back_for_free():
    """A drain kill of a repeatable job is our doing, not the job's."""
    assert Disposition.INTERRUPT is decided(Interrupted()).disposition


def test_unstarted_is_handed_back_unstarted():
    """An attempt that never reached user code spends nothing, not even a start."""
    assert Decision(Disposition.HAND_BACK, error="drain", started=False) == decided(Unstarted("drain"))


def test_snooze_waits_within_bounds():
    """A snooze waits as asked, at least the least backoff and at most the longest snooze."""
    delays = [decided(Snoozed(seconds)).delay_seconds for seconds in (-1.0, 60.0, 1e9)]

    assert [0.5, 60.0, 600.0] == delays


def test_snooze_too_often_is_exhausted():
    """Snoozes are free and therefore counted."""
    decision = decided(Snoozed(60.0), attempt=Attempt(1, snoozes=2))

    assert (Disposition.QUARANTINE, QuarantineReason.EXHAUSTED) == (decision.disposition, decision.reason)


@pytest.mark.parametrize(
    "verdict, disposition, reason",
    [
        (Hold("R1", "why"), Disposition.HOLD, None),
        (Divert("R1", "why"), Disposition.QUARANTINE, QuarantineReason.DIVERTED),
        (Refuse("R1", "why"), Disposition.QUARANTINE, QuarantineReason.REFUSED),
        (Refuse("R1", "why", suspicious=True), Disposition.QUARANTINE, QuarantineReason.SUSPICIOUS),
    ],
    ids=["hold", "divert", "refuse", "suspicious"],
)
def test_second_judgement_never_started(verdict, disposition, reason):
    """What the second judgement stops was not started, and its rule and reason are kept."""
    expected = Decision(disposition, reason=reason, error="why", rule="R1", started=False)

    assert expected == decided(Judged(verdict))


@given(number=st.integers(1, 10_000), seed=st.integers())
def test_backoff_is_between_its_bounds(number, seed):
    """Full jitter stays between the least and the longest backoff, whatever the attempt's number."""
    assert 0.5 <= backoff_seconds(number, LIMITS, dice(seed)) <= 60.0


@given(number=st.integers(1, 6), seed=st.integers())
def test_backoff_ceiling_doubles(number, seed):
    """The n-th delay is at most base * 2^(n - 1)."""
    assert backoff_seconds(number, LIMITS, dice(seed)) <= max(0.5, 2.0 ** (number - 1))


def test_backoff_is_spread():
    """Jobs that failed together do not come back together."""
    delays = {backoff_seconds(6, LIMITS, dice(seed)) for seed in range(100)}

    assert len(delays) > 90
    assert max(delays) - min(delays) > 16


@given(outcome=FAILURES, attempt=ATTEMPTS, seed=st.integers())
def test_spent_budget_is_never_retried(outcome, attempt, seed):
    """Whatever the outcome, a job whose attempts are spent is not retried or charged with another crash."""
    decision = decided(outcome, REPEATABLE, attempt, seed)

    if attempt.number >= LIMITS.attempts_max:
        assert decision.disposition not in {Disposition.RETRY, Disposition.CRASH}


@given(outcome=FAILURES, attempt=ATTEMPTS, seed=st.integers())
def test_once_goes_back_only_when_asked(outcome, attempt, seed):
    """A `once` job that was started goes back only by the handler's own Retry or Snooze."""
    decision = decided(outcome, ONCE, attempt, seed)

    asked = isinstance(outcome, Snoozed) or (isinstance(outcome, Transient) and outcome.explicit)
    if decision.disposition in GOES_BACK:
        assert asked


@example(outcome=Transient("e", math.nan), attempt=FIRST, seed=1)
@example(outcome=Snoozed(math.nan), attempt=FIRST, seed=1)
@example(outcome=Snoozed(math.inf), attempt=FIRST, seed=1)
@example(outcome=Snoozed(-math.inf), attempt=FIRST, seed=1)
@given(outcome=FAILURES, attempt=ATTEMPTS, seed=st.integers())
def test_delay_is_always_a_bounded_number(outcome, attempt, seed):
    """Infinity, negative numbers and NaN from a handler never reach the store as a delay."""
    delay = decided(outcome, REPEATABLE, attempt, seed).delay_seconds

    assert 0.0 <= delay <= 600.0


def test_snooze_of_nan_is_a_bounded_number():
    """A handler that snoozes for NaN seconds comes back within the bounds all the same."""
    assert 0.5 <= decided(Snoozed(math.nan)).delay_seconds <= 600.0


@given(outcome=FAILURES, attempt=ATTEMPTS, seed=st.integers())
def test_decide_is_a_function_of_its_arguments(outcome, attempt, seed):
    """The same job, outcome, policy and randomness decide the same way."""
    assert decided(outcome, REPEATABLE, attempt, seed) == decided(outcome, REPEATABLE, attempt, seed)
