"""All processes of a pool: its zygote, its cells, and the flights in them. Knows nothing of the store.

Flights go in by `enter`; each comes out once, in `ended`, with its outcome. Whatever breaks a rule of the wire is
killed and its flights are crashed; whatever does not end when it should is killed by force.
Trust: nothing that a zygote or a cell says.
"""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any, Protocol

from benteng.outcome import Completed, Lost, Unstarted
from benteng.policy import Limits, Tier, TypePolicy
from benteng.redact import clean_line
from benteng.worker import blocked, isolation, wire
from benteng.worker.asked import DesertedError
from benteng.worker.cells import Cell, CellState, Lane
from benteng.worker.egress.desk import Desk, Ears
from benteng.worker.flights import LOG_BYTES_MAX, Flight, StopReason
from benteng.worker.hatchery import Hatchery, Sight
from benteng.worker.nursery import Nest, Nursery, NurseryState
from benteng.worker.pool import KINDS, TIERS, Kind, Pool

BIRTH_SECONDS_MAX = 60.0
DEATH_SECONDS_MAX = 10.0
WAIT_SECONDS_MAX = 60.0
END_SECONDS = 1.5
ZYGOTE_BACKOFF_SECONDS = 0.1
ZYGOTE_BACKOFF_SECONDS_MAX = 30.0
MEASURE_SECONDS = 1.0
GUARD_SHARE = 0.5
UNGUARD_SECONDS = 2.0
"""More than the second after which `tick` is wanted again at the latest."""

SCRATCH_FILES = 4
"""A MEDIUM or HIGH cell may hold so many times the size of its largest file on the disk."""

REPORT_SECONDS_MAX = 1.0
"""A job is not settled later than this because its broker says nothing."""

STRAYS_MAX = 1_000
PROGRESS_MAX = 10_000
WIDE_JOBS_MAX = 1 << 62


class Say(Protocol):
    """Tells people and machines what happened: an event's name, and fields that are safe to show."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Tell it."""
        ...


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why the zygote says that the app cannot be used."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Means:
    """What a yard works with. Randomness is an argument; time is given with each call.

    broker: the line to an egress broker that our launcher started; None: the yard starts its own.
    """

    nest: Nest
    policies: Mapping[str, TypePolicy]
    hatchery: Hatchery
    rng: Random
    say: Say
    broker: list[socket.socket] | None = None


class Yard:
    """The processes of one pool, on the selector of its supervisor.

    `refused`: why there will be no zygote. `deserted`: the warden is gone for good.
    """

    def __init__(self, means: Means, selector: selectors.BaseSelector) -> None:
        self._means = means
        self._selector = selector
        self._hatchery = means.hatchery
        self._nursery = Nursery(means.nest, means.hatchery)
        self._cells: dict[int, Cell] = {}
        self._where: dict[int, Cell] = {}
        self._lanes = lanes_of(means.nest.pool, means.policies)
        self._by_name = {lane.name: lane for lane in self._lanes}
        self._desk = Desk(means.nest.pool, selector, self._ears(), means.broker) if means.nest.pool.egress else None
        self._reporting: dict[int, tuple[float, Flight]] = {}
        self._numbers = count(1)
        self._timers: list[tuple[float, int, Flight]] = []
        self._order = count()
        self._since: dict[int, float] = {}
        self._guards: dict[int, float] = {}
        self._strays: dict[int, int] = {}
        self._warden: socket.socket | None = None
        self._measure_at = 0.0
        self._dirty = False
        self._zygote_at = 0.0
        self._zygote_failures = 0
        self._zygote_since = 0.0
        self._resting: frozenset[Kind] = frozenset()
        self._approved = False
        self.ended: list[Flight] = []
        self.reported: dict[str, TypePolicy] | None = None
        self.refused: Unusable | None = None
        self.deserted = False

    # ---------------------------------------------------------------------------------------------------------- flights

    @property
    def open(self) -> bool:
        """Whether flights may come in: the zygote stands and is approved."""
        return self._works

    def takes(self, policy: TypePolicy) -> bool:
        """Whether flights of a type may come in: a lane whose cells crash rests, and the others go on."""
        return KINDS[policy.tier] not in self._resting

    @property
    def waiting(self) -> bool:
        """Whether a flight waits for a cell."""
        return any(lane.waiting for lane in self._lanes)

    @property
    def _works(self) -> bool:
        return self._approved and self._nursery.state is NurseryState.READY

    def approve(self) -> None:
        """Let the zygote that reported make cells: what it imported is what was reviewed."""
        self._approved = True

    @property
    def zygote(self) -> int:
        """The zygote's pid; 0 when there is none."""
        return self._hatchery.pid

    @property
    def children(self) -> frozenset[int]:
        """The pids of zygote and broker; 0 for one that is not there."""
        return frozenset({self._hatchery.pid, 0 if self._desk is None else self._desk.pid})

    def enter(self, flights: Iterable[Flight], now: float) -> None:
        """Take flights in. They wait for a cell if they must, but not for ever."""
        for flight in flights:
            flight.entered_at = now
            self._lane(flight).waiting.append(flight)

    def stop(self, flight: Flight, reason: StopReason, now: float, *, grace_seconds: float | None = None) -> None:
        """End a flight: asked first, killed after the grace. A lost lease is not asked."""
        if flight.outcome is not None:
            return
        if not flight.sent:
            self._withdraw(flight, f"not started ({reason})", lost=reason is StopReason.LOST)
            return
        sooner = flight.stop is None or reason in (StopReason.LEASE, StopReason.LOST)
        flight.stop = reason if sooner else flight.stop
        cell = self._where[flight.handle]
        if reason in (StopReason.LEASE, StopReason.LOST):
            self._kill(cell, now)
            return
        self._ask(cell, flight)
        if not (reason is StopReason.CANCEL and cell.lane.kind is Kind.WIDE and cell.lane.width > 1):
            grace = flight.policy.limits.grace_seconds if grace_seconds is None else grace_seconds
            self._kill_later(flight, now + grace)

    def withdraw_waiting(self) -> None:
        """Give back every flight that no cell has yet."""
        for lane in self._lanes:
            for flight in tuple(lane.waiting):
                self._withdraw(flight, "not started (drain)")

    def guard(self, flights: Iterable[Flight]) -> None:
        """Tell the zygote when each cell must be dead if it hears nothing more: by the shortest lease in it."""
        until: dict[int, float] = dict.fromkeys(self._cells, 0.0)
        for flight in flights:
            cell = self._where.get(flight.handle)
            if cell is not None:
                known = until[cell.number]
                until[cell.number] = min(known, flight.lease_until) if known else flight.lease_until
        self._guards = until
        if until and self._nursery.state is NurseryState.READY:
            self._nursery.say(wire.Guard(tuple((number, max(0.0, when)) for number, when in until.items())))

    def _withdraw(self, flight: Flight, why: str, *, lost: bool = False) -> None:
        self._lane(flight).waiting.remove(flight)
        flight.outcome = Lost() if lost else Unstarted(why)
        self.ended.append(flight)

    def _ask(self, cell: Cell, flight: Flight) -> None:
        if cell.lane.kind is Kind.WIDE:
            cell.say(wire.Stop(flight.handle))
            self._watch(cell)
        else:
            self._signal(cell, signal.SIGTERM)

    def _signal(self, cell: Cell, number: int) -> None:
        if cell.pidfd >= 0:
            self._hatchery.signal(cell.pidfd, number)

    def _lane(self, flight: Flight) -> Lane:
        kind = KINDS[flight.policy.tier]
        name = "alone" if kind is Kind.WIDE and flight.grant.alone else kind.value
        name = "sealed" if kind is Kind.SERIAL and flight.policy.secrets else name
        return self._by_name[name]

    # ------------------------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Do what is due: start zygote and cells, send waiting flights, stop and kill what is over time."""
        self._zygote(now)
        self._broker(now)
        self._over_time(now)
        self._look_around(now)
        self._unguard(now)
        self._resting = frozenset(lane.kind for lane in self._lanes if lane.not_before > now)
        self.dispatch(now)
        for lane in self._lanes:
            if lane.waiting and now - lane.waiting[0].entered_at > WAIT_SECONDS_MAX:
                self._withdraw(lane.waiting[0], "no cell was free for too long")
        self._dirty = self._hatchery.sweep()
        self._watch_warden()

    def dispatch(self, now: float) -> None:
        """Send waiting flights to cells that have room, and start cells for the others."""
        if self._works:
            for lane in self._lanes:
                self._staff(lane, now)
                self._send(lane, now)

    def wake_at(self, now: float) -> float:
        """Return when `tick` is wanted again at the latest."""
        if self._dirty:
            return now
        due = [now + (0.25 if self._since else 1.0)]
        if self._timers:
            due.append(self._timers[0][0])
        due.extend(lane.not_before for lane in self._lanes if lane.not_before > now)
        if self._nursery.state is NurseryState.DOWN:
            due.append(self._zygote_at)
        return min(due)

    def overdue(self, now: float, slack: float) -> list[Flight]:
        """Return flights that should have ended long ago: none unless this program is at fault."""
        return [f for cell in self._cells.values() for f in cell.flights.values() if now > f.kill_at + slack]

    def _over_time(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, flight = heapq.heappop(self._timers)
            cell = self._where.get(flight.handle)
            if cell is None or flight.outcome is not None:
                continue
            if flight.kill_at <= now:
                self._kill(cell, now)
            elif flight.deadline <= now and flight.stop is None:
                self.stop(flight, StopReason.DEADLINE, now)
            elif flight.deadline <= now:
                self._kill_later(flight, flight.deadline + flight.policy.limits.grace_seconds)
        self._slow(now)

    def _look_around(self, now: float) -> None:
        """Once a second look at what nobody tells: disks, and idle cells that were not seen since they became so."""
        if now < self._measure_at:
            return
        self._measure_at = now + MEASURE_SECONDS
        self._over_scratch(now)
        for cell in tuple(self._cells.values()):
            if cell.unseen and cell.state is CellState.READY and not cell.flights:
                self._look(cell, now)

    def _unguard(self, now: float) -> None:
        """Keep idle cells from being killed at the end of a lease that nothing in them has any more."""
        ending = [number for number, until in self._guards.items() if until and until - now < UNGUARD_SECONDS]
        idle = [number for number in ending if number in self._cells and not self._cells[number].flights]
        for number in idle:
            del self._guards[number]
        if idle and self._works:
            self._nursery.say(wire.Guard(tuple((number, 0.0) for number in idle)))
            self._watch_zygote()

    def _over_scratch(self, now: float) -> None:
        """End what has filled its scratch. The kernel bounds one file of it; their number is bounded only here."""
        for number in self._hatchery.measure(dict(self._measurable())):
            cell = self._cells.get(number)
            if cell is not None and cell.state is CellState.READY:
                for flight in cell.flights.values():
                    flight.stop = flight.stop or StopReason.SCRATCH
                self._means.say("scratch_full", cell=cell.number, pid=cell.pid)
                self._kill(cell, now)

    def _measurable(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for cell in self._cells.values():
            if cell.state is CellState.READY and cell.lane.kind is not Kind.WIDE and cell.flights:
                bytes_max = SCRATCH_FILES * max(f.policy.limits.file_bytes_max for f in cell.flights.values())
                yield cell.number, (cell.pid, bytes_max)

    def _kill_later(self, flight: Flight, when: float) -> None:
        flight.kill_at = min(flight.kill_at, when)
        heapq.heappush(self._timers, (flight.kill_at, next(self._order), flight))

    def _slow(self, now: float) -> None:
        """Kill what is not born, and give up a zygote that does not report a death or its import."""
        for number, since in tuple(self._since.items()):
            cell = self._cells[number]
            if cell.state is CellState.BORN and now - since > BIRTH_SECONDS_MAX:
                self._kill(cell, now, ours=False)
            elif cell.state is CellState.DYING and now - since > DEATH_SECONDS_MAX:
                self._lose_zygote("does not report that a cell died", now)
                return
        starting = self._nursery.state is NurseryState.STARTING
        if starting and now - self._zygote_since > self._means.nest.pool.import_seconds:
            self._lose_zygote("took too long to import the app", now)

    # ------------------------------------------------------------------------------------------------------------ cells

    def _staff(self, lane: Lane, now: float) -> None:
        if now < lane.not_before:
            return
        for _ in range(lane.missing()):
            self._spawn(lane, now)

    def _spawn(self, lane: Lane, now: float) -> None:
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        cell = Cell(number, lane, ours)
        limits = _widest(self._means.nest.pool.own(self._means.policies).values(), lane.kind)
        self._cells[number] = cell
        self._since[number] = now
        lane.cells.append(cell)
        self._selector.register(ours, selectors.EVENT_READ, partial(self._cell_ready, cell))
        self._nursery.spawn(theirs, wire.Spawn(number, lane.kind, lane.width, limits))
        self._watch_zygote()

    def _send(self, lane: Lane, now: float) -> None:
        for cell, flights in lane.place():
            for flight in flights:
                flight.deadline = now + flight.policy.limits.run_seconds_max
                flight.kill_at = flight.deadline + flight.policy.limits.grace_seconds
                self._where[flight.handle] = cell
                heapq.heappush(self._timers, (flight.deadline, next(self._order), flight))
            self._guard_first(cell, flights, now)
            cell.seat(flights)
            if self._desk is None:
                cell.give(flights)
                self._watch(cell)
            else:
                for flight in flights:
                    self._desk.register(flight.handle, cell.pidfd)

    def _guard_first(self, cell: Cell, flights: list[Flight], now: float) -> None:
        """See that the zygote knows when the lease ends before the cell gets the work: no work is without a guard.

        What it was told for earlier work will do when that is not later, and leaves so much time that the next
        heartbeat, which comes every third of a lease, surely tells it more.
        """
        until = max(0.0, min(flight.lease_until for flight in flights))
        known = self._guards.get(cell.number, 0.0)
        if not known or until < known or known - now < (until - now) * GUARD_SHARE:
            self._guards[cell.number] = until
            self._nursery.say(wire.Guard(((cell.number, until),)))
            self._watch_zygote()

    def _cell_ready(self, cell: Cell, mask: int, now: float) -> None:
        if cell.state is CellState.DYING:  # it died by what was read a moment ago in the same round
            return
        if mask & selectors.EVENT_WRITE:
            cell.flush()
            self._watch(cell)
        if mask & selectors.EVENT_READ:
            self._hear(cell, now)

    def _hear(self, cell: Cell, now: float) -> None:
        try:
            for message, tail in cell.receive():
                self._take(cell, message, tail, now)
        except BlockingIOError:
            return
        except (EOFError, ConnectionError):
            self._kill(cell, now, ours=cell.ours)
        except wire.ProtocolError as error:
            self._distrust(cell, str(error), now)

    def _take(self, cell: Cell, message: Any, tail: bytes, now: float) -> None:
        match message:
            case wire.Hello(layers):
                cell.layers = frozenset(layers)
                self._look(cell, now)
            case wire.Started(handles):
                for handle in handles:
                    _start(cell.flight(handle))
            case wire.Ended(handle):
                flight = cell.flight(handle)
                flight.end(message, tail)
                flight.sentences = self._blocked(cell, flight, message.denied)
                self._landed(cell, flight, now)
            case wire.Progress(handle, text):
                self._note(cell, handle, text, progress=True)
            case wire.Log(handle, text):
                self._note(cell, handle, text, progress=False)
            case _:
                raise wire.ProtocolError("not for a supervisor")
        if tail and not isinstance(message, wire.Ended):
            raise wire.ProtocolError("a tail that nothing asks for")

    def _look(self, cell: Cell, now: float) -> None:
        """Have a cell looked at, once it has said Hello and is known by its pid. Until then it gets no work."""
        if cell.layers is None or cell.pidfd < 0:
            return
        cell.looked_at, cell.unseen, cell.seen_at = True, False, now
        sight = self._hatchery.look(cell.number, cell.pidfd, layers=cell.state is CellState.BORN)
        if sight is not None:
            self._seen(cell, sight, now)

    def _seen(self, cell: Cell, sight: Sight, now: float) -> None:
        """Give work to a cell that stands as its tier requires; end one in which something was left."""
        cell.looked_at = False
        if cell.state is CellState.BORN:
            self._let_work(cell, sight, now)
        elif cell.state is CellState.READY and not cell.flights and _has_company(cell, sight):
            self._kill(cell, now)

    def _blocked(self, cell: Cell, flight: Flight, denied: wire.Denied | None) -> tuple[str, ...]:
        """Return what to say about a denial, if the walls of its cell were the reason. LOW has none."""
        if denied is None or cell.lane.kind is Kind.WIDE or self._means.nest.pool.waive:
            return ()
        if denied.act is wire.Act.NETWORK and self._desk is not None:  # the broker knows better what it refused
            return ()
        told = wire.Denied(denied.act, clean_line(flight.told(denied.path)))
        return (blocked.sentence(told, self._nursery.bounds),)

    def _let_work(self, cell: Cell, sight: Sight, now: float) -> None:
        said = cell.layers or frozenset[str]()
        nest, tier = self._means.nest, TIERS[cell.lane.kind]
        lacking = [*isolation.lacking(tier, said, sight.layers, nest.pool)]
        lacking += sorted(nest.needs.get(tier, frozenset()) - sight.layers)
        if lacking:
            self._distrust(cell, f"a cell without {', '.join(lacking)}", now)
            return
        cell.confined = tier is not Tier.LOW and isolation.PROCESSES in sight.layers
        cell.hello()
        self._since.pop(cell.number, None)

    def _landed(self, cell: Cell, flight: Flight, now: float) -> None:
        """Let out a flight that ended. At HIGH it stays until the kernel has said how its cell did: see `_accuse`."""
        if cell.lane.kind is Kind.SINGLE:
            cell.lane.worked()
            self._kill(cell, now)
            return
        del cell.flights[flight.handle], self._where[flight.handle]
        self._end(flight, now)
        cell.lane.worked()
        self._hatchery.drop(cell.number, flight.handle)
        if cell.state is not CellState.READY or cell.flights:
            return
        if self._is_spent(cell, flight):
            self._kill(cell, now)
        elif cell.lane.kind is Kind.WIDE and now - cell.seen_at < MEASURE_SECONDS:
            cell.unseen = True  # LOW may share a cell, also with what another has left: for a second at most
        else:
            self._look(cell, now)

    @staticmethod
    def _is_spent(cell: Cell, flight: Flight) -> bool:
        """Whether an idle cell must not be used again: used up, or after any error."""
        return cell.jobs >= cell.lane.jobs_max or (
            cell.lane.kind is not Kind.WIDE and not isinstance(flight.outcome, Completed)
        )

    def _note(self, cell: Cell, handle: int, text: str, *, progress: bool) -> None:
        """Take output, which may arrive after its attempt ended; too much of it is hostile."""
        flight = cell.flights.get(handle)
        if flight is None:
            strays = self._strays[cell.number] = self._strays.get(cell.number, 0) + 1
            if strays > STRAYS_MAX:
                raise wire.ProtocolError("output for nobody")
            return
        if progress:
            flight.progress = flight.told(text)
            flight.progressed += 1
        else:
            flight.logged_bytes += len(text) + 16
            self._means.say("output", job=flight.grant.job.id, text=clean_line(flight.told(text), bytes_max=8192))
        if flight.logged_bytes > LOG_BYTES_MAX or flight.progressed > PROGRESS_MAX:
            raise wire.ProtocolError("a flood of output")

    # ------------------------------------------------------------------------------------------------------------ death

    def _distrust(self, cell: Cell, why: str, now: float) -> None:
        cell.distrusted = True
        self._means.say("suspicious", cell=cell.number, pid=cell.pid, why=why)
        self._kill(cell, now, ours=False)

    def _kill(self, cell: Cell, now: float, *, ours: bool = True) -> None:
        """Kill a cell and its group. Its flights end when it is reaped. `ours`: not by a fault of its residents."""
        if cell.state is CellState.DYING:
            return
        cell.state = CellState.DYING
        cell.ours = ours
        self._since[cell.number] = now
        self._selector.unregister(cell.line)
        self._signal(cell, signal.SIGKILL)
        self._nursery.say(wire.End(cell.number))
        self._watch_zygote()

    def _exited(self, message: wire.Exited, now: float) -> None:
        cell = self._cells.get(message.cell)
        if cell is None:
            raise wire.ProtocolError("the death of an unknown cell")
        if cell.state is not CellState.DYING:
            cell.ours = message.guarded
            self._selector.unregister(cell.line)
            cell.state = CellState.DYING
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
        """Read what a dead cell had said completely: an end that was said counts."""
        try:
            while not cell.distrusted:
                for said, tail in cell.receive():
                    self._take(cell, said, tail, now)
        except (EOFError, OSError):
            return
        except wire.ProtocolError as error:
            self._means.say("suspicious", cell=cell.number, pid=cell.pid, why=str(error))

    def _bury(self, cell: Cell, how: str, now: float) -> None:
        flights = list(cell.flights.values())
        suspects = [flight for flight in flights if flight.started and flight.stop is None]
        for flight in flights:
            flight.die(how, shared=len(suspects) > 1, ours=cell.ours)
            self._where.pop(flight.handle, None)
            self._end(flight, now)
        if not cell.ours:
            self._means.say("cell_died", cell=cell.number, pid=cell.pid, how=how, attempts=len(flights))
            cell.lane.crashed(now, self._means.rng.random)
        self._forget(cell)

    def _forget(self, cell: Cell) -> None:
        cell.close()
        cell.lane.cells.remove(cell)
        del self._cells[cell.number]
        for table in (self._since, self._guards, self._strays):
            table.pop(cell.number, None)
        self._hatchery.drop(cell.number)

    # ----------------------------------------------------------------------------------------------------------- zygote

    def _zygote(self, now: float) -> None:
        if self._nursery.state is not NurseryState.DOWN or now < self._zygote_at or self.refused or self.deserted:
            return
        if self._desk is not None and self._desk.spent:
            self.deserted = True
            return
        self._approved = False
        self._zygote_since = now
        try:
            line = self._nursery.start()
        except DesertedError:
            self.deserted = True
            return
        except OSError as error:
            self._means.say("warden_away", why=clean_line(str(error)))
            self._zygote_later(now)
            return
        if self._desk is not None:
            self._desk.start(now)
        self._selector.register(line, selectors.EVENT_READ, self._zygote_ready)
        self._watch_zygote()

    def _zygote_later(self, now: float) -> None:
        pause = min(ZYGOTE_BACKOFF_SECONDS * 2 ** min(self._zygote_failures, 16), ZYGOTE_BACKOFF_SECONDS_MAX)
        self._zygote_failures += 1
        self._zygote_at = now + pause

    def _zygote_ready(self, mask: int, now: float) -> None:
        if self._nursery.line is None:  # it was given up a moment ago in the same round
            return
        if mask & selectors.EVENT_WRITE:
            self._nursery.flush()
            self._watch_zygote()
        if not mask & selectors.EVENT_READ:
            return
        try:
            for message, tail in self._nursery.receive():
                self._take_zygote(message, tail, now)
        except BlockingIOError:
            return
        except (EOFError, ConnectionError):
            self._lose_zygote("ended", now)
        except wire.ProtocolError as error:
            self._means.say("suspicious", pid=self._hatchery.pid, why=str(error))
            self._lose_zygote("broke the protocol", now)

    def _take_zygote(self, message: Any, tail: bytes, now: float) -> None:
        match message:
            case wire.Listener() if self._desk is not None:
                self._desk.forward(self._nursery.listener())
            case wire.Ready():
                self.reported = self._nursery.ready(tail)
            case wire.Refuse(rule, text):
                self.refused = Unusable(clean_line(rule), clean_line(text))
            case wire.Spawned():
                self._born(message, now)
            case wire.Exited():
                self._exited(message, now)
                self._zygote_failures = 0
            case _:
                raise wire.ProtocolError("not for a supervisor")

    def _born(self, message: wire.Spawned, now: float) -> None:
        cell = self._cells.get(message.cell)
        if cell is None or cell.pid:
            raise wire.ProtocolError("the birth of an unknown cell")
        self._nursery.adopt(cell, message)
        if cell.state is CellState.DYING:
            self._signal(cell, signal.SIGKILL)
            return
        self._look(cell, now)

    def _lose_zygote(self, why: str, now: float, *, ours: bool = False) -> None:
        """The zygote is gone or not to be trusted: no cell outlives it, and a new one is started later.

        `ours`: neither it nor a cell is at fault.
        """
        self._means.say("zygote_lost", pid=self._hatchery.pid, why=why)
        if self._nursery.line is not None:
            self._selector.unregister(self._nursery.line)
        cells = list(self._cells.values())
        for cell in cells:
            self._signal(cell, signal.SIGKILL)
        dead = self._nursery.stop(0.0)  # leases are not prolonged meanwhile; orphans fall to who made the zygote
        self._watch_warden()
        for cell in cells:
            if cell.state is not CellState.DYING:
                self._selector.unregister(cell.line)
                cell.state, cell.ours = CellState.DYING, False
            self._last_words(cell, now)
            self._leave_to_lease(() if dead else cell.flights.values())
        self._close_desk()
        self._bury_together(cells, f"the zygote {why}", now, ours=ours)
        self._zygote_later(now)

    def _bury_together(self, cells: list[Cell], how: str, now: float, *, ours: bool) -> None:
        suspects = [f for cell in cells for f in cell.flights.values() if f.started and f.stop is None]
        for cell in cells:
            for flight in cell.flights.values():
                flight.die(how, shared=len(suspects) > 1, ours=ours)
                self._where.pop(flight.handle, None)
                self.ended.append(flight)
            cell.flights.clear()
            cell.ours = True
            self._bury(cell, how, now)

    @staticmethod
    def _leave_to_lease(flights: Iterable[Flight]) -> None:
        """Settle nothing for what may still run: the cells' guards end it before its lease does."""
        for flight in flights:
            flight.outcome = flight.outcome or Lost()

    # ---------------------------------------------------------------------------------------------------------- warden

    def _watch_warden(self) -> None:
        """Listen to the line of the hatchery, if it has one: each connection has its own."""
        line, known = self._hatchery.line, self._warden
        if known is not line and known is not None:
            self._selector.unregister(known)
        if line is None:
            self._warden = None
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._hatchery.outbox else 0)
        if known is not line:
            self._selector.register(line, events, self._warden_ready)
        elif self._selector.get_key(line).events != events:
            self._selector.modify(line, events, self._warden_ready)
        self._warden = line

    def _warden_ready(self, mask: int, now: float) -> None:
        if mask & selectors.EVENT_WRITE:
            self._hatchery.flush()
        if not mask & selectors.EVENT_READ:
            return
        try:
            for message in self._hatchery.hear():
                self._take_warden(message, now)
        except BlockingIOError:
            return
        except (EOFError, ConnectionError):
            self._lose_zygote("lost its warden", now)
        except wire.ProtocolError as error:
            self._means.say("suspicious", pid=self._hatchery.pid, why=str(error))
            self._lose_zygote("has a warden that broke the protocol", now)

    def _take_warden(self, message: Any, now: float) -> None:
        match message:
            case wire.Holds():
                pass  # the host that was examined, or one that holds no less
            case wire.Hatched():
                self._nursery.configure()
                self._watch_zygote()
            case wire.Seen(number, layers, below, threads):
                cell = self._cells.get(number)
                if cell is not None and cell.looked_at:
                    self._seen(cell, Sight(frozenset(layers), below, threads), now)
            case _:
                raise wire.ProtocolError("not for a supervisor")

    # ----------------------------------------------------------------------------------------------------------- broker

    def _ears(self) -> Ears:
        return Ears(self._listening, self._registered, self._used, self._lose_broker)

    def _listening(self, now: float) -> None:
        del now
        if self._nursery.state is NurseryState.STARTING:
            self._nursery.brokered()
            self._watch_zygote()

    def _registered(self, handle: int, now: float) -> None:
        """Give a cell the flight that may connect now; one that is to be stopped was never started."""
        cell = self._where.get(handle)
        if cell is None or cell.state is CellState.DYING:
            return
        flight = cell.flight(handle)
        if flight.stop is None:
            cell.give([flight])
            self._watch(cell)
        else:
            flight.outcome = Unstarted(f"not started ({flight.stop})")
            self._landed(cell, flight, now)

    def _end(self, flight: Flight, now: float) -> None:
        """Let a flight out that was in a cell; where there is a broker, once it has said what it did."""
        if self._desk is None or not self._desk.up:
            self._let_out(flight)
            return
        self._reporting[flight.handle] = (now + REPORT_SECONDS_MAX, flight)
        self._desk.drop(flight.handle)

    def _let_out(self, flight: Flight) -> None:
        flight.explain()
        self.ended.append(flight)

    def _used(self, used: wire.Used, now: float) -> None:
        del now
        _, flight = self._reporting.pop(used.handle, (0.0, None))
        if flight is None:
            return
        flight.report(used, self._means.nest.pool.name)
        self._let_out(flight)
        if used.connects or used.refused:
            job = flight.grant.job.id
            self._means.say("egress", job=job, connects=used.connects, refused=used.refused)

    def _broker(self, now: float) -> None:
        if self._desk is None:
            return
        self._desk.tick(now)
        for handle in [handle for handle, (until, _) in self._reporting.items() if until <= now]:
            self._let_out(self._reporting.pop(handle)[1])

    def _lose_broker(self, why: str, now: float) -> None:
        """Nothing may run without it: what it would have refused would not be asked any more."""
        self._means.say("broker_lost", pid=0 if self._desk is None else self._desk.pid, why=why)
        self._lose_zygote("lost its egress broker", now, ours=True)

    def _close_desk(self) -> None:
        if self._desk is not None:
            self._desk.stop()
        for _, flight in self._reporting.values():
            self._let_out(flight)
        self._reporting.clear()

    # ------------------------------------------------------------------------------------------------------------- end

    def close(self) -> None:
        """Kill everything and delete the scratch directories."""
        for cell in self._cells.values():
            self._signal(cell, signal.SIGKILL)
        self._nursery.stop(END_SECONDS)
        self._close_desk()
        for cell in list(self._cells.values()):
            if cell.state is not CellState.DYING:
                self._selector.unregister(cell.line)
            self._forget(cell)
        self._hatchery.close()

    def _watch(self, cell: Cell) -> None:
        if cell.state is CellState.DYING:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if cell.outbox else 0)
        key = self._selector.get_key(cell.line)
        if key.events != events:
            self._selector.modify(cell.line, events, key.data)

    def _watch_zygote(self) -> None:
        if self._nursery.line is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._nursery.outbox else 0)
            key = self._selector.get_key(self._nursery.line)
            if key.events != events:
                self._selector.modify(self._nursery.line, events, key.data)


def lanes_of(pool: Pool, policies: Mapping[str, TypePolicy]) -> list[Lane]:
    """Return the lanes that a pool needs for the tiers of its types."""
    types = list(pool.own(policies).values())
    tiers = {policy.tier for policy in types}
    many = pool.concurrency
    lanes: list[Lane] = []
    if Tier.LOW in tiers and pool.egress:  # one attempt in a cell: the broker knows processes, and counts by attempt
        lanes.append(Lane("wide", Kind.WIDE, 1, many, WIDE_JOBS_MAX, always=1))
        lanes.append(Lane("alone", Kind.WIDE, 1, 1, 1))
    elif Tier.LOW in tiers:
        lanes.append(Lane("wide", Kind.WIDE, many, 1, WIDE_JOBS_MAX, always=1))
        lanes.append(Lane("alone", Kind.WIDE, 1, 1, 1))
    if Tier.MEDIUM in tiers:
        lanes.append(Lane("serial", Kind.SERIAL, 1, many, pool.jobs_per_cell, always=1))
    if any(policy.tier is Tier.MEDIUM and policy.secrets for policy in types):
        lanes.append(Lane("sealed", Kind.SERIAL, 1, many, 1, ahead=1))
    if Tier.HIGH in tiers:
        lanes.append(Lane("single", Kind.SINGLE, 1, many, 1, ahead=1))
    return lanes


def _has_company(cell: Cell, sight: Sight) -> bool:
    """Whether processes, or threads of a cell that makes one attempt at a time, are left of an ended attempt."""
    return sight.below > cell.confined or (cell.lane.kind is not Kind.WIDE and sight.threads > 1)


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


def _widest(policies: Iterable[TypePolicy], kind: Kind) -> Limits:
    """Return the widest bounds of the types that share a kind of cell; each attempt gets its own within them."""
    limits = [policy.limits for policy in policies if KINDS[policy.tier] is kind]
    first = limits[0]
    return Limits(
        attempts_max=first.attempts_max,
        crashes_max=first.crashes_max,
        memory_bytes_max=max(each.memory_bytes_max for each in limits),
        file_bytes_max=max(each.file_bytes_max for each in limits),
        open_files_max=max(each.open_files_max for each in limits),
    )
