"""One operation, one success: whoever tries to get a second one, or to keep others from their first."""

from __future__ import annotations

import pytest

from benteng.decide import Disposition
from benteng.job import operation_key
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.store.records import Depth, Disposal, Query, Question
from benteng.testing.bench import quarantine, records, settlement
from benteng.testing.ledger import ACTOR, HIGH, LOW, MEDIUM, ONCE, PARENT, make_policy, type_row

PAYROLL = {"x": "payroll"}


def test_squatted_key_is_on_record_and_a_person_frees_it(bench):
    """Who reserves tomorrow's payroll with other bytes is named in the log; cancelled, the real one enters (C100)."""
    squatter = bench.admitted(MEDIUM, operation="payroll", payload=b'{"x":"payroll","amount":"0"}')

    (conflict,) = bench.admit(bench.job(MEDIUM, operation="payroll"))
    (said,) = [record for record in records(bench.audit()) if record["event"] == "conflict"]
    bench.operator.cancel([squatter.id], "squatted")
    (admitted,) = bench.admit(bench.job(MEDIUM, operation="payroll"))

    assert (Disposal.CONFLICT, Disposal.ADMITTED) == (conflict.disposal, admitted.disposal)
    assert squatter.id in said["detail"]


def test_squatter_of_another_origin_is_told_apart(ledger, bench):
    """A key that another origin holds is a suspicious conflict on record, naming no job to the one who asks."""
    squatter = bench.admitted(MEDIUM, operation="payroll")
    ledger.give_away(squatter.id, "os:999")

    (conflict,) = bench.admit(bench.job(MEDIUM, operation="payroll"))

    (said,) = [record for record in records(bench.audit()) if record["event"] == "conflict"]
    assert (Disposal.CONFLICT, "", None) == (conflict.disposal, conflict.job_id, conflict.state)
    assert "suspicious" in said["detail"]


@pytest.mark.parametrize("payload", [b'{"x":"payroll"}', b"{}"])
def test_low_job_cannot_take_the_key_of_a_high_operation(bench, payload):
    """A key follows from type and payload: who may only enqueue a harmless type keeps nobody from a HIGH one."""
    key = operation_key(HIGH.name, PAYROLL)
    bench.admit(bench.job(LOW, operation_key=key, payload=payload))

    (receipt,) = bench.admit(bench.job(HIGH, operation="payroll"))

    assert Disposal.ADMITTED is receipt.disposal


def test_successor_cannot_take_the_key_of_another_type(bench):
    """A hostile worker has no more say over keys than a producer."""
    parent = bench.started(PARENT, operation="p")
    child = bench.job(LOW, operation_key=operation_key(HIGH.name, PAYROLL))
    bench.settle(settlement(parent, successors=(child,)))

    (receipt,) = bench.admit(bench.job(HIGH, operation="payroll"))

    assert Disposal.ADMITTED is receipt.disposal


def test_evidence_names_no_job_of_another_origin(ledger, bench):
    """Asking for evidence tells no more about a foreign operation than trying to enqueue it."""
    job = bench.admitted(MEDIUM, operation="payroll")
    ledger.give_away(job.id, "os:999")

    (evidence,) = bench.producer.evidence([Question(MEDIUM.name, ACTOR, job.operation_key)])

    assert evidence.operation is None or evidence.operation.job_id == evidence.operation.payload_sha256 == ""


@pytest.mark.parametrize("reason", [QuarantineReason.REFUSED, QuarantineReason.EXPIRED])
def test_earlier_start_is_not_forgotten(bench, reason):
    """A worker that says "never started" of the second attempt does not free the key that the first one spent."""
    first = bench.started(ONCE, operation="1")
    bench.settle(settlement(first, Disposition.RETRY, delay_seconds=1.0))
    bench.due()
    (second,) = bench.claim()

    bench.settle(quarantine(second, reason, started=False))

    assert OperationState.KEPT is bench.view(first.job.id).operation
    assert Disposal.DUPLICATE is bench.admit(bench.job(ONCE, operation="1"))[0].disposal


@pytest.mark.parametrize(
    "how", [Disposition.RETRY, Disposition.CRASH, Disposition.SNOOZE, Disposition.HAND_BACK, Disposition.INTERRUPT]
)
def test_zombie_cannot_give_a_retaken_job_back(bench, how):
    """No way to end an old attempt takes the job from its new holder, whose success is the only one."""
    old = bench.started(MEDIUM, operation="1", resources=("host:a",))
    bench.advance(31)
    bench.reclaim()
    (new,) = bench.claim()

    assert [] == bench.settle(settlement(old, how, delay_seconds=1.0))
    assert State.RUNNING is bench.state(new.job.id)
    assert [State.COMPLETED] == [each.state for each in bench.settle(settlement(new))]


def test_chain_of_successors_is_bounded(bench):
    """A job whose every run adds two of its kind fills the queue to the origin's depth and no further (C05)."""
    bench.operator.limit_depth(Depth(bench.producer.origin, 4), "a reason")
    chain = make_policy("t.chain@1", successors=("t.chain@1",))
    bench.operator.apply_types([type_row(chain)], "a reason")
    bench.admitted(chain)

    for _ in range(12):
        (grant,) = bench.claim(1, [chain.name])
        bench.settle(settlement(grant, successors=(bench.job(chain), bench.job(chain))))
        bench.advance(1)

    waiting = [line for line in bench.operator.find(Query(limit=200)).lines if line.state is State.READY]
    assert 4 == len(waiting)
    assert "S-depth" in {record["rule"] for record in records(bench.audit())}
