"""What a handler can do with the line to the supervisor: nothing but end its own attempt as crashed."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from tests.worker.bed import Bed

ATTACKS = [
    "length",
    "version",
    "garbage",
    "zygote",
    "hello",
    "grants",
    "foreign",
    "started",
    "unstarted",
    "nobody",
    "extra",
    "extra-ending",
    "sizes",
    "result",
    "failed-result",
    "successor",
    "nan",
    "inf",
    "negative",
    "tail",
    "deep",
    "flood",
    "strays",
    "progress",
    "line",
    "foreign-started",
    "many-started",
    "zero",
    "all-tail",
    "bytes-for-text",
    "huge-handle",
    "guard",
]
MEMORY_KB = 32 << 10
"""What all attacks together may add to the peak of the worker's memory."""


@pytest.fixture(scope="module")
def besieged(tmp_path_factory, hostile_registry):
    """A worker that all attacks share: it must outlive them."""
    made = Bed(tmp_path_factory.mktemp("hostile"), hostile_registry)
    made.worker(app="hostile:app").wait("ready")
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def memory_before(besieged):
    """What the worker had before the first attack."""
    return memory_kb(besieged.workers[0].pid, "VmRSS")


@pytest.mark.parametrize("name", ATTACKS)
def test_a_frame_that_is_not_permitted_kills_the_cell(besieged, name):
    """The attempt is crashed, the cell is named as suspicious, and the worker goes on with the next job."""
    worker = besieged.workers[0]
    before = len(worker.all("suspicious"))
    job = besieged.enqueue("hostile@1", name=name)

    status = besieged.ended(job)

    assert ("quarantined", "crashed") == (status.state, status.reason)
    assert before + 1 == len(worker.all("suspicious"))
    assert f'"{name}"'.encode() == besieged.ended(besieged.enqueue("good@1", name=name)).result


def test_half_a_frame_is_no_word(besieged):
    """A cell that dies in the middle of a frame has said nothing."""
    status = besieged.ended(besieged.enqueue("hostile@1", name="truncated"))

    assert ("quarantined", "crashed") == (status.state, status.reason)


def memory_kb(pid, field):
    """A field of /proc/PID/status in kB: how much memory the process has now, or had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@pytest.mark.parametrize("name, reason", [("flood-of-output", "crashed"), ("trickle", "exhausted")])
def test_who_never_stops_is_ended_and_others_go_on(besieged, name, reason):
    """A flood by the worker's own bound, a frame without end by the deadline; a job beside it finishes meanwhile."""
    attack = besieged.enqueue("endless@1", name=name)

    assert f'"beside-{name}"'.encode() == besieged.ended(besieged.enqueue("good@1", name=f"beside-{name}")).result
    ended = besieged.ended(attack)
    assert ("quarantined", reason) == (ended.state, ended.reason)


def test_a_line_of_ten_megabytes_is_cut(besieged):
    """A job that prints it is careless, not hostile: its output is cut and its work counts."""
    assert b'"talks"' == besieged.ended(besieged.enqueue("talks@1", name="talks")).result


@pytest.mark.parametrize("claim", ["completed", "transient", "snoozed"])
def test_a_cell_claims_nothing_better_than_what_was_seen(besieged, claim):
    """The kernel ended it for a violation: what it had not said to the end does not count, and it is not retried."""
    ended = besieged.ended(besieged.enqueue("claims@1", name=claim, host="web-1"))

    assert ("quarantined", "suspicious") == (ended.state, ended.reason)


def test_a_whole_word_does_not_hide_a_violation(besieged):
    """At HIGH an end counts once it is known how the cell died: both are there when the worker looks again."""
    worker = besieged.workers[0]
    job = besieged.enqueue("lies@1", name="lies", host="web-1")
    cell = os.pidfd_open(int(besieged.effect("lies").rpartition("=")[2]))
    worker.kill(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    besieged.go()
    assert select.select([cell], [], [], 10)[0]
    os.close(cell)

    worker.kill(signal.SIGCONT)

    ended = besieged.ended(job)
    assert ("quarantined", "suspicious") == (ended.state, ended.reason)


def descriptors(pid):
    """How many descriptors a process has; only root can see it, the worker hides from its own user."""
    folder = Path(f"/proc/{pid}/fd")
    return sum(1 for _ in folder.iterdir()) if os.access(folder, os.R_OK) else 0


def test_descriptors_from_a_cell_are_dropped(besieged):
    """What a cell attaches to its frames never arrives in the process that holds the credential."""
    worker = besieged.workers[0]
    before = descriptors(worker.pid)

    status = besieged.ended(besieged.enqueue("hostile@1", name="descriptors"))

    assert b'"sent"' == status.result
    assert abs(descriptors(worker.pid) - before) <= 4


def test_no_attack_costs_the_worker_memory(besieged, memory_before):
    """Seen from outside, at the peak: frames are bounded before they are read, and what waits is bounded too."""
    worker = besieged.workers[0]

    assert memory_kb(worker.pid, "VmHWM") - memory_before <= MEMORY_KB
