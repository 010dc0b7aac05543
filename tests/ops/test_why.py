"""`benteng why`: an answer for every state."""

from __future__ import annotations

from typing import Any

import pytest

from benteng.audit import AuditRecord, Event, body_bytes
from benteng.clock import SECOND
from benteng.config import PoolSettings
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import Job, Refs
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.ops.why import Answer, explain
from benteng.policy import Tier
from benteng.store.records import AuditRow, JobView, ResourceView

NOW = 1_700_000_000 * SECOND
JOB = "0190b8e0-0000-7000-8000-000000000001"
OTHER = "0190b8e0-0000-7000-8000-000000000002"
CANARY = "s3cret-canary"


def view(state=State.READY, *, events=(), tier=Tier.LOW, **changes):
    """A job as the store shows it, ten minutes after its admission, in a pool with a live worker."""
    job = Job(
        id=JOB,
        type="greet@1",
        tier=tier,
        payload=b'{"name":"' + CANARY.encode() + b'"}',
        payload_sha256="0" * 64,
        operation_key="1" * 64,
        origin="os:1000",
        refs=Refs(resources=("host:web-7",)),
    )
    facts: dict[str, Any] = dict.fromkeys(["attempts", "crashes", "handbacks", "snoozes", "starts"], 0)
    facts |= {"admitted_at": NOW - 600 * SECOND, "available_at": 0, "finished_at": 0, "now": NOW}
    facts |= {"pool": "default", "worker_seen_at": NOW - SECOND, "audit": tuple(map(row, events))}
    return JobView(job=job, state=state, **facts | changes)


def row(event):
    """An audit row of an event, one minute ago."""
    record = AuditRecord(at_us=NOW - 60 * SECOND, event=event, job_id=JOB)
    return AuditRow(1, b"", b"", body_bytes(record))


def why(job_view, known=("greet@1",)):
    """The answer as one text."""
    return text(explain(job_view, known))


def text(answer: Answer):
    """All words of an answer."""
    return "\n".join([answer.headline, *answer.facts, *(f"{step.command} {step.does}" for step in answer.steps)])


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("tier", Tier)
def test_every_state_has_an_answer(state, tier):
    """Whatever the state: a sentence, and nothing of the payload."""
    answer = explain(view(state, tier=tier), ["greet@1"])

    assert answer.headline
    assert CANARY not in text(answer)


@pytest.mark.parametrize("reason", QuarantineReason)
@pytest.mark.parametrize("operation", OperationState)
def test_every_quarantine_says_what_can_be_done(reason, operation):
    """Whatever brought it there: the reason in words, and a command."""
    answer = explain(view(State.QUARANTINED, reason=reason, operation=operation), ["greet@1"])

    assert f"quarantine as {reason}" in answer.headline
    assert any(step.command.startswith("benteng ") and JOB in step.command for step in answer.steps)


@pytest.mark.parametrize("state", [s for s in State if s not in (State.COMPLETED, State.CANCELLED, State.DISCARDED)])
def test_an_unfinished_job_says_since_when_or_until_when(state):
    """A person sees whether it hangs."""
    assert "since " in why(view(state)) or "due " in why(view(state))


def test_a_ready_job_that_nothing_stops_says_so():
    """No false alarm."""
    assert "it can start now" in why(view())


def test_a_ready_job_without_a_worker_names_the_pool_and_the_command():
    """The commonest reason of all: nobody runs the pool."""
    said = why(view(pool="patch", worker_seen_at=NOW - 3600 * SECOND))

    assert "no worker of pool patch is alive" in said
    assert "benteng worker --pool patch" in said
    assert "1 h ago" in said


def test_a_ready_job_of_an_unknown_type_waits_for_it():
    """A version that no ledger row knows is never thrown away; it says what it waits for."""
    assert "no worker knows the type greet@1" in why(view(), known=["greet@2"])


def test_a_ready_job_behind_others_counts_them():
    """Waiting in line is not hanging."""
    assert "12 ready jobs of its pool come first" in why(view(ahead=12))


@pytest.mark.parametrize("state", [State.READY, State.SCHEDULED, State.BLOCKED, State.HELD])
@pytest.mark.parametrize(
    "scope,opens",
    [
        (ControlScope.TYPE, "kill --open greet@1 "),
        (ControlScope.POOL, "kill --open --pool greet@1 "),
        (ControlScope.ORIGIN, "kill --open --origin greet@1 "),
    ],
)
def test_a_closed_switch_is_named_with_its_reason_and_key(state, scope, opens):
    """Who meets a kill switch learns why it was closed and how it is opened."""
    said = why(view(state, waits_for="host:web-7", control=Control(scope, "greet@1", ControlMode.HALT, "bad deploy")))

    assert f"{scope} greet@1 is switched to halt (bad deploy)" in said
    assert opens in said


def test_a_blocked_job_names_the_holder_and_since_when():
    """Who holds the resource, by which fence, and how to look at that job."""
    held = ResourceView("host:web-7", OTHER, 42, waiting=3)

    said = why(view(State.BLOCKED, events=[Event.BLOCKED], waits_for="host:web-7", resources=(held,)))

    assert f"it waits for host:web-7, which job {OTHER} holds (fence 42)" in said
    assert "3 jobs wait for host:web-7" in said
    assert "(1 min)" in said
    assert f"benteng why {OTHER}" in said


def test_a_blocked_job_behind_an_uncertain_one_says_how_to_resolve_that():
    """A closed resource opens only by a person's word."""
    held = ResourceView("host:web-7", OTHER, 42, closed=True)

    said = why(view(State.BLOCKED, waits_for="host:web-7", resources=(held,)))

    assert f"uncertain job {OTHER} keeps closed" in said
    assert f"benteng quarantine resolve {OTHER} --happened" in said


def test_a_retry_says_when_and_after_which_error():
    """Backoff: the next try, how many are spent, and why."""
    said = why(view(State.SCHEDULED, attempts=2, available_at=NOW + 90 * SECOND, error="Timeout: upstream"))

    assert "its next try, due in 2 min" in said
    assert "2 attempts spent" in said
    assert "Timeout: upstream" in said


def test_a_due_job_that_was_not_staged_points_at_the_keeper():
    """Nobody makes it ready."""
    assert "benteng keeper" in why(view(State.SCHEDULED, available_at=NOW - 30 * SECOND))


def test_a_running_job_says_who_and_how_long_the_lease_lasts():
    """Lease remaining, worker and fence."""
    said = why(view(State.RUNNING, worker="w-1", attempts=1, fence=7, lease_until=NOW + 20 * SECOND))

    assert "worker w-1 runs it, attempt 1, fence 7" in said
    assert "its lease lasts 20 s more" in said
    assert f"benteng jobs cancel {JOB}" in said


def test_a_running_job_past_its_lease_says_that_it_is_taken_back():
    """Recovered by lease only."""
    assert "its lease ended 5.0 s ago" in why(view(State.RUNNING, lease_until=NOW - 5 * SECOND))


def test_an_uncertain_job_offers_to_resolve_and_not_to_replay():
    """Nobody knows whether it happened: running it again is not on offer."""
    said = why(view(State.QUARANTINED, reason=QuarantineReason.UNCERTAIN, operation=OperationState.UNCERTAIN))

    assert f"benteng quarantine resolve {JOB} --happened" in said
    assert f"benteng quarantine resolve {JOB} --not-happened" in said
    assert "benteng replay" not in said


def test_a_suspicious_job_must_be_classified_first():
    """It comes back only after a person has said that it is not hostile."""
    said = why(view(State.QUARANTINED, reason=QuarantineReason.SUSPICIOUS))

    assert said.index("quarantine classify") < said.index("benteng replay")


def test_a_refused_job_names_the_rule_and_the_error():
    """Which rule refused it."""
    quarantined = view(State.QUARANTINED, reason=QuarantineReason.REFUSED, rule="A-state", error="artifact is revoked")

    said = why(quarantined)

    assert "rule A-state" in said
    assert "artifact is revoked" in said


def test_high_says_that_another_person_must_agree():
    """Nobody is sent to a command that will refuse, without being told."""
    assert "needs an Action" in why(view(State.QUARANTINED, tier=Tier.HIGH, reason=QuarantineReason.CRASHED))


def test_an_erased_record_does_not_stop_the_answer():
    """Retention may have taken the history."""
    assert "since " in why(view(State.HELD, audit=(AuditRow(1, b"", None, None), AuditRow(2, b"", b"", b"\xff"))))


def test_a_pool_that_starts_few_or_does_not_accept_the_type_is_said():
    """What this host's workers are told to leave alone is why a job waits."""
    few = text(explain(view(), ["greet@1"], PoolSettings(starts_per_minute=5)))
    other = text(explain(view(), ["greet@1"], PoolSettings(types=("other@1",))))

    assert "starts at most 5 jobs a minute" in few
    assert "do not accept greet@1" in other
    assert "do not accept" not in text(explain(view(), ["greet@1"], PoolSettings(types=("greet@1",))))
