"""An idle worker on the embedded ledger: how seldom it asks, and how soon it starts what comes."""

from __future__ import annotations

import shutil
import time

IDLE_SECONDS = 5.0
CALM_SECONDS = 2.5
"""After a job a worker looks again soon, and ever less often: by then it is idle."""


def test_an_idle_worker_asks_less_than_once_a_second(bed):
    """Told by its own store calls over seconds in which nothing is to do; a job then starts by its hint."""
    worker = bed.worker(tell_turns=True)
    worker.wait("ready")
    bed.ended(bed.enqueue("greet@1", name="first"))
    worker.wait("turn", settled="1")
    listen_for(worker, CALM_SECONDS)
    before = len(worker.all("turn"))
    listen_for(worker, IDLE_SECONDS)
    asked = len(worker.all("turn")) - before

    bed.ended(bed.enqueue("greet@1", name="second"))

    assert 1 <= asked <= IDLE_SECONDS


def listen_for(worker, seconds):
    """Take in what a worker tells for some time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        worker.listen(until - time.monotonic())


def test_without_hints_polling_finds_everything(bed):
    """A worker that nobody can reach finds its jobs all the same."""
    worker = bed.worker()
    worker.wait("ready")
    bed.ended(bed.enqueue("greet@1", name="first"))
    shutil.rmtree(bed.path.with_name(f"{bed.path.name}-hints"))

    status = bed.ended(bed.enqueue("greet@1", name="second"))

    assert "completed" == status.state
