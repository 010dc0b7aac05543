"""The cells of a pool and the flights in them, above the crew that makes cells. Knows nothing of the store.

Flights go in by `enter`; each comes out once, in `ended`, with its outcome. Whatever breaks a rule of the wire is
killed and its flights are crashed; whatever does not end when it should is killed by force.
Trust: nothing that a zygote or a cell says.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from benteng.outcome import Completed, Lost, Unstarted
from benteng.policy import TypePolicy
from benteng.redact import clean_line
from benteng.worker import blocked, framing, isolation, wire
from benteng.worker.cells import Cell, CellState, Lane
from benteng.worker.crew import Crew, Ears, Loss
from benteng.worker.flights import Flight, StopReason
from benteng.worker.hatchery import Sight
from benteng.worker.lanes import Lanes
from benteng.worker.lookout import Hands, Lookout
from benteng.worker.means import Means
from benteng.worker.output import Output
from benteng.worker.pool import KINDS, Kind
from benteng.worker.reports import Reports
from benteng.worker.scratch import PLACE
from benteng.worker.seats import Seats
from benteng.worker.shelf import PIECES_MAX
from benteng.worker.timers import Timers
from benteng.worker.watched import Heard

BIRTH_SECONDS_MAX = 60.0
DEATH_SECONDS_MAX = 10.0
WAIT_SECONDS_MAX = 60.0
KEPT_SECONDS_MAX = 1.0
END_SECONDS = 1.5


class Yard:
    """The cells of one pool, on the selector of its supervisor. `ended`: flights that came out and were not taken."""

    def __init__(self, means: Means, selector: selectors.BaseSelector) -> None:
        self._means = means
        self._selector = selector
        self._hatchery = means.hatchery
        self._cells: dict[int, Cell] = {}
        self._lanes = Lanes(means.nest.pool, means.policies)
        self._reports = Reports(means.nest.pool.name, means.say, self._let_out)
        self._numbers = count(1)
        self._timers = Timers()
        self._since: dict[int, float] = {}
        self._output = Output(means.say)
        self._dirty = False
        self.crew = Crew(means, selector, self._ears())
        self._seats = Seats(self._cells, self.crew, self._timers)
        self._lookout = Lookout(self._cells, means.nest, means.hatchery, self._hands())
        self.ended: list[Flight] = []

    # ---------------------------------------------------------------------------------------------------------- flights

    def takes(self, policy: TypePolicy) -> bool:
        """Whether flights of a type may come in: a lane whose cells crash rests, and the others go on."""
        return not self._lanes.rests(KINDS[policy.tier])

    @property
    def waiting(self) -> bool:
        """Whether a flight waits for a cell."""
        return self._lanes.waiting

    @property
    def flowing(self) -> bool:
        """Whether a cell makes several flights, one after the other."""
        return self._seats.flowing

    def portions(self, flights: Sequence[Flight]) -> Iterator[Sequence[Flight]]:
        """Yield flights in portions that are each worth the waking of a cell."""
        wide = all(KINDS[flight.policy.tier] is Kind.WIDE for flight in flights)
        size = max(1, len(flights)) if wide else 1 + PIECES_MAX
        for first in range(0, len(flights), size):
            yield flights[first : first + size]

    def enter(self, flights: Iterable[Flight], now: float) -> None:
        """Take flights in. They wait for a cell if they must, but not for ever."""
        for flight in flights:
            flight.entered_at = now
            self._lanes.of(flight).waiting.append(flight)

    def stop(self, flight: Flight, reason: StopReason, now: float, *, grace_seconds: float | None = None) -> None:
        """End a flight: asked first, killed after the grace. A lost lease is not asked."""
        if flight.outcome is not None:
            return
        cell = self._seats.cell_of(flight.handle)
        if cell is not None:
            self._seats.take_back(cell, now)
        if cell is None or not flight.sent:
            self._withdraw(flight, f"not started ({reason})", lost=reason is StopReason.LOST)
            return
        sooner = flight.stop is None or reason in (StopReason.LEASE, StopReason.LOST)
        flight.stop = reason if sooner else flight.stop
        if reason in (StopReason.LEASE, StopReason.LOST):
            self._kill(cell, now)
            return
        self._ask(cell, flight)
        if not (reason is StopReason.CANCEL and cell.lane.kind is Kind.WIDE and cell.lane.width > 1):
            grace = flight.policy.limits.grace_seconds if grace_seconds is None else grace_seconds
            self._kill_later(flight, now + grace)

    def withdraw_waiting(self, now: float) -> None:
        """Give back every flight that no cell has yet."""
        for cell in self._cells.values():
            self._seats.take_back(cell, now)
        for lane in self._lanes:
            for flight in tuple(lane.waiting):
                self._withdraw(flight, "not started (drain)")

    def guard(self, flights: Iterable[Flight]) -> None:
        """Tell the zygote when each cell must be dead if it hears nothing more."""
        self._seats.guard(flights)

    def _withdraw(self, flight: Flight, why: str, *, lost: bool = False) -> None:
        self._lanes.of(flight).waiting.remove(flight)
        flight.outcome = Lost() if lost else Unstarted(why)
        self.ended.append(flight)

    def _ask(self, cell: Cell, flight: Flight) -> None:
        if cell.lane.kind is Kind.WIDE:
            cell.say(wire.Stop(flight.handle))
        elif flight.handle == next(reversed(cell.flights)):  # the others that it has taken have ended: it says so soon
            self._signal(cell, signal.SIGTERM)

    def _signal(self, cell: Cell, number: int) -> None:
        if cell.pidfd >= 0:
            self._hatchery.signal(cell.pidfd, number)

    # ------------------------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Do what is due: start zygote and cells, send waiting flights, stop and kill what is over time."""
        self.crew.tick(now)
        self._reports.expire(now)
        self._over_time(now)
        self._clear_shelves(now)
        self._lookout.tick(now)
        self._seats.unguard(now)
        self._lanes.rest(now)
        self.dispatch(now)
        for lane in self._lanes:
            if lane.waiting and now - lane.waiting[0].entered_at > WAIT_SECONDS_MAX:
                self._withdraw(lane.waiting[0], "no cell was free for too long")
        self._dirty = self.crew.sweep()

    def dispatch(self, now: float) -> None:
        """Send waiting flights to cells that have room, and start cells for the others."""
        if self.crew.works:
            for lane in self._lanes:
                self._seats.fill(lane, now)
                self._staff(lane, now)

    def wake_at(self, now: float) -> float:
        """Return when `tick` is wanted again at the latest."""
        if self._dirty:
            return now
        soon = now + (0.25 if self._since else 1.0)
        return min(
            soon, self._seats.wakes_at(), self._lanes.wakes_at(now), self.crew.wakes_at(), self._timers.wakes_at()
        )

    def overdue(self, now: float, slack: float) -> list[Flight]:
        """Return flights that should have ended long ago: none unless this program is at fault."""
        return [f for cell in self._cells.values() for f in cell.flights.values() if now > f.kill_at + slack]

    def _over_time(self, now: float) -> None:
        for flight in self._timers.due(now):
            cell = self._seats.cell_of(flight.handle)
            if cell is None:
                continue
            if flight.kill_at <= now:
                self._kill(cell, now)
            elif flight.deadline <= now and flight.stop is None:
                self.stop(flight, StopReason.DEADLINE, now)
            elif flight.deadline <= now:
                self._kill_later(flight, flight.deadline + flight.policy.limits.grace_seconds)
        self._slow(now)

    def _kill_later(self, flight: Flight, when: float) -> None:
        flight.kill_at = min(flight.kill_at, when)
        self._timers.add(flight.kill_at, flight)

    def _slow(self, now: float) -> None:
        """Kill what is not born or keeps what it does not make, and give up a zygote that does not report a death."""
        for number, since in tuple(self._since.items()):
            cell = self._cells[number]
            if cell.state is CellState.BORN and now - since > BIRTH_SECONDS_MAX:
                self._kill(cell, now, ours=False)
            elif cell.state is CellState.READY and now - since > KEPT_SECONDS_MAX:
                self._distrust(cell, "has taken what it does not make", now)
            elif cell.state is CellState.DYING and now - since > DEATH_SECONDS_MAX:
                self._lose(Loss("does not report that a cell died"), now)
                return

    # ------------------------------------------------------------------------------------------------------------ cells

    def _staff(self, lane: Lane, now: float) -> None:
        if now < lane.not_before:
            return
        for _ in range(lane.missing(now)):
            self._spawn(lane, now)

    def _spawn(self, lane: Lane, now: float) -> None:
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        cell = Cell(number, lane, ours)
        cell.attend(self._selector, Heard(partial(self._hear, cell), partial(self._lost, cell)))
        self._cells[number] = cell
        self._since[number] = now
        lane.cells.append(cell)
        self.crew.spawn(theirs, wire.Spawn(number, lane.kind, lane.width, self._lanes.limits(lane.kind)))

    def _hear(self, cell: Cell, now: float) -> None:
        message = None
        for message, tail in cell.receive():
            self._take(cell, message, tail, now)
        if cell.shelf is not None and cell.state is CellState.READY:
            self._quiet(cell, now, ended=isinstance(message, wire.Ended))

    # ---------------------------------------------------------------------------------------------------------- shelves

    def _clear_shelves(self, now: float) -> None:
        """Let nothing lie for long: behind an attempt that takes its time, or in words that were to wake nobody."""
        for cell in self._seats.due(now):
            self._hear_murmurs(cell, now)
            if not cell.goes_on(now) and self._seats.take_back(cell, now) and cell.shelf is not None:
                cell.shelf.late = True
                cell.lane.pace.late(cell.shelf.type, now)
            self._seats.lay(cell, now)  # those of which all but the last have ended are looked at no more

    def _quiet(self, cell: Cell, now: float, *, ended: bool) -> None:
        """Take back what lies before a cell that has said its last word: it takes no more, and owes the rest."""
        self._since.pop(cell.number, None)
        if ended and cell.flights:
            self._seats.take_back(cell, now)
            self._rest(cell, now)
        if ended and cell.flights:
            self._since[cell.number] = now

    def _hear_murmurs(self, cell: Cell, now: float) -> None:
        try:
            for message, tail in cell.murmurs():
                self._take(cell, message, tail, now)
        except wire.ProtocolError as error:
            self._distrust(cell, str(error), now)

    def _lost(self, cell: Cell, error: wire.ProtocolError | None, now: float) -> None:
        if error is None:
            self._kill(cell, now, ours=cell.ours)
        else:
            self._distrust(cell, str(error), now)

    def _take(self, cell: Cell, message: Any, tail: bytes, now: float) -> None:
        match message:
            case wire.Hello(layers):
                cell.layers = frozenset(layers)
                self._lookout.look(cell, now)
            case wire.Started(handles):
                for handle in handles:
                    _start(cell.flight(handle))
            case wire.Ended():
                for ending, part in framing.ends(message, tail):
                    flight = cell.flight(ending.handle)
                    flight.end(ending, part)
                    flight.sentences = self._blocked(cell, flight, ending.denied)
                    self._landed(cell, flight, now)
            case wire.Progress(handle, text):
                self._output.take(cell, handle, text, progress=True)
            case wire.Log(handle, text):
                self._output.take(cell, handle, text, progress=False)
            case _:
                raise wire.ProtocolError("not for a supervisor")
        if tail and not isinstance(message, wire.Ended):
            raise wire.ProtocolError("a tail that nothing asks for")

    def _blocked(self, cell: Cell, flight: Flight, denied: wire.Denied | None) -> tuple[str, ...]:
        """Return what to say about a denial, if the walls of its cell were the reason. LOW has none."""
        if denied is None or cell.lane.kind is Kind.WIDE or self._means.nest.pool.waive:
            return ()
        if denied.act is wire.Act.NETWORK and self.crew.desk is not None:  # the broker knows better what it refused
            return ()
        told = wire.Denied(denied.act, clean_line(flight.told(denied.path)))
        return (blocked.sentence(told, self.crew.nursery.bounds),)

    def _stands(self, cell: Cell) -> None:
        cell.hello()
        self._since.pop(cell.number, None)

    def _full(self, cell: Cell, now: float) -> None:
        self._seats.take_back(cell, now)
        for flight in cell.flights.values():
            flight.stop = flight.stop or StopReason.SCRATCH
        self._means.say("scratch_full", cell=cell.number, pid=cell.pid)
        self._kill(cell, now)

    def _landed(self, cell: Cell, flight: Flight, now: float) -> None:
        """Let out a flight that ended. At HIGH it stays until the kernel has said how its cell did: see `_accuse`."""
        if cell.lane.kind is Kind.SINGLE:
            cell.lane.worked()
            self._kill(cell, now)
            return
        self._seats.leave(cell, flight)
        self._end(flight, now)
        cell.lane.worked()
        if cell.lane.kind is Kind.SERIAL:
            cell.spent = cell.spent or not isinstance(flight.outcome, Completed)
        elif flight.scratch:
            self._hatchery.drop(cell.number, flight.handle)
        self._rest(cell, now)

    def _rest(self, cell: Cell, now: float) -> None:
        """Look after a cell that has no flight any more; it must not be used again when it is spent."""
        if cell.flights:
            return
        self._seats.clear(cell.number)
        if cell.shelf is not None:
            if cell.shelf.flowed:
                cell.lane.pace.flowed(cell.shelf.type)
            cell.shelf.clear()
        if cell.lane.kind is Kind.SERIAL:
            self._hatchery.drop(cell.number, PLACE)
        if cell.state is not CellState.READY:
            return
        if cell.spent or cell.jobs >= cell.lane.jobs_max:
            self._kill(cell, now)
        elif cell.lane.kind is Kind.WIDE:  # LOW may share a cell, also with what another has left: for a second at most
            self._lookout.look_later(cell, now)
        else:
            self._lookout.look(cell, now)

    # ------------------------------------------------------------------------------------------------------------ death

    def _distrust(self, cell: Cell, why: str, now: float) -> None:
        cell.distrusted = True
        self._means.say("suspicious", cell=cell.number, pid=cell.pid, why=why)
        self._kill(cell, now, ours=False)

    def _kill(self, cell: Cell, now: float, *, ours: bool = True) -> None:
        """Kill a cell and its group. Its flights end when it is reaped. `ours`: not by a fault of its residents."""
        if cell.state is CellState.DYING:
            return
        self._seats.take_back(cell, now)
        self._seats.clear(cell.number)
        cell.expect_death(ours=ours)
        self._since[cell.number] = now
        if cell.pidfd >= 0:
            self._signal(cell, signal.SIGKILL)
        else:  # nobody but the zygote knows it yet
            self.crew.say(wire.End(cell.number))

    def _exited(self, message: wire.Exited, now: float) -> None:
        cell = self._cells.get(message.cell)
        if cell is None:
            raise wire.ProtocolError("the death of an unknown cell")
        if cell.state is not CellState.DYING:
            cell.expect_death(ours=message.guarded)
        self._last_words(cell, now)
        if isolation.is_violation(message.status) and cell.lane.kind is not Kind.WIDE:
            self._accuse(cell)
        self._bury(cell, describe(message.status), now)

    def _accuse(self, cell: Cell) -> None:
        """The kernel ended it for a call that nothing makes by accident: what ran in it is suspicious, for certain.

        Whatever it said before, and although we may have been about to end it.
        """
        pool, cell.ours = self._means.nest.pool, False
        why = "" if pool.waive else blocked.violation(pool.name, listed=bool(pool.exec))
        self._means.say("suspicious", cell=cell.number, pid=cell.pid, why=isolation.VIOLATION)
        for flight in cell.flights.values():
            flight.accuse(isolation.VIOLATION, why)

    def _last_words(self, cell: Cell, now: float) -> None:
        """Read what a dead cell had said completely: an end that was said counts. What it took counts as started."""
        self._seats.take_back(cell, now)
        try:
            for said, tail in () if cell.distrusted else cell.murmurs():
                self._take(cell, said, tail, now)
            while not cell.distrusted:
                for said, tail in cell.receive():
                    self._take(cell, said, tail, now)
        except (EOFError, OSError):
            pass
        except wire.ProtocolError as error:
            self._means.say("suspicious", cell=cell.number, pid=cell.pid, why=str(error))
        for flight in () if cell.shelf is None else cell.shelf.taken:
            flight.started = flight.started or flight.outcome is None

    def _bury(self, cell: Cell, how: str, now: float) -> None:
        flights = list(cell.flights.values())
        suspects = [flight for flight in flights if flight.started and flight.stop is None]
        for flight in flights:
            flight.die(how, shared=len(suspects) > 1, ours=cell.ours)
            self._seats.vacate(flight)
            self._end(flight, now)
        if not cell.ours:
            self._means.say("cell_died", cell=cell.number, pid=cell.pid, how=how, attempts=len(flights))
            cell.lane.crashed(now, self._means.rng.random)
        self._forget(cell)

    def _forget(self, cell: Cell) -> None:
        cell.close()
        cell.lane.cells.remove(cell)
        del self._cells[cell.number]
        self._since.pop(cell.number, None)
        self._output.forget(cell.number)
        self._seats.forget(cell.number)
        self._hatchery.drop(cell.number)

    def _lose(self, loss: Loss, now: float) -> None:
        """The crew is gone or not to be trusted: no cell outlives it, and a new one is started later."""
        cells = list(self._cells.values())
        for cell in cells:
            self._signal(cell, signal.SIGKILL)
        dead = self.crew.fall(loss.why)
        for cell in cells:
            if cell.state is not CellState.DYING:
                cell.expect_death(ours=False)
            self._last_words(cell, now)
            self._leave_to_lease(() if dead else cell.flights.values())
        self._dismiss_broker()
        self._bury_together(cells, f"the zygote {loss.why}", now, ours=loss.ours)
        self.crew.rest(now)

    def _bury_together(self, cells: list[Cell], how: str, now: float, *, ours: bool) -> None:
        suspects = [f for cell in cells for f in cell.flights.values() if f.started and f.stop is None]
        for cell in cells:
            for flight in cell.flights.values():
                flight.die(how, shared=len(suspects) > 1, ours=ours)
                self._seats.vacate(flight)
                self.ended.append(flight)
            cell.flights.clear()
            cell.ours = True
            self._bury(cell, how, now)

    @staticmethod
    def _leave_to_lease(flights: Iterable[Flight]) -> None:
        """Settle nothing for what may still run: the cells' guards end it before its lease does."""
        for flight in flights:
            flight.outcome = flight.outcome or Lost()

    # ------------------------------------------------------------------------------------------------------------ crew

    def _ears(self) -> Ears:
        return Ears(self._born, self._exited, self._sighted, self._registered, self._reports.take, self._lose)

    def _hands(self) -> Hands:
        return Hands(self._stands, self._kill, self._distrust, self._full)

    def _sighted(self, number: int, sight: Sight, now: float) -> None:
        self._lookout.sighted(number, sight, now)

    def _born(self, message: wire.Spawned, now: float) -> None:
        cell = self._cells.get(message.cell)
        if cell is None or cell.pid:
            raise wire.ProtocolError("the birth of an unknown cell")
        self.crew.nursery.adopt(cell, message)
        if cell.state is CellState.DYING:
            self._signal(cell, signal.SIGKILL)
            return
        self._lookout.look(cell, now)

    def _registered(self, handle: int, now: float) -> None:
        """Give a cell the flight that may connect now; one that is to be stopped was never started."""
        cell = self._seats.cell_of(handle)
        if cell is None or cell.state is CellState.DYING:
            return
        flight = cell.flight(handle)
        if flight.stop is None:
            cell.give([flight])
        else:
            flight.outcome = Unstarted(f"not started ({flight.stop})")
            self._landed(cell, flight, now)

    def _end(self, flight: Flight, now: float) -> None:
        """Let a flight out that was in a cell; where there is a broker, once it has said what it did."""
        desk = self.crew.desk
        if desk is None or not desk.up:
            self._let_out(flight)
            return
        self._reports.expect(flight, now)
        desk.drop(flight.handle)

    def _let_out(self, flight: Flight) -> None:
        flight.explain()
        self.ended.append(flight)

    def _dismiss_broker(self) -> None:
        self.crew.dismiss()
        self._reports.close()

    # ------------------------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Kill everything and delete the scratch directories."""
        for cell in self._cells.values():
            self._signal(cell, signal.SIGKILL)
        self.crew.nursery.stop(END_SECONDS)
        self._dismiss_broker()
        for cell in list(self._cells.values()):
            if cell.state is not CellState.DYING:
                cell.expect_death(ours=True)
            self._forget(cell)
        self._hatchery.close()


def describe(status: int) -> str:
    """Return how a process ended, for people."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = next((known.name for known in signal.Signals if known == number), f"signal {number}")
        return f"the cell was killed by {name}"
    return f"the cell exited with status {os.WEXITSTATUS(status)}"


def _start(flight: Flight) -> None:
    if flight.started or flight.outcome is not None:
        raise wire.ProtocolError("started twice")
    flight.started = True
