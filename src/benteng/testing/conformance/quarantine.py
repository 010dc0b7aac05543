"""Promises about what was set aside: `classify`, `discard`, `resolve`, `replay`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benteng.errors import NeedsAction, PolicyError
from benteng.job import Attempt, Job
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.store.records import Disposal
from benteng.testing.bench import Bench, quarantine, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import HIGH, MEDIUM, ONCE

UNKNOWN = "01890000-0000-7000-8000-000000000000"


class QuarantinePromises(Promises):
    """A job in quarantine comes back only by a person's word."""

    def _quarantined(self, bench: Bench, reason: QuarantineReason = QuarantineReason.PERMANENT) -> Job:
        policy = ONCE if reason is QuarantineReason.UNCERTAIN else MEDIUM
        grant = bench.started(policy, operation="q", resources=("host:q",))
        bench.settle(quarantine(grant, reason))
        return grant.job

    # -- classify

    def test_classify_is_kept_beside_the_reason(self, bench: Bench) -> None:
        """What a person says is kept, and what the store found stays."""
        job = self._quarantined(bench)
        bench.operator.classify(job.id, QuarantineReason.SUSPICIOUS, "a note")

        view = bench.view(job.id)

        assert (QuarantineReason.PERMANENT, "suspicious") == (view.reason, view.classified)
        assert "classified" in bench.events(job.id)

    def test_uncertain_cannot_be_classified(self, bench: Bench) -> None:
        """`uncertain` can neither be given nor taken away by a classification."""
        uncertain = self._quarantined(bench, QuarantineReason.UNCERTAIN)
        grant = bench.started(MEDIUM, operation="other")
        bench.settle(quarantine(grant))

        with pytest.raises(PolicyError):
            bench.operator.classify(uncertain.id, QuarantineReason.PERMANENT, "a note")
        with pytest.raises(PolicyError):
            bench.operator.classify(grant.job.id, QuarantineReason.UNCERTAIN, "a note")

    def test_only_a_quarantined_job_is_classified(self, bench: Bench) -> None:
        """There is nothing to classify about a job that is not in quarantine."""
        job = bench.admitted()

        with pytest.raises(PolicyError):
            bench.operator.classify(job.id, QuarantineReason.PERMANENT, "a note")
        with pytest.raises(PolicyError):
            bench.operator.classify(UNKNOWN, QuarantineReason.PERMANENT, "a note")

    # -- discard

    def test_discard_is_a_state(self, bench: Bench) -> None:
        """A discarded job is still there, discarded, with its record."""
        job = self._quarantined(bench)

        (answer,) = bench.operator.discard([job.id], "a reason")

        assert (job.id, State.DISCARDED) == (answer.job_id, answer.state)
        assert (State.DISCARDED, OperationState.KEPT) == (bench.state(job.id), bench.view(job.id).operation)

    def test_discard_leaves_out_what_is_not_in_quarantine(self, bench: Bench) -> None:
        """Waiting, running, finished and unknown jobs are not discarded."""
        job, grant = bench.admitted(priority=9), bench.started(priority=0)

        assert [] == bench.operator.discard([job.id, grant.job.id, UNKNOWN], "a reason")
        assert ["ready", "running"] == bench.states(job, grant)

    def test_uncertain_job_is_not_discarded(self, bench: Bench) -> None:
        """An uncertain job must be resolved instead."""
        job = self._quarantined(bench, QuarantineReason.UNCERTAIN)

        with pytest.raises(PolicyError):
            bench.operator.discard([job.id], "a reason")
        with pytest.raises(PolicyError):
            bench.operator.discard([job.id], "a reason", free=True)

        assert State.QUARANTINED is bench.state(job.id)

    def test_freeing_a_high_operation_needs_an_action(self, bench: Bench) -> None:
        """Nobody alone frees the key of a HIGH operation that was started; without `free` it is discarded and kept."""
        grant = bench.started(HIGH, operation="1")
        bench.settle(quarantine(grant))

        with pytest.raises(NeedsAction):
            bench.operator.discard([grant.job.id], "a reason", free=True)
        assert State.QUARANTINED is bench.state(grant.job.id)
        bench.operator.discard([grant.job.id], "a reason")

        assert OperationState.KEPT is bench.view(grant.job.id).operation

    # -- resolve

    def test_resolve_happened_completes(self, bench: Bench) -> None:
        """The effect is there: completed, and the key refuses a second one."""
        job = self._quarantined(bench, QuarantineReason.UNCERTAIN)

        answer = bench.operator.resolve(job.id, happened=True, reason="seen")

        assert (State.COMPLETED, OperationState.COMPLETED) == (answer.state, bench.view(job.id).operation)
        assert Disposal.DUPLICATE is bench.admit(bench.job(ONCE, operation="q"))[0].disposal

    def test_resolve_not_happened_frees(self, bench: Bench) -> None:
        """The effect is not there: discarded, and the same intent may enter again."""
        job = self._quarantined(bench, QuarantineReason.UNCERTAIN)

        answer = bench.operator.resolve(job.id, happened=False, reason="not seen")

        assert (State.DISCARDED, OperationState.FREED) == (answer.state, bench.view(job.id).operation)
        assert Disposal.ADMITTED is bench.admit(bench.job(ONCE, operation="q"))[0].disposal

    @pytest.mark.parametrize("happened", [True, False])
    def test_resolve_opens_the_resources(self, bench: Bench, happened: bool) -> None:  # noqa: FBT001 - a parameter of pytest
        """After the word of a person the next one may work on the resource."""
        grant = bench.started(HIGH, operation="1", resources=("host:a",))
        bench.settle(quarantine(grant, QuarantineReason.UNCERTAIN))
        waiter = bench.admitted(MEDIUM, operation="2", resources=("host:a",))
        assert [] == bench.claim()

        bench.operator.resolve(grant.job.id, happened=happened, reason="a reason")

        assert [waiter.id] == [each.job.id for each in bench.claim()]

    def test_only_an_uncertain_job_is_resolved(self, bench: Bench) -> None:
        """Nobody completes a job by hand that was not uncertain, and nobody twice."""
        quarantined = self._quarantined(bench)
        for job_id in (quarantined.id, bench.admitted().id, UNKNOWN):
            with pytest.raises(PolicyError):
                bench.operator.resolve(job_id, happened=True, reason="a reason")

        assert State.QUARANTINED is bench.state(quarantined.id)

    # -- replay

    def test_replay_is_a_new_generation(self, bench: Bench) -> None:
        """A replayed job has the same id and operation, one generation on, and a new attempt budget (case C123)."""
        job = self._quarantined(bench)

        bench.replay(job)

        view = bench.view(job.id)
        assert (State.READY, 1, 0, 0) == (view.state, view.job.generation, view.attempts, view.crashes)
        assert OperationState.RESERVED is view.operation
        (grant,) = bench.claim()
        assert Attempt(1) == grant.attempt
        assert "replayed" in bench.events(job.id)

    def test_replay_counts_generations(self, bench: Bench) -> None:
        """Each replay is one more; fences go on rising over all of them (I3)."""
        job = self._quarantined(bench)
        fences = [bench.view(job.id).fence]
        for generation in (1, 2, 3):
            bench.replay(job)
            (grant,) = bench.claim()
            fences.append(grant.lease.fence)
            assert generation == grant.job.generation
            bench.settle(quarantine(grant))

        assert sorted(set(fences)) == fences

    def test_replayed_duplicate_is_still_suppressed(self, bench: Bench) -> None:
        """While the replay runs, and after its success, the same intent is a duplicate."""
        job = self._quarantined(bench)
        bench.replay(job)
        (grant,) = bench.claim()

        during = bench.admit(bench.job(MEDIUM, operation="q"))[0]
        bench.settle(settlement(grant))
        after = bench.admit(bench.job(MEDIUM, operation="q"))[0]

        assert [(Disposal.DUPLICATE, job.id)] * 2 == [(each.disposal, each.job_id) for each in (during, after)]

    def test_replay_can_enter_held(self, bench: Bench) -> None:
        """The judgement of the replay says whether it waits."""
        job = self._quarantined(bench)

        bench.replay(job, State.HELD)

        assert State.HELD is bench.state(job.id)

    def test_replay_of_a_future_job_waits(self, bench: Bench) -> None:
        """A job that was quarantined before its time waits for its time after the replay too (case C123)."""
        due_at = bench.clock() + 3_600_000_000
        job = bench.admitted(MEDIUM, operation="q", available_at=due_at, entry=State.QUARANTINED)

        bench.replay(job)

        assert (State.SCHEDULED, due_at) == (bench.state(job.id), bench.view(job.id).available_at)
        assert [] == bench.claim()
        bench.due(3_601)
        assert [job.id] == [grant.job.id for grant in bench.claim()]

    def test_old_lease_does_not_reach_the_replay(self, bench: Bench) -> None:
        """A zombie of the generation before cannot settle the new one."""
        old = bench.started(MEDIUM, operation="q")
        bench.settle(quarantine(old))
        bench.replay(old.job)
        (new,) = bench.claim()

        assert [] == bench.settle(settlement(old))
        assert [new.job.id] == [answer.job_id for answer in bench.settle(settlement(new))]

    def test_uncertain_and_suspicious_are_not_replayed(self, bench: Bench) -> None:
        """Uncertain: resolve it. Suspicious: a person classifies it first; then it may come back."""
        uncertain = self._quarantined(bench, QuarantineReason.UNCERTAIN)
        grant = bench.started(MEDIUM, operation="s")
        bench.settle(quarantine(grant, QuarantineReason.SUSPICIOUS))

        with pytest.raises(PolicyError):
            bench.replay(uncertain)
        with pytest.raises(PolicyError):
            bench.replay(grant.job)
        bench.operator.classify(grant.job.id, QuarantineReason.PERMANENT, "harmless: a typing error")
        bench.replay(grant.job)

        assert ["quarantined", "ready"] == bench.states(uncertain, grant)

    def test_replay_does_not_take_a_key_from_another(self, bench: Bench) -> None:
        """When another job took the freed key, the replay is refused and names that job."""
        old = bench.started(MEDIUM, operation="q")
        bench.settle(quarantine(old, QuarantineReason.REFUSED, started=False))
        new = bench.admitted(MEDIUM, operation="q")

        with pytest.raises(PolicyError, match=new.id):
            bench.replay(old.job)

        assert ["quarantined", "ready"] == bench.states(old, new)

    def test_only_a_quarantined_job_is_replayed(self, bench: Bench) -> None:
        """Terminal is terminal: a finished, waiting or discarded job does not come back (I11)."""
        done = bench.started(MEDIUM, operation="1")
        bench.settle(settlement(done))
        discarded = self._quarantined(bench)
        bench.operator.discard([discarded.id], "a reason")
        waiting = bench.admitted(MEDIUM, operation="2")

        for job in (done.job, discarded, waiting):
            with pytest.raises(PolicyError):
                bench.replay(job)
        assert ["completed", "discarded", "ready"] == bench.states(done, discarded, waiting)

    def test_expired_job_can_be_replayed_with_a_new_date(self, bench: Bench) -> None:
        """A job that was never started because its time was over comes back re-judged; its freed key is taken again."""
        job = bench.admitted(MEDIUM, operation="q", expires_at=bench.clock() + 1_000_000)
        bench.due()

        bench.replay(replace(job, expires_at=bench.clock() + 60_000_000))

        assert (State.READY, OperationState.RESERVED) == (bench.state(job.id), bench.view(job.id).operation)
        assert [job.id] == [grant.job.id for grant in bench.claim()]
