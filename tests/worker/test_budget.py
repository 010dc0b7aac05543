"""How many jobs a pool's worker may start in a minute, and which types it accepts."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benteng.errors import PolicyError
from benteng.worker.budget import WINDOW_SECONDS, Budget
from benteng.worker.pool import STARTS_PER_MINUTE_MAX, Pool

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processor."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


@given(
    per_minute=st.integers(1, 20),
    asked=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 10)), max_size=60),
)
def test_no_minute_has_more_starts_than_the_budget(per_minute, asked):
    """Whatever is asked and when: in no 60 seconds more are started, and never none while there is room."""
    budget, now, starts = Budget(per_minute), 0.0, list[float]()
    for pause, wanted in asked:
        now += pause
        recent = sum(1 for at in starts if at > now - WINDOW_SECONDS)
        count = budget.left(now, wanted)

        assert count == min(wanted, per_minute - recent)
        budget.spend(count, now)
        starts += [now] * count


def test_a_spent_budget_wakes_when_the_oldest_start_is_a_minute_old():
    """Not before, so that nothing is asked in vain, and not after."""
    budget = Budget(2)
    budget.spend(1, 10.0)
    budget.spend(1, 40.0)

    assert 10.0 + WINDOW_SECONDS == budget.wakes_at(50.0)
    assert 1 == budget.left(10.0 + WINDOW_SECONDS, 5)
    assert 75.0 == budget.wakes_at(75.0)


def test_no_bound_is_no_bound():
    """0 counts nothing."""
    budget = Budget(0)
    budget.spend(1_000, 1.0)

    assert 7 == budget.left(1.0, 7)


@pytest.mark.parametrize("count", [-1, STARTS_PER_MINUTE_MAX + 1])
def test_a_budget_out_of_bounds_is_refused(count):
    """When the pool is made."""
    with pytest.raises(PolicyError, match="W-starts"):
        Pool(starts_per_minute=count)


def test_a_worker_claims_no_more_than_its_budget(bed):
    """The third of three jobs stays ready: neither the first claim takes it nor the one that settles the second."""
    jobs = bed.enqueue_many("greet@1", [{"name": name} for name in ("a", "b", "c")])
    worker = bed.worker(concurrency=1, starts_per_minute=2)

    bed.until(jobs[1], "completed")
    worker.stop()

    assert ["completed", "completed", "ready"] == [bed.status(job).state for job in jobs]
    assert 0 == bed.show(jobs[2]).attempts


def test_one_claim_takes_no_more_than_the_budget(bed):
    """Also when more slots are free."""
    jobs = bed.enqueue_many("greet@1", [{"name": name} for name in ("a", "b", "c")])
    worker = bed.worker(concurrency=4, starts_per_minute=2)

    bed.until(jobs[1], "completed")
    worker.stop()

    assert ["completed", "completed", "ready"] == [bed.status(job).state for job in jobs]


def test_a_full_worker_sleeps(bed):
    """A supervisor whose slots are all taken waits for what frees one; it does not ask its clock all the time."""
    worker = bed.worker(concurrency=1)
    bed.enqueue("look@1", name="a")
    bed.effect("look")
    waiting = bed.enqueue("greet@1", name="b")

    before = cpu_seconds(worker.pid)
    select.select([], [], [], 1.0)  # a second of its time is what is measured

    assert cpu_seconds(worker.pid) - before < 0.1
    bed.go()
    bed.ended(waiting)


def test_a_pool_runs_only_the_types_that_it_accepts(bed):
    """The others wait for another host, and their attempts are not spent."""
    left, accepted = bed.enqueue("greet@1", name="a"), bed.enqueue("agreet@1", name="b")
    worker = bed.worker(types=["agreet@1"])

    assert "completed" == bed.ended(accepted).state
    worker.stop()

    assert "ready" == bed.status(left).state
    assert 0 == bed.show(left).attempts


@pytest.mark.parametrize("name", ["patch.apply@9", "step"])
def test_a_restriction_to_a_type_that_is_not_there_is_refused(bed, name):
    """A slip of the pen would be a queue that stands."""
    worker = bed.worker(types=[name])

    assert "W-types" == worker.wait("refused")["rule"]
    assert 78 == worker.exit_code()
