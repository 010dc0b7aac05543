"""How a worker ends: asked once, asked twice, and not at all."""

from __future__ import annotations

import signal
import time

import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_lets_running_attempts_finish(bed, number):
    """What runs is settled, what waits stays for others, and the exit code is 0 (cases.md C09, F7, L5)."""
    worker = bed.worker(concurrency=1)
    running = bed.enqueue("medium.block@1", name="a")
    bed.effect("block a")
    waiting = bed.enqueue("medium@1", name="later")

    worker.kill(number)
    worker.wait("draining")
    bed.go()

    assert 0 == worker.exit_code()
    assert ("completed", 1) == (bed.status(running).state, bed.show(running).attempts)
    assert ("ready", 0) == (bed.status(waiting).state, bed.show(waiting).attempts)


def test_what_has_no_cell_yet_is_handed_back(bed):
    """A claimed job that waits for its cell goes back unspent and unstarted."""
    worker = bed.worker(concurrency=3)
    pids = [bed.enqueue("wide.kill@1", name="now")]
    bed.effect("kill now")
    jobs = [bed.enqueue("medium.block@1", name=f"n{n}") for n in range(2)]
    worker.kill(signal.SIGTERM)
    bed.go()

    assert 0 == worker.exit_code()
    assert pids
    assert all(bed.status(job).state in {"ready", "completed"} for job in jobs)
    assert all(bed.show(job).attempts <= 1 for job in jobs)


def test_a_drain_ends_what_does_not_finish(bed):
    """After the grace attempts are stopped and given back free; the worker is gone within grace + 2 s (C15)."""
    worker = bed.worker(drain_seconds=0.3)
    job = bed.enqueue("medium.block@1", name="a")
    bed.effect("block a")

    began = time.monotonic()
    assert 0 == worker.stop()

    assert time.monotonic() - began < 0.3 + 2.0
    view = bed.show(job)
    assert ("ready", 0, 0, 1) == (view.state, view.attempts, view.crashes, view.handbacks)


def test_a_once_job_that_a_drain_kills_is_uncertain(bed):
    """Nobody knows how far it got."""
    worker = bed.worker(drain_seconds=0.1)
    job = bed.enqueue("once.block@1", name="a")
    bed.effect("block a")

    assert 0 == worker.stop()

    assert "uncertain" == bed.status(job).reason


def test_a_second_signal_ends_at_once(bed):
    """Whoever asks twice does not want to wait."""
    worker = bed.worker(drain_seconds=60.0)
    job = bed.enqueue("medium.block@1", name="a")
    bed.effect("block a")

    worker.kill(signal.SIGTERM)
    worker.wait("draining")
    worker.kill(signal.SIGTERM)

    assert 0 == worker.exit_code()
    assert "ready" == bed.status(job).state


def test_a_worker_gives_up_when_it_is_told_to(bed):
    """With a limit it exits with 75 when the store stays away for longer."""
    worker = bed.worker(give_up_seconds=0.5, drain_seconds=0.1)
    worker.wait("ready")
    with bed.store_away():
        assert 75 == worker.exit_code()


def test_the_scratch_root_is_gone_afterwards(bed):
    """Nothing of the cells stays on the disk."""
    worker = bed.worker()
    bed.ended(bed.enqueue("links@1", name="l", host="web-1"))
    victim = bed.root / "victim"

    assert 0 == worker.stop()

    assert [] == list((bed.root / "scratch").iterdir())
    assert not victim.exists()
