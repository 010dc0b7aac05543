"""Processes that die: cells, zygotes, supervisors, and all of them together."""

from __future__ import annotations

import os
import signal

import pytest

from tests.worker.bed import field, gone, wait_gone


def test_a_killed_cell_is_a_crash_and_the_job_runs_again(bed):
    """SIGKILL of the child alone is counted, retried, and never success (cases.md C06, F1)."""
    worker = bed.worker()
    job = bed.enqueue("medium.block@1", name="a")
    pid = int(field(bed.effect("block a"), "pid"))

    os.kill(pid, signal.SIGKILL)
    bed.effect("block a", 2)
    bed.go()

    assert "completed" == bed.ended(job).state
    view = bed.show(job)
    assert (2, 1) == (view.attempts, view.crashes)
    assert "SIGKILL" in worker.wait("cell_died", pid=str(pid))["how"]


def test_a_poison_job_ends_in_quarantine(bed):
    """A job that kills its own process is crashed after `crashes_max`, whatever else runs (cases.md C26, F6)."""
    bed.worker()
    job = bed.enqueue("poison@1", name="p")
    others = bed.enqueue_many("greet@1", [{"name": f"n{n}"} for n in range(10)])

    status = bed.ended(job)

    assert ("quarantined", "crashed") == (status.state, status.reason)
    assert 2 == bed.show(job).crashes
    assert {"completed"} == {bed.ended(other).state for other in others}


def test_a_once_job_that_crashes_is_uncertain(bed):
    """After its start nothing but its own word runs it again (cases.md C100)."""
    bed.worker()
    job = bed.enqueue("once@1", name="o")

    status = bed.ended(job)

    assert ("quarantined", "uncertain") == (status.state, status.reason)
    assert 1 == bed.count("once o")


def test_a_crash_in_a_wide_cell_is_charged_to_the_culprit_alone(bed):
    """The residents run again one by one; only the one that kills its cell again spends crashes (trap 12)."""
    bed.worker(concurrency=4)
    culprit = bed.enqueue("wide.kill@1", name="later")
    bystanders = bed.enqueue_many("once.low@1", [{"name": f"b{n}"} for n in range(3)])
    bed.effect("block", 3)
    bed.effect("kill later")
    bed.go()

    assert "crashed" == bed.ended(culprit).reason
    assert ["completed"] * 3 == [bed.ended(job).state for job in bystanders]
    assert [0, 0, 0] == [bed.show(job).crashes for job in bystanders]
    assert [1, 1, 1] == [bed.show(job).attempts for job in bystanders]


def test_a_killed_worker_is_recovered_by_lease(bed):
    """SIGKILL of supervisor and zygote: the cell dies with them, another worker runs the job (F2, F3, L1, C08)."""
    first = bed.worker(keeper=False)
    zygote = first.zygote()
    job = bed.enqueue("medium.block@1", name="a")
    seen = bed.effect("block a")

    os.kill(first.pid, signal.SIGSTOP)
    os.kill(zygote, signal.SIGKILL)
    os.kill(first.pid, signal.SIGKILL)
    assert wait_gone(int(field(seen, "pid")), 2.0)
    bed.worker()
    again = bed.effect("block a", 2)
    bed.go()

    assert "completed" == bed.ended(job).state
    assert int(again.split()[2]) > int(seen.split()[2])
    assert 1 == bed.count("done a")


def test_a_dead_supervisor_takes_everything_with_it(bed):
    """SIGKILL of the supervisor alone: zygote, cell and what the handler started are gone within 2 s (F2)."""
    worker = bed.worker(keeper=False, waive=["seccomp", "landlock_files"])
    bed.enqueue("leak.block@1", name="a")
    seen = bed.effect("leak-block")
    pids = [worker.zygote(), int(field(seen, "pid")), int(field(seen, "child"))]

    os.kill(worker.pid, signal.SIGKILL)

    assert all(wait_gone(pid, 2.0) for pid in pids)


def test_a_dead_zygote_is_replaced(bed):
    """Its cells die with it; the supervisor goes on with a new one."""
    worker = bed.worker()
    job = bed.enqueue("medium.block@1", name="a")
    pid = int(field(bed.effect("block a"), "pid"))

    os.kill(worker.zygote(), signal.SIGKILL)
    bed.effect("block a", 2)
    bed.go()

    assert wait_gone(pid, 2.0)
    assert "completed" == bed.ended(job).state
    assert 1 == bed.show(job).crashes


@pytest.mark.parametrize("name", ["daemon@1"])
def test_nothing_of_a_job_outlives_it(bed, name):
    """Neither a child that left its group nor one that lost its parent is there 2 s later (cases.md C106, F8)."""
    bed.worker(waive=["seccomp", "landlock_files"])
    job = bed.enqueue(name, name="d", host="web-1")

    assert "completed" == bed.ended(job).state
    pids = [int(bed.effect("daemon", n).split()[1]) for n in (1, 2)]
    assert all(wait_gone(pid, 2.0) for pid in pids)


def test_a_serial_cell_with_leftovers_is_not_used_again(bed):
    """A child process of one attempt must not live beside the next one."""
    bed.worker(concurrency=1, waive=["seccomp", "landlock_files"])
    first = bed.ended(bed.enqueue("leak@1", name="a"))
    second = bed.ended(bed.enqueue("leak@1", name="b"))

    assert first.result != second.result
    assert all(wait_gone(int(bed.effect("leak", n).split()[1]), 2.0) for n in (1, 2))


@pytest.mark.parametrize("name,error", [("stubborn@1", "deadline of 0.5 s"), ("polite@1", "deadline of 0.5 s")])
def test_a_deadline_ends_an_attempt(bed, name, error):
    """SIGTERM, grace, SIGKILL: also when the handler blocks SIGTERM; one that cleans up can (cases.md C104)."""
    bed.worker()
    job = bed.enqueue(name, name="x")

    status = bed.ended(job)

    assert ("quarantined", "exhausted") == (status.state, status.reason)
    assert error in status.error
    if name == "polite@1":
        assert 1 == bed.count("cleaned x")
    else:
        assert gone(int(field(bed.effect("stubborn"), "pid")))


def test_an_async_attempt_over_its_deadline_is_cancelled_alone(bed):
    """Its neighbours in the cell do not notice."""
    bed.worker()
    other = bed.enqueue("once.low@1", name="n")
    pid = field(bed.effect("block n"), "pid")
    job = bed.enqueue("ahang@1", name="x")

    status = bed.ended(job)
    bed.go()

    assert "deadline" in status.error
    assert pid == field(bed.effect("cancelled x"), "pid")
    assert ("completed", 1) == (bed.ended(other).state, bed.count("block n"))


def test_a_thread_over_its_deadline_takes_its_cell_along(bed):
    """A thread cannot be stopped, a process can; the neighbours run again and spend nothing."""
    bed.worker()
    other = bed.enqueue("once.low@1", name="n")
    bed.effect("block n")
    job = bed.enqueue("hang@1", name="x")

    status = bed.ended(job)
    bed.effect("block n", 2)
    bed.go()

    assert "deadline" in status.error
    assert "completed" == bed.ended(other).state
    assert (1, 0) == (bed.show(other).attempts, bed.show(other).crashes)


def test_a_dead_keeper_is_started_again(bed):
    """Without one nothing would be recovered; the worker looks after its own."""
    worker = bed.worker()
    pid = int(worker.wait("keeper_started")["pid"])

    os.kill(pid, signal.SIGKILL)

    worker.wait("keeper_ended", pid=str(pid))
    worker.events = [said for said in worker.events if said.get("pid") != str(pid)]
    assert not gone(int(worker.wait("keeper_started")["pid"]))


def test_a_lane_that_rests_after_crashes_does_not_hold_up_the_others(bed):
    """Jobs of other tiers are claimed while the crashing one waits for its next cell."""
    worker = bed.worker()
    worker.wait("ready")
    poison = [bed.enqueue("poison@1", name=f"p{n}") for n in range(4)]
    worker.wait("cell_died")

    jobs = bed.enqueue_many("greet@1", [{"name": f"n{n}"} for n in range(5)])

    assert {"completed"} == {bed.ended(job).state for job in jobs}
    assert {"crashed"} == {bed.ended(job).reason for job in poison}
