"""Promises about resources: all or none, parked without cost, and no wake-up lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benteng.decide import Disposition
from benteng.evidence import ControlMode
from benteng.job import Grant
from benteng.lifecycle import QuarantineReason, State
from benteng.testing.bench import Bench, proof, quarantine, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import HIGH, MEDIUM, ONCE, POOL, Twin

A, B, C = "host:a", "host:b", "host:c"


def _complete(bench: Bench, grant: Grant) -> None:
    bench.settle(settlement(grant))


def _retry(bench: Bench, grant: Grant) -> None:
    bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=50.0))


def _crash(bench: Bench, grant: Grant) -> None:
    bench.settle(settlement(grant, Disposition.CRASH, delay_seconds=50.0))


def _snooze(bench: Bench, grant: Grant) -> None:
    bench.settle(settlement(grant, Disposition.SNOOZE, delay_seconds=50.0))


def _hold(bench: Bench, grant: Grant) -> None:
    bench.settle(settlement(grant, Disposition.HOLD, rule="R1", started=False))


def _quarantine(bench: Bench, grant: Grant) -> None:
    bench.settle(quarantine(grant))


def _lose(bench: Bench, grant: Grant) -> None:
    bench.advance(grant.lease.seconds + 1)
    bench.reclaim()


RELEASES = pytest.mark.parametrize(
    "release",
    [_complete, _retry, _crash, _snooze, _hold, _quarantine, _lose],
    ids=lambda each: each.__name__.strip("_"),
)


class ResourcePromises(Promises):
    """One holder per resource, and somebody always gets the baton."""

    def test_all_or_none(self, bench: Bench) -> None:
        """A job with one busy key of two takes neither: a third job that needs only the free one starts."""
        bench.started(MEDIUM, operation="1", resources=(A,))
        both = bench.admitted(MEDIUM, operation="2", resources=(A, B))
        free = bench.admitted(MEDIUM, operation="3", resources=(B,))

        assert [free.id] == [grant.job.id for grant in bench.claim(5)]
        assert State.BLOCKED is bench.state(both.id)

    def test_blocked_job_spends_nothing(self, bench: Bench) -> None:
        """Waiting for a resource costs no attempt, start or fence; the view names what it waits for (I7)."""
        bench.started(MEDIUM, operation="1", resources=(A,))
        job = bench.admitted(MEDIUM, operation="2", resources=(A,))
        bench.claim(5)

        view = bench.view(job.id)

        assert (State.BLOCKED, 0, 0, A) == (view.state, view.attempts, view.starts, view.waits_for)

    def test_blocked_job_is_not_tried_again_and_again(self, bench: Bench) -> None:
        """A parked job sleeps until it is woken: claims write nothing about it (case C30)."""
        bench.started(MEDIUM, operation="1", resources=(A,))
        job = bench.admitted(MEDIUM, operation="2", resources=(A,))

        for _ in range(20):
            bench.claim(5)

        assert ["admitted", "blocked"] == bench.events(job.id)

    def test_blocked_jobs_at_the_head_hide_nobody(self, bench: Bench) -> None:
        """Behind jobs that must wait as many start as were asked for, and no more."""
        bench.started(MEDIUM, operation="1", resources=(A,))
        for name in ("2", "3"):
            bench.admitted(MEDIUM, operation=name, resources=(A,), priority=0)
        free = [bench.admitted(MEDIUM, operation=name) for name in ("4", "5", "6")]

        assert [job.id for job in free[:2]] == [grant.job.id for grant in bench.claim(2)]
        assert State.READY is bench.state(free[2].id)

    def test_type_without_resources_shares_keys_with_others(self, bench: Bench) -> None:
        """A key is shared by all job types: another type cannot hold it at the same time."""
        bench.started(MEDIUM, operation="1", resources=(A,))
        bench.admitted(ONCE, operation="2", resources=(A,))

        assert [] == bench.claim(5)

    def test_two_jobs_of_one_batch_do_not_share_a_key(self, bench: Bench) -> None:
        """Exclusion holds within one claim too, and the first in line wins."""
        first, second = (bench.job(MEDIUM, operation=str(n), resources=(A,)) for n in (1, 2))
        bench.admit(first, second)

        assert [first.id] == [grant.job.id for grant in bench.claim(5)]

    @RELEASES
    def test_release_wakes_the_next(self, bench: Bench, release: Callable[[Bench, Grant], None]) -> None:
        """However the holder ends or goes back, in the same commit the next waiter is ready: nobody stages."""
        holder = bench.started(MEDIUM, operation="1", resources=(A,), priority=9)
        waiter = bench.admitted(MEDIUM, operation="2", resources=(A,), priority=0)
        bench.claim(5)

        release(bench, holder)

        assert State.READY is bench.state(waiter.id)
        assert [waiter.id] == [grant.job.id for grant in bench.claim(1)]

    def test_next_is_woken_by_priority_then_admission(self, bench: Bench) -> None:
        """Of several waiters the first in claim order gets the baton, and only one does."""
        holder = bench.started(MEDIUM, operation="1", resources=(A,))
        late, early, urgent = (
            bench.job(MEDIUM, operation=name, resources=(A,), priority=p) for name, p in (("l", 5), ("e", 4), ("u", 1))
        )
        bench.admit(late, early, urgent)
        bench.claim(5)
        _complete(bench, holder)

        assert ["blocked", "blocked", "ready"] == bench.states(late, early, urgent)

    @pytest.mark.parametrize("how", ["cancel", "expire", "damage", "refuse", "hold", "divert"])
    def test_baton_is_passed_on(self, ledger: Twin, bench: Bench, how: str) -> None:
        """A woken job that is cancelled, held, diverted or quarantined does not keep the key from the one after."""
        holder = bench.started(MEDIUM, operation="1", resources=(A,))
        woken = bench.job(MEDIUM, operation="2", resources=(A,), expires_at=bench.clock() + 10_000_000)
        after = bench.job(MEDIUM, operation="3", resources=(A,))
        bench.admit(woken, after)
        bench.claim(5)
        _complete(bench, holder)
        assert ["ready", "blocked"] == bench.states(woken, after)

        started = self._drop(ledger, bench, woken.id, how)

        assert [after.id] == [grant.job.id for grant in started + bench.claim(5)]

    def _drop(self, ledger: Twin, bench: Bench, job_id: str, how: str) -> list[Grant]:
        """Take the woken job out; return what the same verb started."""
        match how:
            case "cancel":
                bench.producer.cancel([job_id], "a reason")
            case "expire":
                bench.advance(11)
                return bench.claim(5)
            case "damage":
                ledger.damage(job_id)
                return bench.claim(5)
            case _:
                (grant,) = bench.claim(1)
                end = {
                    "refuse": quarantine(grant, QuarantineReason.REFUSED, started=False),
                    "hold": settlement(grant, Disposition.HOLD, rule="R1", started=False),
                    "divert": quarantine(grant, QuarantineReason.DIVERTED, started=False),
                }
                bench.settle(end[how])
        return []

    def test_three_jobs_two_keys_no_lost_wake_up(self, bench: Bench) -> None:
        """A woken job that parks on its other key passes the first key's baton on: nobody sleeps beside a free key."""
        first = bench.started(MEDIUM, operation="1", resources=(A,))
        second = bench.started(MEDIUM, operation="2", resources=(B,))
        both = bench.admitted(MEDIUM, operation="3", resources=(A, B), priority=1)
        only = bench.admitted(MEDIUM, operation="4", resources=(A,))
        bench.claim(5)
        assert ["blocked", "blocked"] == bench.states(both, only)

        _complete(bench, first)

        assert [only.id] == [grant.job.id for grant in bench.claim(5)]
        assert ["running", "blocked"] == bench.states(second, both)

    def test_everything_drains(self, bench: Bench) -> None:
        """Many jobs over few keys, never staged: each is run once, and none sleeps beside a free key."""
        keys = (A, B, C)
        jobs = [
            bench.job(MEDIUM, operation=str(n), resources=(keys[n % 3], keys[n * 7 % 3]) if n % 4 else keys[:1])
            for n in range(40)
        ]
        jobs = [job for job in jobs if len(set(job.refs.resources)) == len(job.refs.resources)]
        bench.admit(*jobs)

        run: list[str] = []
        while grants := bench.claim(3):
            bench.settle(*(settlement(grant) for grant in grants))
            run += [grant.job.id for grant in grants]

        assert sorted(job.id for job in jobs) == sorted(run)

    def test_fence_rises_per_resource(self, bench: Bench) -> None:
        """Each new holder of a resource has a higher number than every one before it (I5)."""
        fences: list[int] = []
        for number in range(4):
            grant = bench.started(MEDIUM, operation=str(number), resources=(A,))
            fences.append(grant.lease.fence)
            assert grant.lease.fence == bench.view(grant.job.id).resources[0].fence
            (_lose, _complete)[number % 2](bench, grant)
            bench.operator.cancel([grant.job.id], "a reason")

        assert sorted(set(fences)) == fences

    def test_view_names_the_holder(self, bench: Bench) -> None:
        """Whoever asks why a job waits is told who holds what."""
        holder = bench.started(MEDIUM, operation="1", resources=(A,))
        waiter = bench.admitted(MEDIUM, operation="2", resources=(A, B))
        bench.claim(5)

        busy, free = bench.view(waiter.id).resources

        assert (A, holder.job.id, False) == (busy.key, busy.holder, busy.closed)
        assert (B, "") == (free.key, free.holder)

    def test_heartbeat_keeps_the_resource(self, bench: Bench) -> None:
        """The lease of the holding job is the lease of its resources: no time limit of their own."""
        holder = bench.started(MEDIUM, operation="1", resources=(A,))
        bench.admitted(MEDIUM, operation="2", resources=(A,))
        for _ in range(20):
            bench.advance(20)
            bench.consumer.extend([proof(holder)])
            bench.reclaim()
            bench.stage()

        assert [] == bench.claim(5)

    def test_uncertain_high_job_keeps_its_resource_closed(self, bench: Bench) -> None:
        """After an unclear end at HIGH nobody works on the resource until a person resolves it."""
        holder = bench.started(HIGH, operation="1", resources=(A,))
        waiter = bench.admitted(MEDIUM, operation="2", resources=(A,))
        _lose(bench, holder)
        bench.due()

        assert [] == bench.claim(5)
        assert bench.view(waiter.id).resources[0].closed
        bench.operator.resolve(holder.job.id, happened=True, reason="seen")
        assert [waiter.id] == [grant.job.id for grant in bench.claim(5)]

    def test_uncertain_medium_job_frees_its_resource(self, bench: Bench) -> None:
        """Below HIGH the resource goes on to the next while the job waits for its resolution."""
        holder = bench.started(ONCE, operation="1", resources=(A,))
        waiter = bench.admitted(MEDIUM, operation="2", resources=(A,))
        bench.claim(5)
        _lose(bench, holder)

        assert [waiter.id] == [grant.job.id for grant in bench.claim(5)]

    def test_halted_waiter_does_not_swallow_the_wake_up(self, bench: Bench) -> None:
        """A waiter whose type is halted gets no baton that another type's waiter could use."""
        holder = bench.started(MEDIUM, operation="1", resources=(A,))
        halted = bench.admitted(ONCE, operation="2", resources=(A,), priority=0)
        other = bench.admitted(MEDIUM, operation="3", resources=(A,))
        bench.claim(5)
        bench.tighten(ControlMode.HALT, ONCE.name)

        _complete(bench, holder)

        assert [other.id] == [grant.job.id for grant in bench.claim(5)]
        assert halted.id not in {grant.job.id for grant in bench.claim(5, consumer=bench.ledger.consumer(POOL))}

    def test_stage_wakes_what_a_switch_left_asleep(self, bench: Bench) -> None:
        """When the switch opens again, staging finds the waiter beside its free key."""
        holder = bench.started(MEDIUM, operation="1", resources=(A,))
        waiter = bench.admitted(ONCE, operation="2", resources=(A,))
        bench.claim(5)
        bench.tighten(ControlMode.HALT, ONCE.name)
        _complete(bench, holder)
        bench.loosen(ONCE.name)

        bench.due(10)

        assert [waiter.id] == [grant.job.id for grant in bench.claim(5)]
