"""The threads of a wide cell: as many as its work waits for, and each end is said although others still work."""

from __future__ import annotations

import socket
import threading

import pytest

from benteng.app import Benteng
from benteng.job import sha256_hex
from benteng.worker import framing, wire
from benteng.worker.attempt import Mouth, Workshop
from benteng.worker.framing import Inbox
from benteng.worker.wide import GROWTH, Wide
from benteng.worker.wire import Line
from tests.support.waiting import until

app = Benteng()
gate = threading.Event()
PATIENCE_SECONDS = 30.0


@app.job("wait@1")
def wait(number: int) -> None:
    """Stay until the test is over."""
    del number
    gate.wait()


@app.job("quick@1")
def quick(number: int) -> None:
    """Be done."""
    del number


@pytest.fixture
def wide(tmp_path):
    """A cell of width 100 whose one thread is busy, and nine attempts that wait for it."""
    gate.clear()
    here, there = socket.socketpair()
    made = Wide(Workshop(app.registry, Mouth(here), tmp_path, ""), 100)
    payload = b'{"number":1}'
    works = [wire.Work(n, "wait@1", 1, 1, "op", sha256_hex(payload), 30.0, len(payload)) for n in range(1, 11)]
    made._take(wire.Grants(tuple(works)), payload * len(works))
    until(lambda: made._todo.qsize() == 9)
    yield made
    gate.set()
    inbox, ended = Inbox(Line.CELL_READY), 0
    while ended < len(works):
        inbox.fill(there)
        ended += sum(len(message.endings) for message, _ in inbox.messages() if isinstance(message, wire.Ended))
    here.close()
    there.close()


def test_work_that_stands_still_gets_threads(wide):
    """A few for each that there is, until nothing waits."""
    found = [wide._threads]
    while waiting := wide._todo.qsize():
        wide._relieve(waiting)
        found.append(wide._threads)
        until(lambda: wide._todo.qsize() == max(0, 10 - wide._threads))

    assert [1, 1 + GROWTH, 10] == found


def test_work_that_moves_gets_none(wide):
    """Half of what waited was taken meanwhile: the rest will be soon, also where the machine is busy."""
    wide._relieve(before=18)

    assert 1 == wide._threads


def test_there_are_never_more_threads_than_attempts_beside_each_other(wide):
    """The width is the pool's concurrency."""
    wide._width = 2

    wide._relieve(before=9)

    assert 2 == wide._threads


@pytest.fixture
def line(tmp_path):
    """The supervisor's end of the line to a cell of one thread that reads."""
    gate.clear()
    here, there = socket.socketpair()
    there.settimeout(PATIENCE_SECONDS)
    made = Wide(Workshop(app.registry, Mouth(here), tmp_path, ""), 1)
    reader = threading.Thread(target=made.read, args=(here,))
    reader.start()
    yield there
    gate.set()
    there.shutdown(socket.SHUT_WR)
    reader.join()
    until(made._todo.empty)
    here.close()
    there.close()


def give(line, *names):
    """Have attempts made, in this order."""
    payload = b'{"number":1}'
    works = [
        wire.Work(n, name, 1, 1, "op", sha256_hex(payload), 30.0, len(payload)) for n, name in enumerate(names, start=1)
    ]
    line.sendall(framing.frame(wire.Grants(tuple(works)), payload * len(works)))


def test_no_end_waits_behind_the_work_of_others(line):
    """Whose thread goes on with something long has its end said by the reader."""
    give(line, "quick@1", "wait@1")

    assert [1] == next(ends(line))


def ends(line):
    """Yield the handles of each frame that tells ends."""
    inbox = Inbox(Line.CELL_READY)
    while inbox.fill(line):
        for message, _ in inbox.messages():
            if isinstance(message, wire.Ended):
                yield [each.handle for each in message.endings]
