"""Which lanes a pool has for the tiers of its types, and which of them a flight takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from benteng.policy import Limits, Tier, TypePolicy
from benteng.worker.cells import Lane
from benteng.worker.flights import Flight
from benteng.worker.pool import KINDS, Kind, Pool

WIDE_JOBS_MAX = 1 << 62


class Lanes:
    """The lanes of one pool."""

    def __init__(self, pool: Pool, policies: Mapping[str, TypePolicy]) -> None:
        own = pool.own(policies).values()
        self._lanes = _lanes_of(pool, list(own))
        self._by_name = {lane.name: lane for lane in self._lanes}
        self._limits = {lane.kind: _widest(own, lane.kind) for lane in self._lanes}
        self._resting: frozenset[Kind] = frozenset()

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def of(self, flight: Flight) -> Lane:
        """Return the lane of a flight."""
        kind = KINDS[flight.policy.tier]
        name = "alone" if kind is Kind.WIDE and flight.grant.alone else kind.value
        name = "sealed" if kind is Kind.SERIAL and flight.policy.secrets else name
        return self._by_name[name]

    def limits(self, kind: Kind) -> Limits:
        """Return the widest bounds of the types that share a kind of cell; each attempt gets its own within them."""
        return self._limits[kind]

    @property
    def waiting(self) -> bool:
        """Whether a flight waits for a cell."""
        return any(lane.waiting for lane in self._lanes)

    def rest(self, now: float) -> None:
        """Note whose cells crashed too lately."""
        self._resting = frozenset(lane.kind for lane in self._lanes if lane.not_before > now)

    def rests(self, kind: Kind) -> bool:
        """Whether cells of a kind crashed too lately for more work."""
        return kind in self._resting

    def wakes_at(self, now: float) -> float:
        """Return when a lane that rests may go on, or what waits for a quick cell does so no longer; inf: neither."""
        rests = (lane.not_before for lane in self._lanes if lane.not_before > now)
        return min((*rests, *(lane.held_until for lane in self._lanes)), default=float("inf"))


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def _lanes_of(pool: Pool, types: list[TypePolicy]) -> list[Lane]:
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
        alike = not (pool.exec or pool.egress)  # no process or connect that has to be told which attempt it belongs to
        lanes.append(
            Lane("serial", Kind.SERIAL, 1, many, pool.jobs_per_cell, always=1, shelves=alike, hands=processors())
        )
    if any(policy.tier is Tier.MEDIUM and policy.secrets for policy in types):
        lanes.append(Lane("sealed", Kind.SERIAL, 1, many, 1, ahead=1))
    if Tier.HIGH in tiers:
        lanes.append(Lane("single", Kind.SINGLE, 1, many, 1, ahead=1))
    return lanes


def _widest(policies: Iterable[TypePolicy], kind: Kind) -> Limits:
    limits = [policy.limits for policy in policies if KINDS[policy.tier] is kind]
    first = limits[0]
    return Limits(
        attempts_max=first.attempts_max,
        crashes_max=first.crashes_max,
        memory_bytes_max=max(each.memory_bytes_max for each in limits),
        file_bytes_max=max(each.file_bytes_max for each in limits),
        open_files_max=max(each.open_files_max for each in limits),
    )
