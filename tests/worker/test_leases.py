"""Leases: who may run, for how long, and what happens to those who may not any more."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing

import pytest

from benteng.keeper.loop import PAUSE_SECONDS_MAX
from benteng.policy import LIMITS, Tier
from benteng.worker.appetite import IDLE_SECONDS
from tests.worker.bed import field, wait_gone

RECOVERY_SECONDS_MAX = 15.0


@pytest.mark.parametrize("tier", list(Tier))
def test_work_of_a_killed_worker_comes_back_in_time(tier):
    """With nobody's own limits: a whole lease, the keeper's pause, and an idle worker that heard no hint (L1, C08)."""
    idle_seconds_max = 1.25 * IDLE_SECONDS

    assert RECOVERY_SECONDS_MAX > LIMITS[tier].lease_seconds + PAUSE_SECONDS_MAX + idle_seconds_max


def test_a_stopped_supervisor_loses_its_job_and_its_cell(bed):
    """The zygote kills the cell, another worker takes over with a higher fence, the zombie's settlement is refused.

    F4, I4, I6, L4 of reference/reliability.md.
    """
    first = bed.worker(keeper=False)
    job = bed.enqueue("medium.block@1", name="a")
    seen = bed.effect("block a")
    lease_until = bed.show(job).lease_until

    first.kill(signal.SIGSTOP)
    assert wait_gone(int(field(seen, "pid")), 3.0)
    killed_at = bed.operator_now()
    second = bed.worker()
    again = bed.effect("block a", 2)
    bed.go()
    status = bed.ended(job)
    first.kill(signal.SIGCONT)

    assert killed_at < lease_until + 1_000_000
    assert "completed" == status.state
    assert int(again.split()[2]) > int(seen.split()[2])
    assert str(seen.split()[2]) == first.wait("fenced_off", job=job)["fence"]
    assert 1 == bed.count("done a")
    assert second.all("settled", job=job, state="completed")


def test_the_cell_is_dead_before_its_lease_ends(bed):
    """The guard's moment lies before the end of the lease by the margin."""
    worker = bed.worker(keeper=False)
    job = bed.enqueue("medium.block@1", name="a")
    pid = int(field(bed.effect("block a"), "pid"))

    worker.kill(signal.SIGSTOP)
    until = bed.show(job).lease_until

    assert wait_gone(pid, 3.0)
    assert bed.operator_now() < until


def test_holding_the_interpreter_lock_loses_nothing(bed):
    """The heartbeat is another process's: four leases without the GIL, one run (cases.md C21, F5)."""
    bed.worker()
    job = bed.enqueue("gil@1", name="g")

    status = bed.ended(job)

    assert ("completed", b'"held"') == (status.state, status.result)
    assert (1, 1) == (bed.count("gil g"), bed.show(job).attempts)


def test_blocking_the_event_loop_loses_nothing(bed):
    """Also when an async handler sleeps for four leases (cases.md C22)."""
    bed.worker()
    job = bed.enqueue("ablock@1", name="g")

    assert "completed" == bed.ended(job).state
    assert (1, 1) == (bed.count("ablock g"), bed.show(job).attempts)


def test_a_lost_lease_kills_the_cell(bed):
    """When the store says that the job is somebody else's, the attempt ends at once and settles nothing."""
    worker = bed.worker(keeper=False)
    job = bed.enqueue("medium.block@1", name="a")
    pid = int(field(bed.effect("block a"), "pid"))

    with closing(sqlite3.connect(bed.path)) as database, database:
        database.execute("update job set token = ? where id = ?", (bed.other_token(database), job))

    assert wait_gone(pid, 2.0)
    worker.wait("lease_lost", job=job)
    assert not worker.all("settled", job=job)


def test_a_cancelled_job_is_stopped(bed):
    """A process cell is asked, and the job is cancelled; a `once` job is uncertain (questions.md 18)."""
    bed.worker()
    job = bed.enqueue("medium.block@1", name="a")
    pid = int(field(bed.effect("block a"), "pid"))

    bed.producer.cancel([job], "not wanted")

    assert "cancelled" == bed.ended(job).state
    assert os.getpid() != pid
    assert 0 == bed.count("done a")


def test_a_store_that_is_locked_and_comes_back(bed):
    """Another writer holds the lock for longer than a lease: the worker waits, then goes on (L3, F19)."""
    worker = bed.worker()
    worker.wait("ready")
    with closing(sqlite3.connect(bed.path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        worker.wait("store_away")
        writer.execute("rollback")

    job = bed.enqueue("greet@1", name="after")

    assert "completed" == bed.ended(job).state


def test_a_finished_attempt_outlives_the_store_being_away(bed):
    """The outcome is kept and settled when the store is back: one run, no attempt lost (cases.md C25, F17)."""
    worker = bed.worker(keeper=False)
    job = bed.enqueue("long.block@1", name="a")
    bed.effect("block a")
    with bed.store_away():
        bed.go()
        bed.effect("done a")
        worker.wait("store_away")

    assert "completed" == bed.ended(job).state
    assert (1, 1) == (bed.count("block a"), bed.show(job).attempts)


def test_a_store_that_moves_away_and_back(bed):
    """The file is moved and moved back: the worker neither ends nor makes a new one, and goes on."""
    worker = bed.worker()
    worker.wait("ready")
    with bed.store_away():
        worker.wait("store_away")
        assert not bed.path.exists()

    job = bed.enqueue("greet@1", name="after")

    assert "completed" == bed.ended(job).state


def test_a_worker_whose_leases_cannot_be_prolonged_kills_its_cells(bed):
    """With the store away the cell is dead before the lease ends; when it is back the job runs again (L4, F11)."""
    worker = bed.worker()
    job = bed.enqueue("medium.block@1", name="a")
    pid = int(field(bed.effect("block a"), "pid"))
    until = bed.show(job).lease_until
    with closing(sqlite3.connect(bed.path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        assert wait_gone(pid, 3.0)
        at = bed.operator_now()
        writer.execute("rollback")
    bed.effect("block a", 2)
    bed.go()

    assert at < until + 1_000_000
    assert "completed" == bed.ended(job).state
    assert worker.all("lease_ends") or worker.all("cell_died")
