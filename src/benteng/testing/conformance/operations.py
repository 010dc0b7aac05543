"""Promises about operations: the table of DESIGN section 3, every row against every kind of second job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benteng.decide import Disposition
from benteng.job import Job
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.policy import Effect, Tier, TypePolicy
from benteng.store.records import Disposal, Query, Receipt
from benteng.testing.bench import Bench, quarantine, records, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import HIGH, MEDIUM, ONCE, Twin

KEY = "o-1"
STRANGER = "svc:stranger"


def _ready(bench: Bench, policy: TypePolicy) -> Job:
    return bench.admitted(policy, operation=KEY)


def _scheduled(bench: Bench, policy: TypePolicy) -> Job:
    return bench.admitted(policy, operation=KEY, available_at=bench.clock() + 1_000_000_000)


def _held(bench: Bench, policy: TypePolicy) -> Job:
    return bench.admitted(policy, operation=KEY, entry=State.HELD)


def _running(bench: Bench, policy: TypePolicy) -> Job:
    return bench.started(policy, operation=KEY).job


def _blocked(bench: Bench, policy: TypePolicy) -> Job:
    bench.started(policy, operation="holder", resources=("host:a",))
    job = bench.admitted(policy, operation=KEY, resources=("host:a",))
    bench.claim()
    return job


def _retrying(bench: Bench, policy: TypePolicy) -> Job:
    grant = bench.started(policy, operation=KEY)
    bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=5.0))
    return grant.job


def _completed(bench: Bench, policy: TypePolicy) -> Job:
    grant = bench.started(policy, operation=KEY)
    bench.settle(settlement(grant, result=b'"done"'))
    return grant.job


def _cancelled(bench: Bench, policy: TypePolicy) -> Job:
    job = bench.admitted(policy, operation=KEY)
    bench.producer.cancel([job.id], "a reason")
    return job


def _cancelled_after_start(bench: Bench, policy: TypePolicy) -> Job:
    job = _retrying(bench, policy)
    bench.producer.cancel([job.id], "a reason")
    return job


def _cancelled_after_hand_back(bench: Bench, policy: TypePolicy) -> Job:
    grant = bench.started(policy, operation=KEY)
    bench.settle(settlement(grant, Disposition.HAND_BACK, started=False))
    bench.producer.cancel([grant.job.id], "a reason")
    return grant.job


def _expired(bench: Bench, policy: TypePolicy) -> Job:
    job = bench.admitted(policy, operation=KEY, expires_at=bench.clock() + 60_000_000)
    bench.due()
    return job


def _refused(bench: Bench, policy: TypePolicy) -> Job:
    grant = bench.started(policy, operation=KEY)
    bench.settle(quarantine(grant, QuarantineReason.REFUSED, started=False))
    return grant.job


def _diverted(bench: Bench, policy: TypePolicy) -> Job:
    return bench.admitted(policy, operation=KEY, entry=State.QUARANTINED)


def _revoked(bench: Bench, policy: TypePolicy) -> Job:
    grant = bench.started(policy, operation=KEY)
    bench.settle(quarantine(grant, QuarantineReason.REVOKED, started=False))
    return grant.job


def _permanent(bench: Bench, policy: TypePolicy) -> Job:
    grant = bench.started(policy, operation=KEY)
    bench.settle(quarantine(grant))
    return grant.job


def _discarded(bench: Bench, policy: TypePolicy) -> Job:
    job = _diverted(bench, policy)
    bench.operator.discard([job.id], "a reason")
    return job


def _discarded_after_start(bench: Bench, policy: TypePolicy) -> Job:
    job = _permanent(bench, policy)
    bench.operator.discard([job.id], "a reason")
    return job


def _discarded_free(bench: Bench, policy: TypePolicy) -> Job:
    job = _permanent(bench, policy)
    bench.operator.discard([job.id], "a reason", free=True)
    return job


def _uncertain(bench: Bench, policy: TypePolicy) -> Job:
    grant = bench.started(policy, operation=KEY)
    bench.settle(quarantine(grant, QuarantineReason.UNCERTAIN))
    return grant.job


def _happened(bench: Bench, policy: TypePolicy) -> Job:
    job = _uncertain(bench, policy)
    bench.operator.resolve(job.id, happened=True, reason="seen")
    return job


def _not_happened(bench: Bench, policy: TypePolicy) -> Job:
    job = _uncertain(bench, policy)
    bench.operator.resolve(job.id, happened=False, reason="not seen")
    return job


Row = Callable[[Bench, TypePolicy], Job]

HOLDS: dict[Row, OperationState] = {
    _ready: OperationState.RESERVED,
    _scheduled: OperationState.RESERVED,
    _held: OperationState.RESERVED,
    _running: OperationState.RESERVED,
    _blocked: OperationState.RESERVED,
    _retrying: OperationState.RESERVED,
    _completed: OperationState.COMPLETED,
    _cancelled_after_start: OperationState.KEPT,
    _diverted: OperationState.RESERVED,
    _revoked: OperationState.RESERVED,
    _permanent: OperationState.KEPT,
    _discarded_after_start: OperationState.KEPT,
    _uncertain: OperationState.UNCERTAIN,
    _happened: OperationState.COMPLETED,
}
"""How a job gets there -> what its operation is then, with the key still taken."""

FREES: tuple[Row, ...] = (
    _cancelled,
    _cancelled_after_hand_back,
    _expired,
    _refused,
    _discarded,
    _discarded_free,
    _not_happened,
)
"""How a job gets where its key is free again."""

ROWS = pytest.mark.parametrize("row", HOLDS, ids=lambda row: row.__name__.strip("_"))
FREE_ROWS = pytest.mark.parametrize("row", FREES, ids=lambda row: row.__name__.strip("_"))


class OperationPromises(Promises):
    """One operation succeeds at most once; the same key with another payload is refused, not silently dropped."""

    @ROWS
    def test_row_has_its_operation_state(self, bench: Bench, row: Row) -> None:
        """The operation is in the state that the table names."""
        job = row(bench, MEDIUM)

        assert HOLDS[row] is bench.view(job.id).operation

    @ROWS
    def test_same_digest_gets_the_first_receipt(self, bench: Bench, row: Row) -> None:
        """The same intent again is no second job: its receipt names the first, in the state where it is now."""
        job = row(bench, MEDIUM)

        receipt = self._again(bench, MEDIUM)

        assert (Disposal.DUPLICATE, job.id) == (receipt.disposal, receipt.job_id)
        assert bench.state(job.id) is receipt.state

    @ROWS
    def test_other_digest_is_refused_as_a_conflict(self, bench: Bench, row: Row) -> None:
        """The same key with another payload is refused, and nothing of the second job is stored."""
        job = row(bench, MEDIUM)
        other = bench.job(MEDIUM, operation=KEY, payload=b'{"x":"o-1","amount":"other"}')

        (receipt,) = bench.admit(other)

        assert (Disposal.CONFLICT, job.id) == (receipt.disposal, receipt.job_id)
        assert bench.operator.show(other.id) is None

    @ROWS
    @pytest.mark.parametrize("payload", [None, b'{"x":"o-1","amount":"other"}'], ids=["same", "other"])
    def test_other_origin_is_refused_and_learns_nothing(
        self,
        ledger: Twin,
        bench: Bench,
        row: Row,
        payload: bytes | None,
    ) -> None:
        """Another origin gets a conflict that names no job, no state and no result, whatever its payload."""
        job = row(bench, MEDIUM)
        ledger.give_away(job.id, STRANGER)

        (receipt,) = bench.admit(bench.job(MEDIUM, operation=KEY, payload=payload))

        assert Disposal.CONFLICT is receipt.disposal
        assert ("", None, None) == (receipt.job_id, receipt.state, receipt.result)
        assert job.id not in receipt.reason
        ledger.give_away(job.id, bench.producer.origin)

    @FREE_ROWS
    @pytest.mark.parametrize("payload", [None, b'{"x":"o-1","amount":"other"}'], ids=["same", "other"])
    def test_freed_key_takes_a_new_job(self, bench: Bench, row: Row, payload: bytes | None) -> None:
        """Where nothing can have happened, the same intent, also with another payload, is a new job."""
        old = row(bench, MEDIUM)
        new = bench.job(MEDIUM, operation=KEY, payload=payload)

        (receipt,) = bench.admit(new)

        assert (Disposal.ADMITTED, new.id) == (receipt.disposal, receipt.job_id)
        assert (1, 2) == (bench.view(old.id).epoch, bench.view(new.id).epoch)

    @FREE_ROWS
    def test_freed_row_keeps_its_record(self, bench: Bench, row: Row) -> None:
        """The old job's end stays on record, freed, when a new one has taken the key."""
        old = row(bench, MEDIUM)
        state = bench.state(old.id)
        self._again(bench, MEDIUM)

        view = bench.view(old.id)

        assert (state, OperationState.FREED) == (view.state, view.operation)

    def test_epoch_counts_freeings(self, bench: Bench) -> None:
        """Each time a key was freed and taken again its epoch rises by one."""
        jobs = [_cancelled(bench, MEDIUM) for _ in range(4)]

        assert [1, 2, 3, 4] == [bench.view(job.id).epoch for job in jobs]

    def test_duplicate_of_a_completed_operation_carries_the_result(self, bench: Bench) -> None:
        """Whoever asks again gets the answer of the first time."""
        _completed(bench, MEDIUM)

        assert b'"done"' == self._again(bench, MEDIUM).result

    def test_duplicate_is_recorded(self, bench: Bench) -> None:
        """A suppressed duplicate leaves a record and no job."""
        _ready(bench, MEDIUM)
        self._again(bench, MEDIUM)

        assert 1 == [record["event"] for record in records(bench.audit())].count("duplicate")
        assert 1 == len(bench.operator.find(Query()).lines)

    def test_conflict_is_recorded(self, bench: Bench) -> None:
        """A conflict leaves a record."""
        _ready(bench, MEDIUM)
        bench.admit(bench.job(MEDIUM, operation=KEY, payload=b"{}"))

        assert 1 == [record["event"] for record in records(bench.audit())].count("conflict")

    def test_jobs_without_declared_operation_never_collide(self, bench: Bench) -> None:
        """Each job of a type without operation is an operation of its own, also with one payload."""
        first, second = bench.admit(bench.job(payload=b"{}"), bench.job(payload=b"{}"))

        assert first.job_id != second.job_id
        assert [Disposal.ADMITTED] * 2 == [first.disposal, second.disposal]

    def test_high_operation_is_kept_for_ever(self, bench: Bench) -> None:
        """A completed HIGH operation refuses a second one after any time."""
        job = _completed(bench, HIGH)
        bench.advance(10 * 365 * 86_400)
        bench.keeper.purge(1_000)

        receipt = self._again(bench, HIGH)

        assert (Tier.HIGH, Effect.ONCE) == (HIGH.tier, HIGH.effect)
        assert (Disposal.DUPLICATE, job.id) == (receipt.disposal, receipt.job_id)

    def test_once_that_completed_never_runs_again(self, bench: Bench) -> None:
        """After success no claim finds the job, whatever time does."""
        _completed(bench, ONCE)
        bench.due(86_400)
        bench.reclaim()

        assert [] == bench.claim(10)

    def _again(self, bench: Bench, policy: TypePolicy) -> Receipt:
        (receipt,) = bench.admit(bench.job(policy, operation=KEY))
        return receipt
