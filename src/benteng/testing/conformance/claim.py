"""Promises of `register` and `claim`: who starts, in which order, and what a start costs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from benteng.audit import SUMMARY_CUT
from benteng.decide import Disposition
from benteng.errors import BentengError
from benteng.evidence import ControlMode, ControlScope
from benteng.job import Attempt, Grant
from benteng.lifecycle import QuarantineReason, State
from benteng.store.records import WorkerFacts, WorkerRefusal
from benteng.testing.bench import Bench, proof, records, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import ELSEWHERE, LOW, MEDIUM, POOL, Twin, make_policy, type_row

ISOLATION = '{"tiers":{"low":{"missing":[]}},"waive":["seccomp"]}'
FACTS = WorkerFacts("w-1", POOL, "host-1", "boot-1", 42, "0.1", {LOW.name: LOW.sha256})


class RegisterPromises(Promises):
    """Verb `register`."""

    def test_register_returns_the_ledgers_policies(self, bench: Bench) -> None:
        """A worker learns which policies the ledger holds for its pool, and what time it is there."""
        registration = bench.consumer.register(FACTS)

        assert LOW.sha256 == registration.types[LOW.name]
        assert ELSEWHERE.name not in registration.types
        assert bench.clock() == registration.now

    def test_register_is_a_sign_of_life(self, bench: Bench) -> None:
        """A worker that registers again is the same worker, seen later."""
        job = bench.admitted()
        bench.consumer.register(FACTS)
        bench.advance(10)
        bench.consumer.register(FACTS)

        assert bench.clock() == bench.view(job.id).worker_seen_at

    def test_register_of_another_pool_is_refused(self, bench: Bench) -> None:
        """A worker cannot speak for a pool that its login does not serve: what it says changes nothing there."""
        job = bench.admitted(ELSEWHERE)

        with suppress(BentengError, ValueError):
            registration = bench.consumer.register(replace(FACTS, pool=ELSEWHERE.pool))
            assert ELSEWHERE.name not in registration.types

        assert 0 == bench.view(job.id).worker_seen_at

    def test_register_records_once_what_holds_the_cells(self, bench: Bench) -> None:
        """What a worker can really do is in the log when it starts, and not again with each sign of life."""
        facts = replace(FACTS, isolation=ISOLATION)
        bench.consumer.register(facts)
        bench.advance(10)
        bench.consumer.register(facts)

        (record,) = [each for each in records(bench.audit()) if each["event"] == "registered"]
        assert (FACTS.worker, ISOLATION) == (record["worker"], record["summary"])
        assert POOL in record["detail"]
        assert record["login"]

    def test_register_of_a_refused_worker_is_only_a_record(self, bench: Bench) -> None:
        """A worker that does not start is in the log with its rule, and nobody takes it for one that lives."""
        job = bench.admitted()
        refusal = WorkerRefusal("W-layers", "no Landlock here")
        registration = bench.consumer.register(replace(FACTS, isolation=ISOLATION), refusal)

        (record,) = [each for each in records(bench.audit()) if each["worker"] == FACTS.worker]
        assert ("worker_refused", "W-layers", "no Landlock here", ISOLATION) == tuple(
            record[name] for name in ("event", "rule", "reason", "summary")
        )
        assert 0 == bench.view(job.id).worker_seen_at
        assert LOW.sha256 == registration.types[LOW.name]

    @pytest.mark.parametrize("isolation", ["x" * 4097, '{"a":"' + "\u20ac" * 1400 + '"}'], ids=["ascii", "wide"])
    def test_register_bounds_what_a_worker_says(self, bench: Bench, isolation: str) -> None:
        """A record is bounded, in bytes, whatever the worker says of itself; half of it would be none."""
        bench.consumer.register(replace(FACTS, isolation=isolation))

        (record,) = [each for each in records(bench.audit()) if each["event"] == "registered"]
        assert SUMMARY_CUT == record["summary"]


class ClaimPromises(Promises):
    """Verb `claim`."""

    def test_claim_starts_a_ready_job(self, bench: Bench) -> None:
        """A claimed job is running, with its first attempt, a fence, a secret token and its lease."""
        job = bench.admitted()

        (grant,) = bench.claim()

        assert (job, Attempt(1)) == (grant.job, grant.attempt)
        assert (job.id, 30.0) == (grant.lease.job_id, grant.lease.seconds)
        assert len(grant.lease.token) >= 22
        view = bench.view(job.id)
        assert (State.RUNNING, 1, 1, grant.lease.fence) == (view.state, view.attempts, view.starts, view.fence)
        assert bench.clock() + 30_000_000 == view.lease_until

    def test_claim_never_gives_more_than_asked(self, bench: Bench) -> None:
        """At most n, and n if n can start."""
        bench.admit(*(bench.job() for _ in range(5)))

        assert [0, 2, 3, 0] == [len(bench.claim(n)) for n in (0, 2, 9, 9)]

    def test_no_job_is_claimed_twice(self, bench: Bench) -> None:
        """Claims through two connections never overlap."""
        bench.admit(*(bench.job() for _ in range(6)))
        second = bench.ledger.consumer(POOL)

        ids = [g.job.id for g in bench.claim(4) + bench.claim(4, consumer=second) + bench.claim(4)]

        assert 6 == len(ids) == len(set(ids))
        second.close()

    def test_order_is_priority_then_due_then_admission(self, bench: Bench) -> None:
        """Low numbers of priority first; then who was due first; then who came first."""
        late = bench.job(priority=0, available_at=bench.clock() + 2_000_000)
        soon = bench.job(priority=0, available_at=bench.clock() + 1_000_000)
        bench.admit(late, soon)
        bench.due(5)
        first, second, urgent, last = (bench.job(priority=p) for p in (5, 5, 1, 9))
        bench.admit(last, first, second, urgent)

        order = [bench.claim()[0].job.id for _ in range(6)]

        assert [job.id for job in (soon, late, urgent, first, second, last)] == order

    def test_batch_comes_in_claim_order(self, bench: Bench) -> None:
        """Within one claim the grants stand in the order in which they would have been given one by one."""
        jobs = [bench.job(priority=p) for p in (9, 1, 5)]
        bench.admit(*jobs)

        assert [jobs[1].id, jobs[2].id, jobs[0].id] == [grant.job.id for grant in bench.claim(3)]

    def test_who_wants_a_resource_keeps_its_place(self, bench: Bench) -> None:
        """Jobs with resources and jobs without start in one order, and their fences rise in it."""
        plain = [bench.job() for _ in range(3)]
        wanting = [bench.job(MEDIUM, operation=str(n), resources=(f"host:{n}",)) for n in range(2)]
        bench.admit(plain[0], wanting[0], plain[1], wanting[1], plain[2])

        grants = bench.claim(5)

        order = [job.id for job in (plain[0], wanting[0], plain[1], wanting[1], plain[2])]
        assert order == [grant.job.id for grant in grants]
        assert grants == sorted(grants, key=lambda grant: grant.lease.fence)

    def test_producers_clock_orders_nothing(self, bench: Bench) -> None:
        """An `available_at` in the far past does not jump the queue of its priority."""
        first, pushy = bench.job(), bench.job(available_at=1)
        bench.admit(first, pushy)

        assert first.id == bench.claim()[0].job.id

    def test_delayed_job_does_not_start_before_it_is_due(self, bench: Bench) -> None:
        """Zero claims before the due time, one after it, whatever the lease (case C01)."""
        job = bench.admitted(available_at=bench.clock() + 10_000_000)

        early: list[Grant] = []
        for _ in range(9):
            bench.due(1)
            early += bench.claim()
        bench.due(1)

        assert [] == early
        assert [job.id] == [grant.job.id for grant in bench.claim()]

    def test_only_accepted_types_start(self, bench: Bench) -> None:
        """A version that the worker does not know waits, also at the head of the queue, and is not discarded (F32)."""
        newer = make_policy("t.low@2")
        bench.operator.apply_types([type_row(newer)], "next major")
        waiting, known = bench.job(newer, priority=0), bench.job(priority=9)
        bench.admit(waiting, known)

        (grant,) = bench.claim(5, [LOW.name])

        assert known.id == grant.job.id
        bench.due(86_400)
        assert State.READY is bench.state(waiting.id)
        assert [waiting.id] == [grant.job.id for grant in bench.claim(5, [newer.name])]

    def test_nothing_accepted_starts_nothing(self, bench: Bench) -> None:
        """Deny by default: an empty list accepts nothing, and an unknown name is no wild card."""
        bench.admitted()

        assert [] == bench.claim(5, [])
        assert [] == bench.claim(5, ["%", "t.*", "t.low"])

    def test_pool_comes_from_the_type(self, bench: Bench) -> None:
        """A worker of one pool never starts a type of another, whatever it accepts."""
        job = bench.admitted(ELSEWHERE)

        assert [] == bench.claim(5)
        assert [job.id] == [grant.job.id for grant in bench.claim(5, consumer=bench.elsewhere)]

    def test_attempt_is_spent_at_the_claim(self, bench: Bench) -> None:
        """A worker that vanishes has spent the attempt: it is counted in the claim's own commit (case C26)."""
        job = bench.started().job

        assert 1 == bench.view(job.id).attempts

    def test_fence_rises_over_all_jobs(self, bench: Bench) -> None:
        """Every grant of the installation has a higher fence than every one before, over jobs, types and pools."""
        fences: list[int] = []
        for policy, consumer in [(LOW, None), (ELSEWHERE, bench.elsewhere), (MEDIUM, None), (LOW, None)]:
            bench.admitted(policy, operation=f"o{len(fences)}")
            (grant,) = bench.claim(1, consumer=consumer)
            fences.append(grant.lease.fence)

        assert sorted(set(fences)) == fences
        assert fences[0] > 0

    def test_fence_rises_within_a_batch_and_across_attempts(self, bench: Bench) -> None:
        """No two attempts share a number: not in a batch, not after a retry, a hand-back, a reclaim."""
        bench.admit(*(bench.job() for _ in range(3)))
        fences = [grant.lease.fence for grant in bench.claim(3)]
        bench.advance(31)
        bench.reclaim()
        fences += [grant.lease.fence for grant in bench.claim(3)]

        assert sorted(set(fences)) == fences

    def test_tokens_are_never_the_same(self, bench: Bench) -> None:
        """Each attempt has its own secret token, and no view or audit record shows one."""
        bench.admit(*(bench.job() for _ in range(20)))
        grants = bench.claim(20)

        assert 20 == len({grant.lease.token for grant in grants})
        shown = repr([bench.view(grant.job.id) for grant in grants]) + repr(bench.audit())
        assert not [grant for grant in grants if grant.lease.token in shown]

    def test_expired_job_is_quarantined_not_started(self, bench: Bench) -> None:
        """A job past `expires_at` never starts, also when nobody staged."""
        job = bench.admitted(expires_at=bench.clock() + 5_000_000)
        bench.advance(6)

        assert [] == bench.claim()
        assert QuarantineReason.EXPIRED is bench.view(job.id).reason

    def test_job_starts_just_before_it_expires(self, bench: Bench) -> None:
        """`expires_at` bounds the start, not the run."""
        job = bench.admitted(expires_at=bench.clock() + 5_000_000)
        bench.advance(4.9)
        (grant,) = bench.claim()
        bench.advance(20)

        assert [job.id] == [answer.job_id for answer in bench.settle(settlement(grant))]

    @pytest.mark.parametrize("scope", ControlScope)
    def test_kill_switch_stops_starts_at_once(self, bench: Bench, scope: ControlScope) -> None:
        """After `halt` of type, origin or pool nothing of it starts; what waits, waits; after opening it starts."""
        name = {ControlScope.TYPE: LOW.name, ControlScope.ORIGIN: bench.producer.origin, ControlScope.POOL: POOL}[scope]
        job = bench.admitted()
        bench.tighten(ControlMode.HALT, name, scope)

        assert [] == bench.claim(5)
        assert State.READY is bench.state(job.id)
        bench.loosen(name, scope)
        assert [job.id] == [grant.job.id for grant in bench.claim(5)]

    def test_halted_backlog_does_not_starve_others(self, bench: Bench) -> None:
        """Behind a long backlog of a halted type the other types start in the same claim (L6)."""
        bench.admit(*(bench.job(priority=0) for _ in range(300)))
        other = bench.admitted(MEDIUM, operation="a", priority=9)
        bench.tighten(ControlMode.HALT)

        assert [other.id] == [grant.job.id for grant in bench.claim(1)]

    def test_running_job_survives_the_switch(self, bench: Bench) -> None:
        """The switch stops starts; what runs may finish and settle."""
        grant = bench.started()
        bench.tighten(ControlMode.HALT)

        assert [False] == [extension.lost for extension in bench.consumer.extend([proof(grant)])]
        assert [State.COMPLETED] == [answer.state for answer in bench.settle(settlement(grant))]

    def test_row_above_its_budget_does_not_block_the_queue(self, bench: Bench) -> None:
        """A waiting job whose policy now allows fewer attempts is quarantined, and the next one starts (C71)."""
        for number in (1, 2):
            grant = bench.claim()[0] if number > 1 else bench.started(priority=0)
            bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=1.0))
            bench.due(90)
        lower = make_policy(LOW.name, limits={"attempts_max": 2})
        bench.operator.apply_types([type_row(lower)], "lowered")
        follower = bench.admitted(lower)

        assert [follower.id] == [grant.job.id for grant in bench.claim(1)]
        assert QuarantineReason.EXHAUSTED is bench.view(grant.job.id).reason

    def test_undecodable_row_is_quarantined_alone(self, ledger: Twin, bench: Bench) -> None:
        """One damaged row among good ones: it is set aside as undecodable, and the others start (I15)."""
        jobs = [bench.job(priority=p) for p in (1, 0, 2)]
        bench.admit(*jobs)
        ledger.damage(jobs[1].id)

        grants = bench.claim(3)

        assert [jobs[0].id, jobs[2].id] == [grant.job.id for grant in grants]
        quarantined = [r for r in records(bench.audit()) if r["event"] == "quarantined"]
        assert [jobs[1].id] == [record["job_id"] for record in quarantined]

    def test_payload_of_another_digest_does_not_start(self, ledger: Twin, bench: Bench) -> None:
        """Whoever puts other bytes under a job's digest, signed or not, gets it set apart; the others start."""
        jobs = [bench.admitted() for _ in range(3)]
        ledger.swap_payload(jobs[1].id)

        grants = bench.claim(3)

        assert [jobs[0].id, jobs[2].id] == [grant.job.id for grant in grants]
        assert QuarantineReason.UNDECODABLE is bench.view(jobs[1].id).reason

    def test_each_claim_has_its_record(self, bench: Bench) -> None:
        """The record of a claim names fence, attempt and resources."""
        grant = bench.started(MEDIUM, operation="a", resources=("host:b", "host:a"))

        (record,) = [r for r in records(bench.audit()) if r["event"] == "claimed"]

        assert ("ready", "running") == (record["state_from"], record["state_to"])
        assert (grant.lease.fence, 1, ["host:a", "host:b"]) == tuple(
            record[n] for n in ("fence", "attempt", "resources")
        )
