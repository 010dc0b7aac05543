"""Cells as the supervisor sees them: their lines, their residents, and the lanes that give them flights.

A lane is one kind of cell of a pool: how many there may be, how many are kept ahead, and how long it waits after
crashes.
Trust: nothing that comes out of a cell.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from benteng.worker import wire
from benteng.worker.flights import Flight
from benteng.worker.pool import Kind
from benteng.worker.watched import Heard, Watched
from benteng.worker.wire import Inbox, Line, Outbox

BACKOFF_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 5.0


class CellState(StrEnum):
    """born: asked for; ready: it said Hello; dying: it was killed or hung up, its end is awaited."""

    BORN = "born"
    READY = "ready"
    DYING = "dying"


@dataclass(slots=True, eq=False)
class Cell:
    """One child. `line` is our end; pid 0 until the zygote said that it runs.

    layers  what it said is in force when it said Hello; None before
    looked_at  somebody looks at it from outside; it gets no work until then
    seen_at    when somebody last did;  unseen: it was idle since and nobody has
    confined  its children live in a namespace of processes, whose first process is its child all its life
    ours  we killed it for the sake of the flight in `culprit` (None: of all): its other residents are not to blame
    """

    number: int
    lane: Lane
    line: socket.socket
    state: CellState = CellState.BORN
    pid: int = 0
    pidfd: int = -1
    flights: dict[int, Flight] = field(default_factory=dict[int, Flight])
    jobs: int = 0
    layers: frozenset[str] | None = None
    looked_at: bool = False
    seen_at: float = 0.0
    unseen: bool = False
    confined: bool = False
    distrusted: bool = False
    ours: bool = False
    inbox: Inbox = field(default_factory=lambda: Inbox(Line.CELL_BORN))
    outbox: Outbox = field(default_factory=Outbox)
    watched: Watched = field(init=False)

    def attend(self, selector: selectors.BaseSelector, heard: Heard) -> None:
        """Have its line listened to, until it is dying."""
        self.watched = Watched(selector, self.line, self, heard)

    def expect_death(self, *, ours: bool) -> None:
        """Note that it was killed or hung up: nothing that it says from now on is waited for."""
        self.state, self.ours = CellState.DYING, ours
        self.watched.leave()

    @property
    def room(self) -> int:
        """How many flights it can take now."""
        if self.state is not CellState.READY or self.looked_at or self.jobs >= self.lane.jobs_max:
            return 0
        return self.lane.width - len(self.flights)

    def hello(self) -> None:
        """Note that it stands: from now on it may be given work, unless it is dying already."""
        if self.state is CellState.BORN:
            self.state = CellState.READY
        self.inbox.line = Line.CELL_READY

    def seat(self, flights: list[Flight]) -> None:
        """Keep room for flights, which are then given to it."""
        for flight in flights:
            self.flights[flight.handle] = flight
            flight.sent = True
        self.jobs += len(flights)

    def give(self, flights: list[Flight]) -> None:
        """Send flights that are seated to it, in as few frames as fit."""
        for data in wire.grant_frames([flight.work() for flight in flights]):
            self.outbox.put(data)
        self._send()

    def say(self, message: wire.Stop) -> None:
        """Send one message."""
        self.outbox.put(wire.frame(message))
        self._send()

    def _send(self) -> None:
        self.flush()
        self.watched.refresh()

    def flush(self) -> None:
        """Send what the line takes. A line that broke is noticed when it is read."""
        try:
            self.outbox.flush(self.line)
        except ConnectionError:
            return

    def receive(self) -> Iterator[tuple[Any, bytes]]:
        """Yield what it says. Raises EOFError, ProtocolError, BlockingIOError, ConnectionError."""
        if not self.inbox.fill(self.line):
            raise EOFError
        yield from self.inbox.messages()

    def flight(self, handle: int) -> Flight:
        """Return a resident. Raises ProtocolError for a handle that is not one of its own."""
        try:
            return self.flights[handle]
        except KeyError:
            raise wire.ProtocolError("a foreign handle") from None

    def close(self) -> None:
        """Give back its descriptors."""
        self.line.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


@dataclass(slots=True, eq=False)
class Lane:
    """One kind of cell, with the flights that wait for one.

    width      flights in one cell at a time;  cells_max: cells with flights beside each other
    jobs_max   flights that one cell may have in its life
    ahead      idle cells beside those;  always: cells that are kept even when there is nothing to do
    """

    name: str
    kind: Kind
    width: int
    cells_max: int
    jobs_max: int
    ahead: int = 0
    always: int = 0
    cells: list[Cell] = field(default_factory=list[Cell])
    waiting: deque[Flight] = field(default_factory=deque[Flight])
    crashes: int = 0
    not_before: float = 0.0

    def place(self) -> list[tuple[Cell, list[Flight]]]:
        """Return which waiting flights go to which cell now: always one that is free, never one that is merely next."""
        placed: list[tuple[Cell, list[Flight]]] = []
        for cell in self.cells:
            count = min(cell.room, len(self.waiting))
            if count > 0:
                placed.append((cell, [self.waiting.popleft() for _ in range(count)]))
        return placed

    def missing(self) -> int:
        """Return how many cells to start now."""
        free = busy = alive = 0
        for cell in self.cells:
            free += cell.state is CellState.BORN or cell.looked_at or cell.room > 0
            busy += bool(cell.flights)
            alive += cell.state is not CellState.DYING
        wanted = max(-(-len(self.waiting) // self.width) + self.ahead - free, self.always - alive)
        return max(0, min(wanted, self.cells_max + self.ahead - busy - free))

    def crashed(self, now: float, jitter: Callable[[], float]) -> None:
        """Note that a cell died that should not have: the next one waits, longer each time."""
        pause = min(BACKOFF_SECONDS * 2 ** min(self.crashes, 16), BACKOFF_SECONDS_MAX)
        self.crashes += 1
        self.not_before = now + pause * (0.5 + jitter())

    def worked(self) -> None:
        """Note that an attempt ended as attempts do."""
        self.crashes = 0
        self.not_before = 0.0
