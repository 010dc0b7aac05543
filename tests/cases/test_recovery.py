"""Dead workers and lost rows: what was running comes back by its lease, once, and nothing that is not there runs."""

from __future__ import annotations

from benteng.lifecycle import State
from benteng.store.records import WorkerFacts
from benteng.testing.bench import proof, settlement
from benteng.testing.ledger import LOW, MEDIUM, POOL

CROWD = 600


def facts(worker: str) -> WorkerFacts:
    """Return what a worker of that name says about itself."""
    return WorkerFacts(worker, POOL, "host", "boot", 7, "0", {})


def test_recovery_needs_no_registry_row(broken, by_hand):
    """The lease on the job counts: it is taken back also when its dead worker's row was pruned first (C11)."""
    broken.consumer.register(facts("w1"))
    grant = broken.started()
    by_hand("delete from worker")
    broken.advance(31)

    assert [grant.job.id] == [each.job_id for each in broken.reclaim()]
    assert State.READY is broken.state(grant.job.id)


def test_new_worker_of_the_same_name_keeps_nothing_alive(ledger, bench):
    """A pod that comes back under the name of the dead one neither owns nor hides what that one ran (C11)."""
    bench.consumer.register(facts("w1"))
    grant = bench.started()
    again = ledger.consumer()
    again.register(facts("w1"))
    bench.advance(31)
    again.register(facts("w1"))

    assert [True] == [each.lost for each in again.extend([proof(grant)])]
    assert [grant.job.id] == [each.job_id for each in bench.reclaim()]


def test_crowd_of_dead_owners_is_taken_back_once(ledger, bench):
    """Hundreds of dead leases, two keepers in turn: each is taken back once, the live one among them never (C13)."""
    for start in range(0, CROWD, 100):
        bench.admit(*(bench.job(LOW) for _ in range(start, start + 100)))
    dead = bench.claim(CROWD)
    bench.advance(20)
    live = bench.started(MEDIUM, operation="live")
    bench.advance(11)

    keepers = [ledger.keeper(), ledger.keeper()]
    back = [each.job_id for n in range(8) for each in keepers[n % 2].reclaim(100)]

    assert sorted(grant.job.id for grant in dead) == sorted(back)
    assert {1} == {bench.view(job_id).crashes for job_id in back[::50]}
    assert [live.job.id] == [each.job_id for each in bench.settle(settlement(live))]


def test_job_whose_row_is_gone_is_no_ghost(broken, by_hand):
    """Recovery, staging and claiming of what is not there do nothing: no run with an empty payload (C20)."""
    gone, good = broken.started(), broken.started()
    by_hand("delete from job where id = ?", gone.job.id)
    broken.advance(31)

    assert [good.job.id] == [each.job_id for each in broken.reclaim()]
    broken.stage()
    assert [good.job.id] == [grant.job.id for grant in broken.claim(9)]
    assert [] == broken.consumer.settle([settlement(gone)])


def test_fence_does_not_live_in_the_lock(broken, by_hand):
    """With the lock's row deleted under a running job the next holder still gets a higher number (C36)."""
    old = broken.started(MEDIUM, operation="1", resources=("host:a",))
    by_hand("delete from resource")
    new = broken.started(MEDIUM, operation="2", resources=("host:a",))

    assert old.lease.fence < new.lease.fence
    assert new.lease.fence == broken.view(new.job.id).resources[0].fence


def test_slot_of_a_dead_holder_is_free_after_its_lease(bench):
    """A killed worker keeps a resource for its lease and no longer; a hundred deaths leak nothing (C37, C39)."""
    holders = []
    for n in range(100):
        holders.append(bench.started(MEDIUM, operation=str(n), resources=("host:a",)))
        bench.advance(31)
        bench.reclaim()
        bench.operator.cancel([holders[-1].job.id], "a reason")

    assert sorted({grant.lease.fence for grant in holders}) == [grant.lease.fence for grant in holders]
    assert bench.started(MEDIUM, operation="last", resources=("host:a",))
