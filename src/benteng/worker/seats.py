"""Which flight sits in which cell, and until when: what is given to a cell, taken back from before it, and guarded.

No work is without a guard: the zygote knows when the lease ends before the cell gets it. Nothing that lies before a
cell is forgotten there: each shelf has a time at which somebody looks at it.
Trust: nothing that a cell says; it is not heard here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benteng.worker import wire
from benteng.worker.cells import Cell, Lane
from benteng.worker.crew import Crew
from benteng.worker.flights import Flight
from benteng.worker.guards import Guards
from benteng.worker.shelf import SHELF_SECONDS
from benteng.worker.timers import Timers


class Seats:
    """The seats in the cells of one pool. `cells`: those that there are, by number."""

    def __init__(self, cells: Mapping[int, Cell], crew: Crew, timers: Timers) -> None:
        self._cells = cells
        self._crew = crew
        self._timers = timers
        self._where: dict[int, Cell] = {}
        self._shelves: dict[int, float] = {}
        self._guards = Guards()

    @property
    def flowing(self) -> bool:
        """Whether a cell makes several flights, one after the other."""
        return bool(self._shelves)

    def cell_of(self, handle: int) -> Cell | None:
        """Return the cell of a flight; None when it has none."""
        return self._where.get(handle)

    # ------------------------------------------------------------------------------------------------------ in and out

    def fill(self, lane: Lane, now: float) -> None:
        """Give waiting flights of a lane to its cells that have room."""
        for cell, flights in lane.place(now):
            for flight in flights:
                flight.deadline = now + flight.policy.limits.run_seconds_max
                flight.kill_at = flight.deadline + flight.policy.limits.grace_seconds
                self._where[flight.handle] = cell
                self._timers.add(flight.deadline, flight)
            self._guard_first(cell, flights, now)
            cell.seat(flights, now)
            self._give(cell, flights, now)
            self.lay(cell, now)

    def _give(self, cell: Cell, flights: list[Flight], now: float) -> None:
        if self._crew.desk is None:
            self._wait_again(cell, cell.give(flights), now)
            return
        for flight in flights:
            self._crew.desk.register(flight.handle, cell.pidfd)

    def leave(self, cell: Cell, flight: Flight) -> None:
        """Have a flight's seat empty."""
        del cell.flights[flight.handle]
        self.vacate(flight)

    def vacate(self, flight: Flight) -> None:
        """Know no more where a flight is: it has left its cell, or that is gone."""
        self._where.pop(flight.handle, None)

    # --------------------------------------------------------------------------------------------------------- shelves

    def lay(self, cell: Cell, now: float) -> None:
        """Have its shelf looked at in a while if more than one flight is there, else not."""
        if len(cell.flights) > 1 and cell.shelf is not None:
            self._shelves[cell.number] = now + SHELF_SECONDS
        else:
            self.clear(cell.number)

    def due(self, now: float) -> list[Cell]:
        """Return cells whose shelves are to be looked at."""
        return [self._cells[number] for number, when in self._shelves.items() if when <= now]

    def wakes_at(self) -> float:
        """Return when the first shelf is to be looked at; inf: there is none."""
        return min(self._shelves.values(), default=float("inf"))

    def take_back(self, cell: Cell, now: float) -> bool:
        """Have what lies before a cell wait again, and tell whether there was something."""
        flights = [] if cell.shelf is None else cell.shelf.take_back()
        self._wait_again(cell, flights, now)
        return bool(flights)

    def clear(self, number: int) -> None:
        """Look at a cell's shelf no more: nothing lies there."""
        self._shelves.pop(number, None)

    def _wait_again(self, cell: Cell, flights: list[Flight], now: float) -> None:
        cell.unseat(flights)
        for flight in reversed(flights):
            self.vacate(flight)
            flight.recall(now)
            cell.lane.waiting.appendleft(flight)

    # ---------------------------------------------------------------------------------------------------------- guards

    def guard(self, flights: Iterable[Flight]) -> None:
        """Tell the zygote when each cell must be dead if it hears nothing more."""
        seated = ((self._where.get(flight.handle), flight.lease_until) for flight in flights)
        until = self._guards.renew(self._cells, ((cell.number, when) for cell, when in seated if cell is not None))
        if until and self._crew.stands:
            self._crew.say(wire.Guard(until))

    def unguard(self, now: float) -> None:
        """Keep idle cells from being killed at the end of a lease that nothing in them has any more."""
        lifted = self._guards.lift(self._is_idle, now)
        if lifted and self._crew.works:
            self._crew.say(wire.Guard(lifted))

    def _guard_first(self, cell: Cell, flights: list[Flight], now: float) -> None:
        """See that the zygote knows when the lease ends before the cell gets the work: no work is without a guard."""
        until = self._guards.add(cell.number, min(flight.lease_until for flight in flights), now)
        if until:
            self._crew.say(wire.Guard(until))

    def _is_idle(self, number: int) -> bool:
        return number in self._cells and not self._cells[number].flights

    def forget(self, number: int) -> None:
        """Note that a cell is gone."""
        self.clear(number)
        self._guards.forget(number)
