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


class Supervisor:
    """The other end of a cell's line: what it gave and how much of it did not end yet."""

    def __init__(self, line):
        self.line = line
        self.given = self.waits_for = 0
        self._inbox = Inbox(Line.CELL_READY)

    def give(self, *names):
        """Have attempts made, in this order; their handles count up from 1."""
        payload = b'{"number":1}'
        works = [
            wire.Work(self.given + n, name, 1, 1, "op", sha256_hex(payload), 30.0, len(payload))
            for n, name in enumerate(names, start=1)
        ]
        self.given += len(names)
        self.waits_for += len(names)
        self.line.sendall(framing.frame(wire.Grants(tuple(works)), payload * len(works)))

    def hear(self):
        """Return the handles of those whose ends are told next."""
        ended = []
        while not ended:
            assert self._inbox.fill(self.line)
            for message, _ in self._inbox.messages():
                if isinstance(message, wire.Ended):
                    ended += [each.handle for each in message.endings]
        self.waits_for -= len(ended)
        return ended


@pytest.fixture
def wide(tmp_path):
    """A cell of width 100 whose one thread is busy, and nine attempts that wait for it."""
    gate.clear()
    here, there = socket.socketpair()
    made = Wide(here, Workshop(app.registry, Mouth(here), tmp_path, ""), 100)
    made._grow(1)
    supervisor = Supervisor(there)
    supervisor.give(*["wait@1"] * 10)
    until(lambda: made._todo.qsize() == 9)
    yield made
    gate.set()
    while supervisor.waits_for:
        supervisor.hear()
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
def cell(tmp_path):
    """A cell of at most two threads beside the main one, and the supervisor's end of its line."""
    gate.clear()
    here, there = socket.socketpair()
    there.settimeout(PATIENCE_SECONDS)
    made = Wide(here, Workshop(app.registry, Mouth(here), tmp_path, ""), 2)
    main = threading.Thread(target=made.look_after)
    main.start()
    supervisor = Supervisor(there)
    yield made, supervisor
    gate.set()
    there.shutdown(socket.SHUT_WR)
    main.join()
    while supervisor.waits_for:  # a cell that cannot say an end is over, and here that is this process
        supervisor.hear()
    here.close()
    there.close()


def test_no_end_waits_behind_the_work_of_others(cell):
    """Whose thread goes on with something long has its end said by the main thread."""
    made, supervisor = cell
    made._width = 1
    supervisor.give("quick@1", "wait@1")

    assert [1] == supervisor.hear()


@pytest.mark.parametrize("rested", [False, True], ids=["at once", "after a rest"])
def test_a_line_is_read_although_who_reads_is_away(cell, rested):
    """The thread that took a frame stays in its work: the next frame is taken and made by others."""
    made, supervisor = cell
    until(lambda: made._asleep or not rested)
    supervisor.give("wait@1")
    until(lambda: made._frames == 1)
    supervisor.give("quick@1")

    assert [2] == supervisor.hear()


def test_a_line_that_ends_is_noticed_although_who_reads_is_away(cell):
    """The cell ends with its line, whatever its threads do."""
    made, supervisor = cell
    supervisor.give("wait@1", "wait@1", "wait@1")
    until(lambda: made._threads == 2)

    supervisor.line.shutdown(socket.SHUT_WR)

    until(lambda: made._over)


def test_what_is_no_frame_ends_the_cell_by_its_main_thread(tmp_path):
    """Whichever thread reads it."""
    here, there = socket.socketpair()
    there.sendall(b"\0" * framing.PREFIX.size)

    with pytest.raises(wire.ProtocolError):
        Wide(here, Workshop(app.registry, Mouth(here), tmp_path, ""), 1).look_after()

    here.close()
    there.close()
