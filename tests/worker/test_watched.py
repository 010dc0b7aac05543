"""Lines on a selector: what waits is sent when there is room, and nothing is heard of one that was left."""

from __future__ import annotations

import selectors
import socket

import pytest

from benteng.worker.framing import Outbox
from benteng.worker.watched import Heard, Watched
from benteng.worker.wire import ProtocolError


class Line:
    """One end of a line with an outbox, and what was heard and lost on it."""

    def __init__(self, selector):
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.outbox = Outbox()
        self.heard = []
        self.watched = Watched(selector, self.ours, self, Heard(self.hear, lambda error, now: self.heard.append(error)))

    def flush(self):
        """Send what the line takes."""
        self.outbox.flush(self.ours)

    def hear(self, now):
        """Receive once."""
        said = self.ours.recv(65_536)
        if not said:
            raise EOFError
        if said == b"lie":
            raise ProtocolError("a lie")
        self.heard.append(said)

    def close(self):
        """Give both ends back."""
        self.watched.leave()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def selector():
    """A selector of the test's own."""
    with selectors.DefaultSelector() as made:
        yield made


@pytest.fixture
def line(selector):
    """A watched line."""
    made = Line(selector)
    yield made
    made.close()


def turn(selector):
    """Let the selector's handlers have one round."""
    for key, mask in selector.select(0):
        key.data(mask, 0.0)


def test_what_waits_is_sent_when_there_is_room(selector, line):
    """More than the line takes at once arrives whole, and then nobody waits for room any more."""
    size = 4 << 20
    line.outbox.put(bytes(size))
    line.flush()
    line.watched.refresh()
    got = 0
    while got < size:
        got += len(line.theirs.recv(1 << 20))
        turn(selector)

    assert selectors.EVENT_READ == selector.get_key(line.ours).events
    assert [] == line.heard


def test_a_line_that_was_left_is_not_heard(selector, line):
    """Not even what came in the same round, before its turn."""
    other = Line(selector)
    first, second = line, other
    for each in (first, second):
        each.theirs.send(b"now")
    ready = selector.select(1)
    assert 2 == len(ready)
    ready[0][0].data(ready[0][1], 0.0)
    unheard = second if first.heard else first
    unheard.watched.leave()
    ready[1][0].data(ready[1][1], 0.0)

    assert [] == unheard.heard
    other.close()


@pytest.mark.parametrize("said,lost", [(b"", None), (b"lie", "a lie")], ids=["ended", "lied"])
def test_a_line_that_ends_or_lies_is_lost(selector, line, said, lost):
    """And which of the two it was is told."""
    if said:
        line.theirs.send(said)
    else:
        line.theirs.close()
    turn(selector)

    assert [lost] == [error and str(error) for error in line.heard]
