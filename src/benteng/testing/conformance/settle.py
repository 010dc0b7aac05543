"""Promises of `settle` and `turn`: an attempt ends once, by its holder, within the bounds of the policy."""

from __future__ import annotations

import dataclasses
import math

import pytest
from msgspec.structs import replace

from benteng.decide import Disposition
from benteng.job import Attempt, Grant
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import Tier
from benteng.testing.bench import Bench, proof, quarantine, records, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import CHIEF, HIGH, LOW, MEDIUM, ONCE, PARENT, make_policy

BACK = [Disposition.RETRY, Disposition.CRASH, Disposition.SNOOZE, Disposition.HAND_BACK, Disposition.INTERRUPT]


class SettlePromises(Promises):
    """Verb `settle`."""

    def test_completed_job_keeps_its_result(self, bench: Bench) -> None:
        """Completed with the exact bytes of the result."""
        grant = bench.started(MEDIUM, operation="a")

        (answer,) = bench.settle(settlement(grant, result=b'{"n":1}'))

        assert (grant.job.id, State.COMPLETED) == (answer.job_id, answer.state)
        view = bench.view(grant.job.id)
        assert (State.COMPLETED, b'{"n":1}', bench.clock()) == (view.state, view.result, view.finished_at)

    def test_retry_waits_and_counts(self, bench: Bench) -> None:
        """A retried job is scheduled for its delay, with its error, and its attempt stays spent."""
        grant = bench.started()

        (answer,) = bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=7.0, error="db away"))

        view = bench.view(grant.job.id)
        assert State.SCHEDULED is answer.state
        assert (1, 0, "db away", bench.clock() + 7_000_000) == (
            view.attempts,
            view.crashes,
            view.error,
            view.available_at,
        )

    @pytest.mark.parametrize("disposition", list(Disposition))
    @pytest.mark.parametrize("cancelled", [False, True])
    def test_what_an_attempt_did_with_the_network_is_in_its_record(
        self, bench: Bench, disposition: Disposition, *, cancelled: bool
    ) -> None:
        """However it ends; the error that people read stays as it was."""
        grant = bench.started()
        if cancelled:
            bench.producer.cancel([grant.job.id], "not wanted")

        bench.settle(settlement(grant, disposition, error="it says", connects=3, refused=1))

        record, view = records(bench.audit())[-1], bench.view(grant.job.id)
        assert ("running", view.state) == (record["state_from"], record["state_to"])
        silent = view.state in {State.COMPLETED, State.CANCELLED}
        assert f"egress connects=3 refused=1{'' if silent else '; it says'}" == record["detail"]
        assert "egress" not in view.error

    @pytest.mark.parametrize(
        "counts, error, detail",
        [
            ((0, 0), "it says", "it says"),
            ((0, 0), "egress connects=9 refused=0", "egress connects=0 refused=0; egress connects=9 refused=0"),
            ((1 << 70, -5), "", "egress connects=1000000000 refused=0"),
            ((-(1 << 70), 1), "", "egress connects=0 refused=1"),
        ],
        ids=["none", "forged", "too-many", "negative"],
    )
    def test_counts_of_an_attempt_are_bounded_and_not_forged(
        self, bench: Bench, counts: tuple[int, int], error: str, detail: str
    ) -> None:
        """A detail that begins so was said by the store, whatever text a handler has for its error."""
        grant = bench.started()

        connects, refused = counts
        bench.settle(settlement(grant, Disposition.RETRY, error=error, connects=connects, refused=refused))

        assert detail == records(bench.audit())[-1]["detail"]

    def test_next_attempt_has_the_next_number(self, bench: Bench) -> None:
        """Attempts are numbered from 1 and say how many crashes, hand-backs and snoozes came before."""
        grant = bench.started()
        seen = [grant.attempt]
        for disposition in (Disposition.CRASH, Disposition.INTERRUPT, Disposition.SNOOZE):
            bench.settle(settlement(grant, disposition, delay_seconds=1.0))
            bench.due()
            (grant,) = bench.claim()
            seen.append(grant.attempt)

        assert [Attempt(1), Attempt(2, 1), Attempt(2, 1, 1), Attempt(2, 1, 1, 1)] == seen

    def test_attempts_are_bounded_whatever_the_worker_says(self, bench: Bench) -> None:
        """A worker that always asks for a retry gets `attempts_max` tries, then the job is exhausted (I7)."""
        job, tries = bench.admitted(), 0
        while grants := bench.claim():
            tries += 1
            bench.settle(settlement(grants[0], Disposition.RETRY, delay_seconds=1.0))
            bench.due()

        view = bench.view(job.id)
        assert (3, State.QUARANTINED, QuarantineReason.EXHAUSTED) == (tries, view.state, view.reason)

    def test_crashes_are_bounded_whatever_the_worker_says(self, bench: Bench) -> None:
        """Crash after crash ends in quarantine as crashed, after `crashes_max` (case C26)."""
        job, tries = bench.admitted(), 0
        while grants := bench.claim():
            tries += 1
            bench.settle(settlement(grants[0], Disposition.CRASH, delay_seconds=1.0))
            bench.due()

        assert (2, QuarantineReason.CRASHED) == (tries, bench.view(job.id).reason)

    @pytest.mark.parametrize("disposition", [Disposition.HAND_BACK, Disposition.INTERRUPT])
    def test_hand_backs_are_bounded_whatever_the_worker_says(self, bench: Bench, disposition: Disposition) -> None:
        """Free returns are counted; beyond `handbacks_max` each costs an attempt, so that there is an end."""
        job, tries = bench.admitted(), 0
        while grants := bench.claim():
            tries += 1
            started = disposition is Disposition.INTERRUPT
            bench.settle(settlement(grants[0], disposition, started=started))
            bench.due()
            assert tries < 20

        assert 2 + 3 == tries
        assert State.QUARANTINED is bench.state(job.id)

    def test_snoozes_are_bounded_whatever_the_worker_says(self, bench: Bench) -> None:
        """Beyond `snoozes_max` a snooze ends as exhausted."""
        job, tries = bench.admitted(), 0
        while grants := bench.claim():
            tries += 1
            bench.settle(settlement(grants[0], Disposition.SNOOZE, delay_seconds=1.0))
            bench.due()
            assert tries < 20

        assert (3, QuarantineReason.EXHAUSTED) == (tries, bench.view(job.id).reason)

    def test_hand_back_gives_attempt_and_start_back(self, bench: Bench) -> None:
        """An attempt that never reached user code is as if it had not been, but for its number."""
        grant = bench.started()
        bench.settle(settlement(grant, Disposition.HAND_BACK, started=False))

        view = bench.view(grant.job.id)

        assert (State.READY, 0, 0, 1) == (view.state, view.attempts, view.starts, view.handbacks)

    def test_interrupt_gives_the_attempt_back_but_not_the_start(self, bench: Bench) -> None:
        """A drain kill is free, but user code was started: the operation will be kept."""
        grant = bench.started()
        bench.settle(settlement(grant, Disposition.INTERRUPT))

        view = bench.view(grant.job.id)

        assert (State.READY, 0, 1, 1) == (view.state, view.attempts, view.starts, view.handbacks)

    def test_hold_by_the_second_judgement(self, bench: Bench) -> None:
        """A job that the second judgement holds waits, with the rule, and its attempt is given back."""
        grant = bench.started()
        bench.settle(settlement(grant, Disposition.HOLD, rule="R7", error="why", started=False))

        view = bench.view(grant.job.id)

        assert (State.HELD, 0, 0, "R7") == (view.state, view.attempts, view.starts, view.rule)
        assert [] == bench.claim()

    @pytest.mark.parametrize("reason", sorted(set(QuarantineReason) - {QuarantineReason.UNCERTAIN}))
    def test_quarantine_keeps_reason_rule_and_error(self, bench: Bench, reason: QuarantineReason) -> None:
        """What cannot go on is set aside with its context, and does not start again by itself."""
        grant = bench.started()

        (answer,) = bench.settle(quarantine(grant, reason, rule="R3"))

        view = bench.view(grant.job.id)
        assert (State.QUARANTINED, reason, "R3", "an error") == (view.state, view.reason, view.rule, view.error)
        assert reason is answer.reason
        bench.due(86_400)
        assert [] == bench.claim()

    def test_alone_is_remembered(self, bench: Bench) -> None:
        """A job that sat beside a crash is granted next time with `alone`."""
        grant = bench.started()
        bench.settle(settlement(grant, Disposition.INTERRUPT, alone=True))

        assert (False, True) == (grant.alone, bench.claim()[0].alone)

    @pytest.mark.parametrize(
        "asked, given",
        [(0.0, 0.5), (-5.0, 0.5), (7.0, 7.0), (1e12, 60.0), (math.inf, 60.0), (-math.inf, 0.5), (math.nan, None)],
    )
    def test_backoff_is_bounded_whatever_the_worker_says(self, bench: Bench, asked: float, given: float | None) -> None:
        """A delay is kept between the policy's least and longest; NaN becomes some delay within them."""
        grant = bench.started()
        bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=asked))

        seconds = (bench.view(grant.job.id).available_at - bench.clock()) / 1e6

        assert 0.5 <= seconds <= 60.0
        assert given is None or math.isclose(given, seconds)

    @pytest.mark.parametrize("asked", [-1.0, 300.0, 1e12, math.inf, math.nan])
    def test_snooze_is_bounded_whatever_the_worker_says(self, bench: Bench, asked: float) -> None:
        """A snooze is at most `snooze_seconds_max` long."""
        grant = bench.started()
        bench.settle(settlement(grant, Disposition.SNOOZE, delay_seconds=asked))

        seconds = (bench.view(grant.job.id).available_at - bench.clock()) / 1e6

        assert 0 < seconds <= 600.0
        assert asked != 300.0 or math.isclose(300.0, seconds)

    @pytest.mark.parametrize("holds", [False, True])
    def test_forged_settlements_change_nothing(self, bench: Bench, *, holds: bool) -> None:
        """A wrong token, a wrong fence, another pool: not accepted, nothing happens (I4)."""
        grant = bench.started()
        forged = [
            replace(proof(grant), token="x" * len(grant.lease.token)),
            replace(proof(grant), token=""),
            replace(proof(grant), fence=grant.lease.fence + 1),
            replace(proof(grant), fence=grant.lease.fence - 1),
            replace(proof(grant), job_id="01890000-0000-7000-8000-000000000000"),
        ]
        before = bench.view(grant.job.id)

        answers = [bench.settle(replace(settlement(grant, holds=holds), proof=each)) for each in forged]
        answers.append(bench.settle(settlement(grant, holds=holds), consumer=bench.elsewhere))

        assert [[]] * 6 == answers
        after = bench.view(grant.job.id)
        assert dataclasses.replace(before, audit=()) == dataclasses.replace(after, audit=())
        assert [grant.job.id] == [answer.job_id for answer in bench.settle(settlement(grant, holds=holds))]

    def test_stale_settlement_is_recorded(self, bench: Bench) -> None:
        """A try with an old lease leaves one record about the job, and no transition."""
        old = bench.started()
        bench.advance(31)
        bench.reclaim()
        bench.claim()
        before = len(bench.audit())

        assert [] == bench.settle(settlement(old))

        (record,) = records(bench.audit()[before:])
        assert old.job.id == record["job_id"]
        assert record["state_from"] == record["state_to"]

    def test_stale_settle_is_refused(self, bench: Bench) -> None:
        """A worker whose lease was taken over cannot change the job; the new holder can."""
        old = bench.started()
        bench.advance(31)
        bench.reclaim()
        (new,) = bench.claim()

        assert old.lease.fence < new.lease.fence
        for disposition in (*BACK, Disposition.COMPLETE, Disposition.QUARANTINE):
            assert [] == bench.settle(settlement(old, disposition, reason=QuarantineReason.PERMANENT))
        assert [new.job.id] == [answer.job_id for answer in bench.settle(settlement(new))]

    @pytest.mark.parametrize("holds", [False, True])
    def test_old_fence_with_new_token_is_refused(self, bench: Bench, *, holds: bool) -> None:
        """Both are compared: neither the current token nor the current fence alone opens anything."""
        old = bench.started()
        bench.advance(31)
        bench.reclaim()
        (new,) = bench.claim()
        mixed = [replace(proof(old), token=new.lease.token), replace(proof(new), token=old.lease.token)]

        assert [[], []] == [bench.settle(replace(settlement(new, holds=holds), proof=each)) for each in mixed]

    @pytest.mark.parametrize("holds", [False, True])
    def test_repeated_settlement_changes_nothing(self, bench: Bench, *, holds: bool) -> None:
        """The same settlement sent again, as after a lost answer, is not accepted twice."""
        grant = bench.started()
        bench.settle(settlement(grant, result=b"1", holds=holds))

        assert [] == bench.settle(settlement(grant, result=b"2", holds=holds))
        assert b"1" == bench.view(grant.job.id).result

    def test_same_id_twice_in_a_batch_counts_once(self, bench: Bench) -> None:
        """The first settlement of a job in a batch counts."""
        grant = bench.started()

        answers = bench.settle(settlement(grant, result=b"1"), settlement(grant, Disposition.RETRY, delay_seconds=1.0))

        assert [State.COMPLETED] == [answer.state for answer in answers]
        assert [State.COMPLETED] == [bench.state(grant.job.id)]

    @pytest.mark.parametrize("holds", [False, True])
    def test_forged_proof_beside_the_right_one_takes_nothing(self, bench: Bench, *, holds: bool) -> None:
        """In a batch too each proof is compared whole, and an attempt is ended by the first that proves it."""
        one, other = bench.started(), bench.started()
        forged = replace(proof(one), token="x" * len(one.lease.token))
        batch = [settlement(one, result=b"1"), settlement(other), settlement(one, result=b"2")]
        batch.insert(0, replace(batch[0], proof=forged))

        answers = bench.settle(*(replace(each, holds=holds) for each in batch))

        assert {one.job.id, other.job.id} == {answer.job_id for answer in answers}
        assert 2 == len(answers)
        assert b"1" == bench.view(one.job.id).result

    def test_worker_that_is_wrong_about_resources_lets_them_go(self, bench: Bench) -> None:
        """It says that its jobs have none: the one that has ends as all others do, and so do those beside it."""
        one, other = bench.started(LOW), bench.started(MEDIUM, operation="a", resources=("host:a",))
        waiting = bench.admitted(MEDIUM, operation="b", resources=("host:a",))
        assert [] == bench.claim()
        before = len(bench.audit())

        batch = [settlement(each, holds=False) for each in (other, one, one)]
        answers = bench.settle(*batch)

        assert [other.job.id, one.job.id] == [answer.job_id for answer in answers]
        told = sorted(each["event"] for each in records(bench.audit()[before:]) if each["rule"] != "S-stale")
        assert ["completed", "completed", "woken"] == told
        assert [waiting.id] == [grant.job.id for grant in bench.claim()]

    def test_stale_one_does_not_stop_the_batch(self, bench: Bench) -> None:
        """Around a settlement that was fenced off the others are accepted (I15)."""
        grants = [bench.started() for _ in range(3)]
        bad = replace(proof(grants[1]), token="forged")  # noqa: S106 - a forged token
        batch = [settlement(grant) for grant in grants]
        batch[1] = replace(batch[1], proof=bad)

        answers = bench.settle(*batch)

        assert {grants[0].job.id, grants[2].job.id} == {answer.job_id for answer in answers}

    def test_settle_after_the_lease_end_before_reclaim_is_accepted(self, bench: Bench) -> None:
        """Nobody took over: knowing how it ended is better than doing it again."""
        grant = bench.started(ONCE, operation="a")
        bench.advance(1_000)

        assert [State.COMPLETED] == [answer.state for answer in bench.settle(settlement(grant))]

    def test_explicit_retry_of_once_is_accepted(self, bench: Bench) -> None:
        """A `once` handler that says Retry runs again."""
        grant = bench.started(ONCE, operation="a")
        bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=1.0))
        bench.due()

        assert [grant.job.id] == [again.job.id for again in bench.claim()]

    def test_uncertain_waits_for_a_person(self, bench: Bench) -> None:
        """An uncertain job does not run again, and its key stays taken."""
        grant = bench.started(ONCE, operation="a")
        bench.settle(quarantine(grant, QuarantineReason.UNCERTAIN))
        bench.due(86_400)
        bench.reclaim()

        assert [] == bench.claim()
        assert QuarantineReason.UNCERTAIN is bench.view(grant.job.id).reason

    def test_result_above_its_limit_still_completes(self, bench: Bench) -> None:
        """Finished work is not lost because its result is too large: a marker stands in its place (case C87)."""
        grant = bench.started()
        large = b'"' + b"x" * LOW.limits.result_bytes_max + b'"'

        (answer,) = bench.settle(settlement(grant, result=large))

        assert State.COMPLETED is answer.state
        assert len(bench.view(grant.job.id).result or b"") < 1_000

    def test_each_settlement_has_its_record(self, bench: Bench) -> None:
        """Where an attempt went is in the log, with its fence."""
        grant = bench.started()
        bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=1.0))

        record = records(bench.audit())[-1]

        assert ("retried", "running", "scheduled", grant.lease.fence) == tuple(
            record[name] for name in ("event", "state_from", "state_to", "fence")
        )


class SuccessorPromises(Promises):
    """Successors: what a completing job may add."""

    def test_successor_enters_with_the_completion(self, bench: Bench) -> None:
        """A listed successor is there when the completion is, knows its parent, and may start."""
        parent = bench.started(PARENT, operation="a")
        child = bench.job(LOW)

        bench.settle(settlement(parent, successors=(child,)))

        view = bench.view(child.id)
        assert (State.READY, parent.job.id) == (view.state, view.parent)
        assert [child.id] == [grant.job.id for grant in bench.claim()]

    def test_high_successor_is_held(self, bench: Bench) -> None:
        """A HIGH successor waits for agreement."""
        parent = bench.started(CHIEF, operation="a")
        child = bench.job(HIGH, operation="c")

        bench.settle(settlement(parent, successors=(child,)))

        assert (Tier.HIGH, State.HELD) == (child.tier, bench.state(child.id))

    @pytest.mark.parametrize("case", ["unlisted", "higher-tier", "other-actor", "other-origin", "unknown-type"])
    def test_successor_that_is_not_allowed_does_not_enter(self, bench: Bench, case: str) -> None:
        """Only listed types, of at most the parent's tier, by its actor and origin; the completion stands."""
        parent = bench.started(PARENT, operation="a")
        child = {
            "unlisted": bench.job(ONCE, operation="c"),
            "higher-tier": bench.job(HIGH, operation="c"),
            "other-actor": bench.job(LOW, actor="svc:other"),
            "other-origin": bench.job(LOW, origin="svc:other"),
            "unknown-type": bench.job(make_policy("t.unknown@1")),
        }[case]
        good = bench.job(LOW)

        (answer,) = bench.settle(settlement(parent, successors=(child, good)))

        assert State.COMPLETED is answer.state
        assert bench.operator.show(child.id) is None
        assert State.READY is bench.state(good.id)

    @pytest.mark.parametrize("disposition", BACK)
    def test_only_completion_adds_successors(self, bench: Bench, disposition: Disposition) -> None:
        """A job that goes back adds nothing, whatever came with the settlement."""
        parent = bench.started(PARENT, operation="a")
        child = bench.job(LOW)

        bench.settle(
            settlement(parent, disposition, delay_seconds=1.0, successors=(child,), started=disposition is not BACK[3])
        )

        assert bench.operator.show(child.id) is None

    def test_stale_settlement_adds_no_successor(self, bench: Bench) -> None:
        """A zombie's follow-up does not enter (case C05)."""
        parent = bench.started(PARENT, operation="a")
        bench.advance(31)
        bench.reclaim()
        child = bench.job(LOW)

        assert [] == bench.settle(settlement(parent, successors=(child,)))
        assert bench.operator.show(child.id) is None

    def test_same_successor_twice_is_one_job(self, bench: Bench) -> None:
        """A successor whose operation exists already is suppressed like any duplicate."""
        bench.admitted(MEDIUM, operation="c", priority=9)
        parent = bench.started(PARENT, operation="a", priority=0)
        child = bench.job(MEDIUM, operation="c")

        bench.settle(settlement(parent, successors=(child,)))

        assert bench.operator.show(child.id) is None


class TurnPromises(Promises):
    """Verb `turn`."""

    def test_turn_settles_then_claims(self, bench: Bench) -> None:
        """What the settlement freed can be in the same answer's grants."""
        grant = bench.started(MEDIUM, operation="1", resources=("host:a",))
        waiter = bench.admitted(MEDIUM, operation="2", resources=("host:a",))
        bench.claim()

        turn = bench.consumer.turn([settlement(grant)], 1, [MEDIUM.name])
        bench.journal.settled(turn.settled)
        bench.journal.grants(turn.grants)

        assert [grant.job.id] == [answer.job_id for answer in turn.settled]
        assert [waiter.id] == [each.job.id for each in turn.grants]

    def test_turn_says_what_attempts_did_with_the_network(self, bench: Bench) -> None:
        """As settle: each record begins with the counts of its own attempt, in whatever order they are told."""
        bench.admit(*(bench.job() for _ in range(3)))
        grants = bench.claim(3)[::-1]

        turn = bench.consumer.turn([settlement(g, connects=n) for n, g in enumerate(grants)], 1, [LOW.name])
        bench.journal.settled(turn.settled)

        told = {each["job_id"]: each["detail"] for each in records(bench.audit()) if each["event"] == "completed"}
        wanted = ["", "egress connects=1 refused=0", "egress connects=2 refused=0"]
        assert {g.job.id: text for g, text in zip(grants, wanted, strict=True)} == told

    def test_turn_with_nothing(self, bench: Bench) -> None:
        """Nothing to settle and no slot free: an empty answer."""
        bench.admitted()

        turn = bench.consumer.turn([], 0, [LOW.name])

        assert ((), ()) == (tuple(turn.settled), tuple(turn.grants))

    def test_turn_keeps_the_promises_of_both(self, bench: Bench) -> None:
        """A stale settlement is not accepted, and never more than n start."""
        bench.admit(*(bench.job() for _ in range(3)))
        old: Grant = bench.claim()[0]
        stale = replace(settlement(old), proof=replace(proof(old), fence=old.lease.fence + 9))

        turn = bench.consumer.turn([stale], 1, [LOW.name])
        bench.journal.grants(turn.grants)

        assert ([], 1) == (list(turn.settled), len(turn.grants))

    def test_turn_in_steps(self, bench: Bench) -> None:
        """Begun, looked at and taken it does what it does in one; what is asked meanwhile waits for its end."""
        done, running = bench.admitted(), bench.admitted()
        first, second = bench.claim(2)
        waiter = bench.admitted()

        asked = bench.consumer.turning([settlement(first)], 1, [LOW.name])
        asked.begin()
        (extension,) = bench.consumer.extend([proof(second)])
        come = asked.has_come()
        foreseen = asked.foresee()
        turn = asked.take()
        bench.journal.settled(turn.settled)
        bench.journal.grants(turn.grants)

        assert foreseen in (None, turn)
        assert {first.job.id, second.job.id} == {done.id, running.id}
        assert (True, False) == (come, extension.lost)
        assert [(first.job.id, State.COMPLETED)] == [(each.job_id, each.state) for each in turn.settled]
        assert [waiter.id] == [each.job.id for each in turn.grants]

    def test_turn_in_steps_with_nothing(self, bench: Bench) -> None:
        """Nothing to settle and no slot free: there is nothing to wait for."""
        asked = bench.consumer.turning([], 0, [LOW.name])
        asked.begin()

        assert (-1, True) == (asked.fileno(), asked.has_come())
        assert ((), ()) == (asked.take().settled, asked.take().grants)
