"""Promises of the keeper: `reclaim`, `stage`, `purge`, `lead`."""

from __future__ import annotations

import pytest

from benteng.decide import Disposition
from benteng.job import Job
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.policy import TypePolicy
from benteng.store.records import Disposal
from benteng.testing.bench import Bench, proof, quarantine, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import BRIEF, HIGH, LOW, MEDIUM, ONCE, Twin, make_policy, type_row


class ReclaimPromises(Promises):
    """Verb `reclaim`."""

    def test_lease_that_runs_is_left_alone(self, bench: Bench) -> None:
        """Until the last instant of the lease nothing is taken back, also not by a second keeper at its start (C16)."""
        grant = bench.started()
        bench.advance(29.9)

        assert [] == bench.ledger.keeper().reclaim(10)
        assert State.RUNNING is bench.state(grant.job.id)

    def test_lost_job_is_ready_again_and_the_crash_counted(self, bench: Bench) -> None:
        """A repeatable job whose lease ran out is ready, with one crash and its attempt spent (case C08)."""
        grant = bench.started()
        bench.advance(31)

        (answer,) = bench.reclaim()

        view = bench.view(grant.job.id)
        assert (grant.job.id, State.READY) == (answer.job_id, answer.state)
        assert (State.READY, 1, 1) == (view.state, view.attempts, view.crashes)
        assert 2 == bench.claim()[0].attempt.number

    def test_poison_job_ends_as_crashed(self, bench: Bench) -> None:
        """A job that kills its worker each time is quarantined as crashed after `crashes_max` (case C26)."""
        job, tries = bench.admitted(), 0
        while bench.claim():
            tries += 1
            bench.advance(31)
            bench.reclaim()

        assert (2, QuarantineReason.CRASHED) == (tries, bench.view(job.id).reason)

    def test_once_is_uncertain(self, bench: Bench) -> None:
        """A `once` job whose worker vanished is never run again by itself (case C100)."""
        grant = bench.started(ONCE, operation="a")
        bench.advance(31)

        (answer,) = bench.reclaim()

        assert (State.QUARANTINED, QuarantineReason.UNCERTAIN) == (answer.state, answer.reason)
        assert OperationState.UNCERTAIN is bench.view(grant.job.id).operation
        assert [] == bench.claim()

    def test_reclaim_twice_is_reclaim_once(self, bench: Bench) -> None:
        """A second pass finds nothing: the crash is counted once."""
        grant = bench.started()
        bench.advance(31)
        bench.reclaim()

        assert [] == bench.reclaim()
        assert 1 == bench.view(grant.job.id).crashes

    def test_reclaim_takes_up_to_n(self, bench: Bench) -> None:
        """Bounded batches, and after enough of them nothing is left (case C13)."""
        bench.admit(*(bench.job() for _ in range(7)))
        bench.claim(7)
        bench.advance(31)

        assert [3, 3, 1, 0] == [len(bench.reclaim(3)) for _ in range(4)]

    def test_settled_job_is_not_reclaimed(self, bench: Bench) -> None:
        """Completed stays completed, whatever the lease said (cases C17, C20)."""
        grant = bench.started()
        bench.advance(31)
        bench.settle(settlement(grant))

        assert [] == bench.reclaim()
        assert State.COMPLETED is bench.state(grant.job.id)

    def test_renewed_lease_is_not_reclaimed(self, bench: Bench) -> None:
        """The lease that counts is the one on the job now."""
        grant = bench.started()
        bench.advance(29)
        bench.consumer.extend([proof(grant)])
        bench.advance(29)

        assert [] == bench.reclaim()

    def test_lease_that_began_after_the_last_look_ends_in_time(self, bench: Bench) -> None:
        """However often nothing was found: the first look at or after the end of a lease takes the job back (L1)."""
        long = bench.started(operation="long")
        found: list[tuple[int, str]] = []
        for _ in range(3):
            assert [] == bench.reclaim()
            bench.advance(1)
        late = bench.started(operation="late")
        for second in range(40):
            bench.consumer.extend([proof(long)])
            found += [(second, answer.job_id) for answer in bench.reclaim()]
            bench.advance(1)

        assert [(30, late.job.id)] == found

    def test_short_lease_beside_a_long_one_ends_in_time(self, bench: Bench) -> None:
        """Who looked at long leases alone still finds the short one that began since."""
        patient = make_policy(MEDIUM.name, MEDIUM.tier, limits={"lease_seconds": 600.0})
        bench.operator.apply_types([type_row(patient)], "a longer lease")
        bench.started(patient, operation="long")
        bench.reclaim()
        grant = bench.started()
        bench.advance(30)

        assert [grant.job.id] == [answer.job_id for answer in bench.reclaim()]

    @pytest.mark.parametrize("looks", [True, False], ids=["looked-before", "never-looked"])
    def test_shorter_lease_of_a_new_policy_ends_in_time(self, bench: Bench, looks: bool) -> None:  # noqa: FBT001 - a case
        """What starts under a policy with a shorter lease comes back by that one, also right after a look."""
        bench.started(MEDIUM, operation="a")
        if looks:
            assert [] == bench.reclaim()
        brisk = make_policy(LOW.name, limits={"lease_seconds": 2.0})
        bench.operator.apply_types([type_row(brisk)], "a shorter lease")
        grant = bench.started(brisk)
        bench.advance(2)

        assert [grant.job.id] == [answer.job_id for answer in bench.reclaim()]

    def test_damaged_row_does_not_stop_the_others(self, ledger: Twin, bench: Bench) -> None:
        """One running row that cannot be read: the others are taken back (I15)."""
        jobs = [bench.job() for _ in range(3)]
        bench.admit(*jobs)
        bench.claim(3)
        ledger.damage(jobs[1].id)
        bench.advance(31)

        reclaimed = {answer.job_id for answer in bench.reclaim()}

        assert {jobs[0].id, jobs[2].id} <= reclaimed


class StagePromises(Promises):
    """Verb `stage`."""

    def test_due_jobs_become_ready(self, bench: Bench) -> None:
        """Who is due is ready, who is not waits; the answer says how many and when the next is due."""
        due = bench.admitted(available_at=bench.clock() + 5_000_000)
        later = bench.admitted(available_at=bench.clock() + 65_000_000)
        bench.advance(5)

        staged = bench.stage()

        assert (1, 60.0) == (staged.ready, staged.next_seconds)
        assert ["ready", "scheduled"] == bench.states(due, later)

    def test_stage_takes_up_to_n(self, bench: Bench) -> None:
        """Bounded batches (case C52)."""
        bench.admit(*(bench.job(available_at=bench.clock() + 1_000_000) for _ in range(7)))
        bench.advance(2)

        assert [3, 3, 1, 0] == [bench.stage(3).ready for _ in range(4)]

    def test_expired_jobs_are_quarantined(self, bench: Bench) -> None:
        """Scheduled, ready and held jobs past `expires_at` are set aside and their keys freed: they never started."""
        until = bench.clock() + 60_000_000
        jobs = [
            bench.admitted(MEDIUM, operation="1", expires_at=until),
            bench.admitted(MEDIUM, operation="2", expires_at=until, available_at=until + 1),
            bench.admitted(MEDIUM, operation="3", expires_at=until, entry=State.HELD),
        ]
        bench.advance(61)

        staged = bench.stage()

        assert 3 == staged.expired
        assert [QuarantineReason.EXPIRED] * 3 == [bench.view(job.id).reason for job in jobs]
        assert [OperationState.FREED] * 3 == [bench.view(job.id).operation for job in jobs]

    def test_expired_retry_keeps_its_key(self, bench: Bench) -> None:
        """A job that started once and then expired keeps its key: something may have happened."""
        grant = bench.started(MEDIUM, operation="1", expires_at=bench.clock() + 10_000_000)
        bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=30.0))
        bench.due()

        assert OperationState.KEPT is bench.view(grant.job.id).operation

    def test_running_job_does_not_expire(self, bench: Bench) -> None:
        """`expires_at` is about starts: what runs goes on."""
        grant = bench.started(expires_at=bench.clock() + 10_000_000)
        bench.advance(20)

        assert 0 == bench.stage().expired
        assert [State.COMPLETED] == [answer.state for answer in bench.settle(settlement(grant))]

    def test_damaged_row_does_not_stop_the_round(self, ledger: Twin, bench: Bench) -> None:
        """One scheduled row that cannot be read: the others become ready (I15)."""
        jobs = [bench.admitted(available_at=bench.clock() + 1_000_000) for _ in range(3)]
        ledger.damage(jobs[1].id)
        bench.due()

        assert {jobs[0].id, jobs[2].id} == {grant.job.id for grant in bench.claim(5)}

    def test_next_seconds_knows_the_next_lease(self, bench: Bench) -> None:
        """With nothing scheduled the keeper may sleep until the first lease ends."""
        assert bench.stage().next_seconds is None
        bench.started()

        assert 30.0 == bench.stage().next_seconds

    def test_next_seconds_is_never_too_late(self, bench: Bench) -> None:
        """Whatever began or was renewed since the last look: no lease ends before, and None says that nothing runs."""
        grant = bench.started(operation="first")
        bench.stage()
        bench.advance(2)
        other = bench.started(operation="second")
        bench.consumer.extend([proof(grant)])

        assert 0 < (bench.stage().next_seconds or 0) <= 30.0
        bench.settle(settlement(grant), settlement(other))
        assert bench.stage().next_seconds is None

    def test_stage_twice_is_stage_once(self, bench: Bench) -> None:
        """Staging again finds nothing and records nothing."""
        job = bench.admitted(available_at=bench.clock() + 1_000_000)
        bench.due()
        bench.stage()

        assert ["admitted", "staged"] == bench.events(job.id)


class PurgePromises(Promises):
    """Verb `purge`."""

    def test_result_goes_after_its_retention(self, bench: Bench) -> None:
        """A result is kept for `result_keep_seconds`; then only the result goes, the operation still refuses."""
        grant = bench.started(MEDIUM, operation="a")
        bench.settle(settlement(grant, result=b"1"))
        bench.advance(3_599)
        assert 0 == bench.keeper.purge(100)
        assert b"1" == bench.view(grant.job.id).result

        bench.advance(2)

        assert 1 == bench.keeper.purge(100)
        (receipt,) = bench.admit(bench.job(MEDIUM, operation="a"))
        assert (Disposal.DUPLICATE, None) == (receipt.disposal, receipt.result)

    def test_operation_goes_after_its_retention(self, bench: Bench) -> None:
        """After `operation_keep_seconds` a completed operation no longer refuses a second one."""
        grant = bench.started(BRIEF, operation="a")
        bench.settle(settlement(grant))
        bench.advance(86_401)
        while bench.keeper.purge(1):
            pass

        (receipt,) = bench.admit(bench.job(BRIEF, operation="a"))

        assert Disposal.ADMITTED is receipt.disposal

    def test_operation_goes_in_time_however_long_results_are_kept(self, bench: Bench) -> None:
        """A type may keep results longer than operations: the operation does not outlive its own time."""
        keeps = make_policy("t.keeps@1", limits={"operation_keep_seconds": 86_400.0, "result_keep_seconds": 1e9})
        bench.operator.apply_types([type_row(keeps)], "a reason")
        done = bench.admitted(keeps, operation="a")
        (grant,) = bench.claim(1, [keeps.name])
        bench.settle(settlement(grant, result=b"1"))
        bench.advance(86_401)
        while bench.keeper.purge(100):
            pass

        (receipt,) = bench.admit(bench.job(keeps, operation="a"))

        assert Disposal.ADMITTED is receipt.disposal
        assert not bench.producer.status([done.id])

    def test_purge_is_bounded_and_leaves_the_rest(self, bench: Bench) -> None:
        """Up to n rows a call; jobs that are active, quarantined or HIGH are never purged."""
        active = bench.admitted(priority=9)
        for policy in (HIGH, LOW, LOW, LOW):
            grant = bench.started(policy, operation=policy.name + str(bench.clock()), priority=0)
            bench.settle(settlement(grant, result=b"1"))
            bench.advance(1)
        bench.advance(40 * 86_400)

        counts = [bench.keeper.purge(2) for _ in range(6)]

        assert max(counts) <= 2
        assert 0 == counts[-1]
        assert State.READY is bench.state(active.id)

    def test_what_ended_together_goes_each_in_its_own_time(self, bench: Bench) -> None:
        """Of jobs of one settlement each is forgotten by its own type's times, in calls however small; HIGH never."""
        types = (LOW, MEDIUM, BRIEF, HIGH, BRIEF)
        jobs = [bench.admitted(policy, operation=str(n)) for n, policy in enumerate(types)]
        bench.settle(*(settlement(grant, result=b"1") for grant in bench.claim(5)))
        brief = {jobs[2].id, jobs[4].id}

        assert ([b"1"] * 5, 0) == (self._results(bench, *jobs), self._drained(bench, 3_599))
        assert (5, [None] * 5) == (self._drained(bench, 2), self._results(bench, *jobs))
        assert (0, 5) == (self._drained(bench, 86_398 - 3_601), len(bench.producer.status([job.id for job in jobs])))
        assert 2 == self._drained(bench, 2)
        assert brief == {job.id for job in jobs} - {each.job_id for each in bench.producer.status([j.id for j in jobs])}
        assert [jobs[3].id] == self._left(bench, jobs, 400 * 86_400)

    def test_what_came_back_goes_by_its_last_end(self, bench: Bench) -> None:
        """A job that was set apart and replayed is kept from its completion on, not from when it was set apart."""
        grant = bench.started(BRIEF, operation="a")
        bench.settle(quarantine(grant))
        assert 0 == self._drained(bench, 90_000)
        bench.replay(grant.job)
        (again,) = bench.claim()
        bench.settle(settlement(again, result=b"1"))

        assert (0, [b"1"]) == (self._drained(bench, 3_599), self._results(bench, grant.job))
        assert (1, [None]) == (self._drained(bench, 2), self._results(bench, grant.job))
        assert [grant.job.id] == self._left(bench, [grant.job], 86_399 - 3_601)
        assert [] == self._left(bench, [grant.job], 2)

    @pytest.mark.parametrize("happened", [True, False], ids=["happened", "not-happened"])
    def test_what_a_person_resolved_goes_by_that_time(self, bench: Bench, *, happened: bool) -> None:
        """Whatever it was found to be, it is kept like any other end, from its resolution on."""
        grant = bench.started(ONCE, operation="a")
        bench.settle(quarantine(grant, QuarantineReason.UNCERTAIN))
        days = ONCE.limits.operation_keep_seconds or 0.0
        assert 0 == self._drained(bench, days + 1)
        bench.operator.resolve(grant.job.id, happened=happened, reason="seen")

        assert [grant.job.id] == self._left(bench, [grant.job], days - 1)
        assert [] == self._left(bench, [grant.job], 2)

    @pytest.mark.parametrize("policy", [BRIEF, HIGH], ids=["brief", "high"])
    @pytest.mark.parametrize("started", [False, True], ids=["never-started", "started"])
    @pytest.mark.parametrize("end", ["cancelled", "discarded", "cancelled-by-settle"])
    def test_what_was_stopped_goes_after_its_retention(
        self, bench: Bench, policy: TypePolicy, end: str, *, started: bool
    ) -> None:
        """Cancelled or discarded, it is kept like what completed; a key that it kept is free then. HIGH is for ever."""
        job = self._stopped(bench, policy, end, started=started)
        reuse = bench.admit(bench.job(policy, operation="a"))[0].disposal if policy is BRIEF else None

        assert reuse in {None, Disposal.DUPLICATE if started else Disposal.ADMITTED}
        assert (0, [job.id]) == (
            self._drained(bench, 86_398),
            [each.job_id for each in bench.producer.status([job.id])],
        )
        assert ([job.id] if policy is HIGH else []) == self._left(bench, [job], 2)
        if policy is BRIEF and started:
            assert Disposal.ADMITTED is bench.admit(bench.job(policy, operation="a"))[0].disposal

    def test_what_is_set_apart_stays_until_a_person_has_decided(self, bench: Bench) -> None:
        """However long it takes; its retention begins with the decision."""
        grant = bench.started(BRIEF, operation="a")
        bench.settle(quarantine(grant))

        assert [grant.job.id] == self._left(bench, [grant.job], 400 * 86_400)
        bench.operator.discard([grant.job.id], "a reason")
        assert [grant.job.id] == self._left(bench, [grant.job], 86_399)
        assert [] == self._left(bench, [grant.job], 2)

    @staticmethod
    def _stopped(bench: Bench, policy: TypePolicy, end: str, *, started: bool) -> Job:
        """Return a job that ended without being completed; started, if asked, before it came back to wait."""
        job = bench.admitted(policy, operation="a")
        if started:
            (grant,) = bench.claim()
            bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=1.0))
        if end == "cancelled":
            bench.operator.cancel([job.id], "a reason")
            return job
        if started:
            bench.due()
        (grant,) = bench.claim()
        if end == "discarded":
            bench.settle(quarantine(grant, started=False))
            bench.operator.discard([job.id], "a reason")
        else:
            bench.operator.cancel([job.id], "a reason")
            bench.settle(settlement(grant, Disposition.HAND_BACK))
        return job

    def test_second_end_changes_no_retention(self, bench: Bench) -> None:
        """A settlement of an attempt that is over moves no time, and nothing is forgotten twice."""
        grant = bench.started(BRIEF, operation="a")
        bench.settle(settlement(grant, result=b"1"))
        bench.advance(3_000)
        assert [] == bench.settle(settlement(grant, result=b"2"))

        assert 1 == self._drained(bench, 601)
        assert [None] == self._results(bench, grant.job)
        assert (1, 0) == (self._drained(bench, 86_400 - 3_601), self._drained(bench, 86_400))

    @staticmethod
    def _results(bench: Bench, *jobs: Job) -> list[bytes | None]:
        return [bench.view(job.id).result for job in jobs]

    @staticmethod
    def _drained(bench: Bench, seconds: float) -> int:
        """Move the clock, purge row by row until nothing is due, and return how many rows that were."""
        bench.advance(seconds)
        return sum(iter(lambda: bench.keeper.purge(1), 0))

    def _left(self, bench: Bench, jobs: list[Job], seconds: float) -> list[str]:
        """Move the clock, purge, and return which jobs' operations are still known."""
        self._drained(bench, seconds)
        return [each.job_id for each in bench.producer.status([job.id for job in jobs])]

    def test_purge_never_touches_the_audit(self, bench: Bench) -> None:
        """The log only grows."""
        grant = bench.started(BRIEF, operation="a")
        bench.settle(settlement(grant, result=b"1"))
        before = bench.audit()
        bench.advance(2 * 86_400)
        bench.keeper.purge(100)

        assert before == bench.audit()[: len(before)]


class LeadPromises(Promises):
    """Verb `lead`."""

    def test_one_leader_at_a_time(self, bench: Bench) -> None:
        """Whoever has the lease renews it; everybody else is told no, until it ends (case C31)."""
        other = bench.ledger.keeper()

        assert [True, False, True] == [bench.keeper.lead("k", 10), other.lead("k", 10), bench.keeper.lead("k", 10)]
        bench.advance(9)
        assert not other.lead("k", 10)
        bench.advance(2)
        assert [True, False] == [other.lead("k", 10), bench.keeper.lead("k", 10)]

    def test_names_are_independent(self, bench: Bench) -> None:
        """To lead one thing is not to lead another."""
        other = bench.ledger.keeper()

        assert [True, True] == [bench.keeper.lead("a", 10), other.lead("b", 10)]
