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
from itertools import islice
from typing import Any

from benteng.worker import framing, wire
from benteng.worker.flights import Flight
from benteng.worker.framing import Inbox, Outbox
from benteng.worker.pace import Pace
from benteng.worker.pool import Kind
from benteng.worker.shelf import PIECES_MAX, SHELF_SECONDS, Shelf
from benteng.worker.watched import Heard, Watched
from benteng.worker.wire import Line

BACKOFF_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 5.0
DELAYS_MAX = 2
BIRTHS_A_HAND = 2
"""So many cells are born at a time for each processor: more would only make all of them later."""


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
    given, given_at  how many flights it got last, and when; counted anew while it makes them quickly
    delays  how often since it had not even begun when it should have ended half of them
    spent  it must not be used again: something went wrong in it
    shelf  what it takes by itself, if its lane has shelves
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
    given: int = 0
    given_at: float = float("-inf")
    delays: int = 0
    confined: bool = False
    distrusted: bool = False
    spent: bool = False
    shelf: Shelf | None = None
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

    def seat(self, flights: list[Flight], now: float) -> None:
        """Keep room for flights, which are then given to it."""
        for flight in flights:
            self.flights[flight.handle] = flight
            flight.sent = True
        self.jobs += len(flights)
        self.given, self.given_at, self.delays = len(flights), now, 0

    def unseat(self, flights: list[Flight]) -> None:
        """Let flights go that it did not take."""
        for flight in flights:
            del self.flights[flight.handle]
        self.jobs -= len(flights)
        self.given -= len(flights)

    def goes_on(self, now: float) -> bool:
        """Whether half of what it was given has ended already: then the rest may lie there for as long again.

        One that has begun nothing was not let to by the others: it gets some more time.
        """
        left = len(self.flights)
        if left == self.given and not any(flight.started for flight in self.flights.values()):
            self.delays += 1
        elif 2 * left <= self.given:
            self.given, self.delays = left, 0
        else:
            return False
        self.given_at = now
        return self.delays <= DELAYS_MAX

    def give(self, flights: list[Flight]) -> list[Flight]:
        """Send flights that are seated to it, in as few frames as fit; return those for which it has no room after all.

        Where it has a shelf, the first of several wakes it and the others lie there.
        """
        first, refused = flights, list[Flight]()
        if self.lane.shelves and len(flights) > 1:
            first, refused = flights[:1], self._put_up().put(flights[1:])
        for data in framing.grant_frames([flight.work() for flight in first]):
            self.outbox.put(data)
        self._send()
        return refused

    def _put_up(self) -> Shelf:
        """Return its shelf, and give it one when it has none yet."""
        if self.shelf is None:
            self.shelf = Shelf()
            self.outbox.put(framing.frame(wire.Shelf()), (self.shelf.theirs.fileno(),))
        return self.shelf

    def say(self, message: wire.Stop) -> None:
        """Send one message."""
        self.outbox.put(framing.frame(message))
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
        """Yield what it says on its line. Raises EOFError, ProtocolError, BlockingIOError, ConnectionError."""
        if not self.inbox.fill(self.line):
            raise EOFError
        yield from self.murmurs()
        yield from self.inbox.messages()

    def murmurs(self) -> Iterator[tuple[Any, bytes]]:
        """Yield what it says without waking anybody: all of it was said before what comes on its line then."""
        return iter(()) if self.shelf is None else self.shelf.receive()

    def flight(self, handle: int) -> Flight:
        """Return a resident. Raises ProtocolError for a handle that is not one of its own."""
        try:
            return self.flights[handle]
        except KeyError:
            raise wire.ProtocolError("a foreign handle") from None

    def close(self) -> None:
        """Give back its descriptors."""
        self.line.close()
        if self.shelf is not None:
            self.shelf.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


@dataclass(slots=True, eq=False)
class Lane:
    """One kind of cell, with the flights that wait for one.

    width      flights in one cell at a time;  cells_max: cells with flights beside each other
    jobs_max   flights that one cell may have in its life
    ahead      idle cells beside those;  always: cells that are kept even when there is nothing to do
    shelves    its cells may have further flights before them, of the same type, while that is a quick one
    hands      so many cells are at work while flights are quick: one a processor, for more would wait for each other
    held_until  when what waits for one of these is given to others after all; inf: nothing waits so
    """

    name: str
    kind: Kind
    width: int
    cells_max: int
    jobs_max: int
    ahead: int = 0
    always: int = 0
    shelves: bool = False
    hands: int = 1
    cells: list[Cell] = field(default_factory=list[Cell])
    waiting: deque[Flight] = field(default_factory=deque[Flight])
    crashes: int = 0
    not_before: float = 0.0
    held_until: float = float("inf")
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(1 + PIECES_MAX if self.shelves else 1)

    def place(self, now: float) -> list[tuple[Cell, list[Flight]]]:
        """Return which waiting flights go to which cell now: always one that is free, never one that is merely next."""
        placed: list[tuple[Cell, list[Flight]]] = []
        self.held_until = float("inf")
        if not self.waiting:
            return placed
        hands = self._hands(now)
        for cell in self.cells:
            count = min(cell.room, len(self.waiting)) if len(placed) < hands else 0
            if count > 0:
                flights = [self.waiting.popleft() for _ in range(count)]
                if self.shelves:
                    flights += self._following(flights[0], self.jobs_max - cell.jobs - count, now)
                placed.append((cell, flights))
        if self.waiting and self.shelves and self.not_before <= now:
            self.held_until = min([now, *(cell.given_at for cell in self._quick(now))]) + SHELF_SECONDS
        return placed

    def _hands(self, now: float) -> int:
        """Return how many cells may be given work: while what waits first is quick, few. Whoever is at work counts."""
        if self._depth(self.waiting[0], now) == 1:
            return self.cells_max
        return max(0, self.hands - len(self._quick(now)))

    def _quick(self, now: float) -> list[Cell]:
        """Return the cells that will soon have ended what they have, as far as is known."""
        return [cell for cell in self.cells if cell.flights and now < cell.given_at + SHELF_SECONDS]

    def _following(self, first: Flight, most: int, now: float) -> Iterator[Flight]:
        """Yield what may lie before a cell that has that one: of its type, and no more than the next cell will have."""
        waiting = 1 + len(self.waiting)
        share = -(-waiting // -(-waiting // self._depth(first, now)))
        for _ in range(min(most, share - 1)):
            following = self.waiting[0]
            if following.grant.job.type != first.grant.job.type or following.grant.alone:
                return
            yield self.waiting.popleft()

    def _depth(self, first: Flight, now: float) -> int:
        """How many one cell may have, of which that one is the first."""
        return 1 if first.grant.alone else self.pace.depth(first.grant.job.type, now)

    def missing(self, now: float) -> int:
        """Return how many cells to start now."""
        if not (self.waiting or self.ahead):
            return self.always - self._alive(self.always)
        free = busy = alive = born = 0
        for cell in self.cells:
            free += cell.state is CellState.BORN or cell.looked_at or cell.room > 0
            busy += bool(cell.flights)
            alive += cell.state is not CellState.DYING
            born += cell.state is CellState.BORN
        wanted = max(self._needed(now) + self.ahead - free, self.always - alive)
        if self.shelves:
            wanted = min(wanted, self.hands * BIRTHS_A_HAND - born)
        return max(0, min(wanted, self.cells_max + self.ahead - busy - free))

    def _needed(self, now: float) -> int:
        """Return how many cells what waits is worth. Making one takes longer than a quick flight waits."""
        if not (self.shelves and self.waiting):
            return -(-len(self.waiting) // self.width)
        long = sum(flight.entered_at + SHELF_SECONDS <= now for flight in self.waiting)
        return min(-(-long // self._depth(self.waiting[0], now)), self._hands(now))

    def _alive(self, most: int) -> int:
        """Return how many cells are not dying, as far as that."""
        living = (1 for cell in self.cells if cell.state is not CellState.DYING)
        return sum(islice(living, most))

    def crashed(self, now: float, jitter: Callable[[], float]) -> None:
        """Note that a cell died that should not have: the next one waits, longer each time."""
        pause = min(BACKOFF_SECONDS * 2 ** min(self.crashes, 16), BACKOFF_SECONDS_MAX)
        self.crashes += 1
        self.not_before = now + pause * (0.5 + jitter())

    def worked(self) -> None:
        """Note that an attempt ended as attempts do."""
        self.crashes = 0
        self.not_before = 0.0
