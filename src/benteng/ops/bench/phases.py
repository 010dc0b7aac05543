"""The measurements: enqueue, drain, latency, mixed load, backlog. Each counts what the ledger wrote for it.

Rates of work are taken from the witness: from the first start to the last end. Nothing is read from the worker.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from benteng.app import Benteng
from benteng.errors import Refused, StoreError
from benteng.gate import JobSpec
from benteng.ops.bench.marks import ENDED, ENQUEUED, RUNS, STARTED
from benteng.ops.bench.place import Place
from benteng.ops.bench.report import Point, Report, Row
from benteng.ops.bench.scratch import ACTOR, Counts
from benteng.ops.demo.crew import Crew, Member
from benteng.policy import Tier
from benteng.store.contract import BATCH_MAX

CROWD = 64
"""Coroutines that enqueue at a time."""

TRICKLE = 50
"""Jobs a second where latency is measured: an idle worker, not a busy one."""

MIXED_BATCH = 50
MIXED_WAITING_MAX = 500
LOOK_SECONDS = 0.02
BIN_SECONDS = 0.25
STALL_SECONDS = 60.0
"""A worker that ends nothing for so long has failed."""


class Phase(StrEnum):
    """What may be measured, in the order in which it is."""

    ENQUEUE = "enqueue"
    DRAIN = "drain"
    LATENCY = "latency"
    MIXED = "mixed"
    BACKLOG = "backlog"


@dataclass(frozen=True, slots=True)
class Size:
    """How much: jobs to enqueue and drain, seconds of latency and mixed load, jobs that wait in the backlog."""

    jobs: int
    seconds: float
    backlog: int

    def slots(self) -> int:
        """Return an upper bound of the jobs of a run."""
        return 8 * self.jobs + self.backlog + int(self.seconds * (TRICKLE + 30_000)) + 20 * BATCH_MAX


@dataclass(slots=True)
class Runner:
    """One run: it hands out slots, starts workers, and measures into a report."""

    place: Place
    app: Benteng
    tier: Tier
    concurrency: int
    report: Report
    say: Callable[[str], None]
    next_slot: int = 0
    drained: int = 0

    def run(self, phases: Sequence[Phase], size: Size) -> None:
        """Measure what was asked for."""
        began = time.monotonic_ns()
        for phase in phases:
            self.say(f"{phase} ...")
            match phase:
                case Phase.ENQUEUE:
                    self.enqueue(size.jobs)
                case Phase.DRAIN:
                    self.drain(size.jobs)
                case Phase.LATENCY:
                    self.latency(size.seconds)
                case Phase.MIXED:
                    self.mixed(size.seconds)
                case Phase.BACKLOG:
                    self.backlog(size.backlog, size.jobs)
        self.report.points = self._points(began)

    # ------------------------------------------------------------------------------------------------------- enqueue

    def enqueue(self, jobs: int) -> None:
        """Measure one caller, a crowd of coroutines, and batches."""
        few = max(1, min(jobs, 300))
        self._measured("enqueue, one caller", few, self._one_by_one)
        self._measured(f"enqueue, {CROWD} coroutines", jobs, lambda slots: asyncio.run(self._crowd(slots)))
        self._measured(f"enqueue_many by {BATCH_MAX:,}", jobs, self.in_batches)

    def _measured(self, name: str, jobs: int, enqueue: Callable[[range], None]) -> None:
        slots, before = self.take(jobs), self.place.ledger.counts()
        began = time.perf_counter()
        enqueue(slots)
        seconds = time.perf_counter() - began
        found = self.place.ledger.counts().since(before)
        self._add(Row(name, jobs, seconds, None, None, found.audit / jobs, found.operations / jobs))
        self.report.check(name, len(slots), operations=found.operations, audit=found.audit)

    def _one_by_one(self, slots: range) -> None:
        for slot in slots:
            self.app.enqueue(self.job_type, {"slot": slot}, actor=self.actor)

    async def _crowd(self, slots: range) -> None:
        async def caller(own: range) -> None:
            for slot in own:
                await self.app.aio.enqueue(self.job_type, {"slot": slot}, actor=self.actor)

        await asyncio.gather(*(caller(slots[start::CROWD]) for start in range(CROWD)))

    def in_batches(self, slots: range, size: int = BATCH_MAX) -> None:
        """Enqueue a job for each slot."""
        for start in range(0, len(slots), size):
            part = slots[start : start + size]
            for slot in part:
                self.place.marks.enqueued(slot)
            specs = [JobSpec(self.job_type, {"slot": slot}, self.actor) for slot in part]
            refused = [said for said in self.app.enqueue_many(specs) if isinstance(said, Refused)]
            if refused:
                raise refused[0]

    # ----------------------------------------------------------------------------------------------------------- work

    def drain(self, jobs: int) -> None:
        """Measure one worker on what waits."""
        waiting = self._waiting(jobs)
        before = self.place.ledger.counts()
        with _Worker(self) as worker:
            seconds = worker.work_off(waiting)
            found = worker.settled(before, len(waiting))
        name = f"drain, concurrency {self.concurrency}"
        self._add(Row(name, len(waiting), seconds, audit=found.audit / len(waiting)))
        runs = self._runs(waiting)
        self.report.check(name, len(waiting), operations=found.completed, audit=found.audit, runs=runs)

    def latency(self, seconds: float) -> None:
        """Measure the time from the call to the start while the worker has nothing else to do."""
        self.clear()
        with _Worker(self) as worker:
            worker.warm()
            before, slots = self.place.ledger.counts(), self.take(max(1, int(seconds * TRICKLE)))
            began = time.perf_counter()
            for number, slot in enumerate(slots):
                time.sleep(max(0.0, began + number / TRICKLE - time.perf_counter()))
                self.place.marks.enqueued(slot)
                self.app.enqueue(self.job_type, {"slot": slot}, actor=self.actor)
            worker.work_off(slots)
            found = worker.settled(before, len(slots))
        self._add_work(f"idle start, {TRICKLE} jobs a second", slots, seconds, found)

    def mixed(self, seconds: float) -> None:
        """Measure one producer and one worker at a time; the producer waits when too many jobs do."""
        self.clear()
        with _Worker(self) as worker:
            worker.warm()
            before, start = self.place.ledger.counts(), self.next_slot
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                ended = sum(map(bool, self.place.marks.column(ENDED, range(start, self.next_slot))))
                if self.next_slot - start - ended < MIXED_WAITING_MAX:
                    self.in_batches(self.take(MIXED_BATCH), MIXED_BATCH)
                else:
                    time.sleep(LOOK_SECONDS / 4)
            slots = range(start, self.next_slot)
            taken = worker.work_off(slots)
            found = worker.settled(before, len(slots))
        self._add_work("mixed: producer and worker", slots, taken, found)

    def backlog(self, waiting: int, jobs: int) -> None:
        """Measure the first jobs of a long queue."""
        slots = self._waiting(waiting)
        first = slots[: min(jobs, len(slots))]
        with _Worker(self) as worker:
            seconds = worker.work_off(first)
        self.report.rows.append(Row(f"drain with {len(slots):,} waiting", len(first), seconds))
        self.drained = first.stop

    # -------------------------------------------------------------------------------------------------------- helpers

    @property
    def job_type(self) -> str:
        """The type of the run's tier."""
        return f"bench.{self.tier}@1"

    @property
    def actor(self) -> str:
        """On whose behalf; LOW needs nobody."""
        return "" if self.tier is Tier.LOW else ACTOR

    def take(self, jobs: int) -> range:
        """Hand out slots."""
        start, self.next_slot = self.next_slot, self.next_slot + jobs
        return range(start, self.next_slot)

    def clear(self) -> None:
        """Work off what waits."""
        if self.drained < self.next_slot:
            with _Worker(self) as worker:
                worker.work_off(range(self.drained, self.next_slot))
            self.drained = self.next_slot

    def _waiting(self, jobs: int) -> range:
        """See to it that so many jobs wait; return all that do."""
        missing = jobs - (self.next_slot - self.drained)
        if missing > 0:
            self.in_batches(self.take(missing))
        start, self.drained = self.drained, self.next_slot
        return range(start, self.next_slot)

    def _add_work(self, name: str, slots: range, seconds: float, found: Counts) -> None:
        column = self.place.marks.column
        waits = [(s - e) / 1e6 for e, s in zip(column(ENQUEUED, slots), column(STARTED, slots), strict=True) if s and e]
        p50, p99 = percentiles(waits)
        self.drained, jobs = self.next_slot, len(slots)
        self._add(Row(name, jobs, seconds, p50, p99, found.audit / jobs, found.operations / jobs))
        self.report.check(name, jobs, operations=found.operations, audit=found.audit, runs=self._runs(slots))

    def _runs(self, slots: range) -> list[int]:
        return self.place.marks.column(RUNS, slots)

    def _add(self, row: Row) -> None:
        self.report.rows.append(row)
        self.say(f"{row.name}: {row.rate:,.0f} jobs/s")

    def _points(self, began: int) -> list[Point]:
        """Return rate and latency over time, from the witness."""
        slots, width = range(self.next_slot), BIN_SECONDS * 1e9
        columns = (self.place.marks.column(field, slots) for field in (ENQUEUED, STARTED, ENDED))
        bins: dict[int, list[float | None]] = {}
        for enqueued, started, ended in zip(*columns, strict=True):
            if ended:
                wait = (started - enqueued) / 1e6 if enqueued else None
                bins.setdefault(int((ended - began) / width), []).append(wait)
        return [_point(number, waits) for number, waits in sorted(bins.items())]


def percentiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return median and 99th percentile; of fewer than two values, that value."""
    if not values:
        return None, None
    if len(values) == 1:
        return values[0], values[0]
    return statistics.median(values), statistics.quantiles(values, n=100)[98]


def _point(number: int, waits: Sequence[float | None]) -> Point:
    p50, p99 = percentiles([wait for wait in waits if wait is not None])
    return Point(number * BIN_SECONDS, len(waits) / BIN_SECONDS, p50, p99)


class _Worker:
    """A real `benteng worker` for one tier's pool, for the length of a `with`."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._crew = Crew(run.place.home, run.place.logs, run.place.environ)
        self._member: Member | None = None

    def __enter__(self) -> Self:
        arguments = ["worker", "--pool", self._run.tier.value, "--concurrency", str(self._run.concurrency)]
        self._member = self._crew.start("worker", arguments)
        return self

    def __exit__(self, *_: object) -> None:
        self._crew.end()

    def warm(self) -> None:
        """Have one job done, so that the worker is up and idle."""
        before, slots = self._run.place.ledger.counts(), self._run.take(1)
        self._run.in_batches(slots)
        self.work_off(slots)
        self.settled(before, 1)

    def work_off(self, slots: range) -> float:
        """Wait until these jobs have ended; return the seconds from the first start to the last end."""
        marks, done, since = self._run.place.marks, -1, time.monotonic()
        while (ended := sum(map(bool, marks.column(ENDED, slots)))) < len(slots):
            if ended != done:
                done, since = ended, time.monotonic()
            self._must_live(since)
            time.sleep(LOOK_SECONDS)
        return (max(marks.column(ENDED, slots)) - min(marks.column(STARTED, slots))) / 1e9

    def settled(self, before: Counts, jobs: int) -> Counts:
        """Wait until the ledger knows that so many have completed; return what was written since."""
        since = time.monotonic()
        while (found := self._run.place.ledger.counts().since(before)).completed < jobs:
            self._must_live(since)
            time.sleep(LOOK_SECONDS)
        return found

    def _must_live(self, since: float) -> None:
        ended = self._member is None or self._member.process.poll() is not None
        if ended or time.monotonic() - since > STALL_SECONDS:
            log = self._run.place.logs / "worker.log"
            last = log.read_text(errors="replace").strip().rpartition("\n")[2] if log.exists() else ""
            raise StoreError(f"the worker {'has ended' if ended else 'does not work'}: {last[:300]}")
