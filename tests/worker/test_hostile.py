"""What a handler can do with the line to the supervisor: nothing but end its own attempt as crashed."""

from __future__ import annotations

import os
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
    "extra",
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
]


@pytest.fixture(scope="module")
def besieged(tmp_path_factory, hostile_registry):
    """A worker that all attacks share: it must outlive them."""
    made = Bed(tmp_path_factory.mktemp("hostile"), hostile_registry)
    made.worker(app="hostile:app").wait("ready")
    yield made
    made.close()


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
