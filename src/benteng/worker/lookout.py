"""What cells look like from outside: before the first work, behind the last, and their disks once a second.

A cell gets work only when it stands as its tier requires, and no more when something was left in it.
Trust: nothing that a cell says of itself: it can only make things worse than what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benteng.policy import Tier
from benteng.worker import isolation
from benteng.worker.cells import Cell, CellState
from benteng.worker.hatchery import Hatchery, Sight
from benteng.worker.nursery import Nest
from benteng.worker.pool import TIERS, Kind

MEASURE_SECONDS = 1.0
SCRATCH_FILES = 4
"""A MEDIUM or HIGH cell may hold so many times the size of its largest file on the disk."""


@dataclass(frozen=True, slots=True)
class Hands:
    """What is done after a look: the time comes along.

    stands    it may work from now on;  kill: something was left in it
    distrust  it is not what it says, and why;  full: it holds more on the disk than it may
    """

    stands: Callable[[Cell], None]
    kill: Callable[[Cell, float], None]
    distrust: Callable[[Cell, str, float], None]
    full: Callable[[Cell, float], None]


class Lookout:
    """Looks at the cells of one pool. `cells`: those that there are, by number."""

    def __init__(self, cells: Mapping[int, Cell], nest: Nest, hatchery: Hatchery, hands: Hands) -> None:
        self._cells = cells
        self._nest = nest
        self._hatchery = hatchery
        self._hands = hands
        self._measure_at = 0.0

    def look(self, cell: Cell, now: float) -> None:
        """Have a cell looked at, once it has said Hello and is known by its pid. Until then it gets no work."""
        if cell.layers is None or cell.pidfd < 0:
            return
        cell.looked_at, cell.unseen, cell.seen_at = True, False, now
        sight = self._hatchery.look(cell.number, cell.pidfd, layers=cell.state is CellState.BORN)
        if sight is not None:
            self._seen(cell, sight, now)

    def look_later(self, cell: Cell, now: float) -> None:
        """Have an idle cell looked at that may wait for it: a second at most since the last time."""
        if now - cell.seen_at < MEASURE_SECONDS:
            cell.unseen = True
        else:
            self.look(cell, now)

    def sighted(self, number: int, sight: Sight, now: float) -> None:
        """Take the answer of who was asked to look."""
        cell = self._cells.get(number)
        if cell is not None and cell.looked_at:
            self._seen(cell, sight, now)

    def tick(self, now: float) -> None:
        """Once a second look at what nobody tells: disks, and idle cells that were not seen since they became so."""
        if now < self._measure_at:
            return
        self._measure_at = now + MEASURE_SECONDS
        self._over_scratch(now)
        for cell in tuple(self._cells.values()):
            if cell.unseen and cell.state is CellState.READY and not cell.flights:
                self.look(cell, now)

    def _seen(self, cell: Cell, sight: Sight, now: float) -> None:
        """Give work to a cell that stands as its tier requires; end one in which something was left."""
        cell.looked_at = False
        if cell.state is CellState.BORN:
            self._let_work(cell, sight, now)
        elif cell.state is CellState.READY and not cell.flights and _has_company(cell, sight):
            self._hands.kill(cell, now)

    def _let_work(self, cell: Cell, sight: Sight, now: float) -> None:
        said = cell.layers or frozenset[str]()
        nest, tier = self._nest, TIERS[cell.lane.kind]
        lacking = [*isolation.lacking(tier, said, sight.layers, nest.pool)]
        lacking += sorted(nest.needs.get(tier, frozenset()) - sight.layers)
        if lacking:
            self._hands.distrust(cell, f"a cell without {', '.join(lacking)}", now)
            return
        cell.confined = tier is not Tier.LOW and isolation.PROCESSES in sight.layers
        self._hands.stands(cell)

    def _over_scratch(self, now: float) -> None:
        """End what has filled its scratch. The kernel bounds one file of it; their number is bounded only here."""
        for number in self._hatchery.measure(dict(self._measurable())):
            cell = self._cells.get(number)
            if cell is not None and cell.state is CellState.READY:
                self._hands.full(cell, now)

    def _measurable(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for cell in self._cells.values():
            if cell.state is CellState.READY and cell.lane.kind is not Kind.WIDE and cell.flights:
                bytes_max = SCRATCH_FILES * max(f.policy.limits.file_bytes_max for f in cell.flights.values())
                yield cell.number, (cell.pid, bytes_max)


def _has_company(cell: Cell, sight: Sight) -> bool:
    """Whether processes, or threads of a cell that makes one attempt at a time, are left of an ended attempt."""
    return sight.below > cell.confined or (cell.lane.kind is not Kind.WIDE and sight.threads > 1)
