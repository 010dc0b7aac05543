"""The loop that holds the credential: claim, judge, hand out, keep the lease, settle, drain. No user code.

One thread, one selector. While the ledger works on a turn it goes on with its cells; all other calls of the store
block. An ended attempt is kept until the store has answered for it: while the store is away it asks again, with the
very same settlement. A lease that cannot be prolonged ends its cell before it ends itself.
Trust: nothing of a granted row, nothing that a cell says.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import TypeVar

from benteng import clock
from benteng.errors import BentengError, StoreError, StoreUnavailable
from benteng.job import Grant
from benteng.policy import Tier, TypePolicy, differences
from benteng.redact import clean_line
from benteng.store.contract import BATCH_MAX, Hints, StepwiseConsumer, Turning
from benteng.store.records import Extension, Turn, WorkerFacts, WorkerRefusal
from benteng.worker.appetite import Appetite
from benteng.worker.backlog import SETTLE_MAX, Backlog, share
from benteng.worker.budget import Budget
from benteng.worker.flights import Flight, StopReason
from benteng.worker.judgement import Judge, Settler
from benteng.worker.means import Means
from benteng.worker.pool import Pool
from benteng.worker.sandbox import system
from benteng.worker.say import Say
from benteng.worker.vault import Vault
from benteng.worker.yard import DEATH_SECONDS_MAX, Yard

T = TypeVar("T")
Tend = Callable[[float], frozenset[int]]

OK, INTERNAL, UNAVAILABLE, REFUSED = 0, 70, 75, 78
"""Exit codes, as sysexits.h has them: 70 a fault of ours or a damaged store, 75 the store stayed away, 78 refused."""

STORE_BACKOFF_SECONDS = 0.05
STORE_BACKOFF_SECONDS_MAX = 2.0
REGISTER_SECONDS = 30.0
DRAIN_KILL_SECONDS = 1.0
LEAVE_SECONDS = 1.6
STUCK_LEASES = 3.0
STUCK_SECONDS_MIN = 2 * DEATH_SECONDS_MAX
HOUSEKEEPING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a supervisor works by.

    policies         the reviewed policies of this host, all of them
    facts            who this worker is
    poll_seconds     how long an empty queue is left alone, jittered
    give_up_seconds  exit with 75 after the store was away for so long; None: never
    tend             looks after other children of this process and returns their pids: they are no orphans
    vault            has the secrets of the pool's types
    ready            called once, when everything agrees and jobs are claimed
    rests            called each time before it waits for something
    """

    pool: Pool
    policies: Mapping[str, TypePolicy]
    facts: WorkerFacts
    poll_seconds: float
    give_up_seconds: float | None
    tend: Tend
    vault: Vault
    ready: Callable[[], None]
    rests: Callable[[], None]

    @property
    def types(self) -> dict[str, TypePolicy]:
        """The types of this pool."""
        return self.pool.own(self.policies)

    @property
    def serial(self) -> bool:
        """Whether a type of this pool has cells that make one attempt at a time, and are used again."""
        return any(policy.tier is Tier.MEDIUM for policy in self.types.values())

    @property
    def beat_seconds(self) -> float:
        """How often leases are prolonged: every third of the shortest."""
        return min(policy.limits.lease_seconds for policy in self.types.values()) / 3


@dataclass(slots=True)
class UnderWay:
    """The turn that the ledger works on.

    batch     the attempts that it settles;  room: how many it may start
    line      where its answer is heard; -1: the ledger works only while it is waited for
    asked_at  when it began, or a little before
    foreseen  what it will answer if it is kept, with flights of its grants; only its true answer makes them ours
    """

    turning: Turning
    batch: Sequence[Flight]
    room: int
    line: int
    asked_at: float
    foreseen: Turn | None = None
    flights: Sequence[Flight] = ()


class Supervisor:
    """One pool of one host, until it is told to stop."""

    def __init__(self, plan: Plan, store: StepwiseConsumer, judge: Judge, settler: Settler, means: Means) -> None:
        self._plan = plan
        self._store = store
        self._judge = judge
        self._settler = settler
        self._say: Say = means.say
        self._rng: Random = means.rng
        self._selector = selectors.DefaultSelector()
        self._yard = Yard(means, self._selector)
        self._budget = Budget(plan.pool.starts_per_minute)
        self._appetite = Appetite(plan.poll_seconds, means.rng)
        self._flights: dict[int, Flight] = {}
        self._done: list[Flight] = []
        self._under_way: UnderWay | None = None
        self._share = share(plan.pool.concurrency, overlaps=store.overlaps, serial=plan.serial)
        self._handle = 0
        self._accepts: tuple[str, ...] = ()
        self._signals = 0
        self._draining = False
        self._told = False
        self._drain_until = float("inf")
        self._code = OK
        self._beat_at = self._register_at = self._house_at = 0.0
        self._done_at = self._lease_at = float("inf")
        self._away_since = 0.0
        self._away_times = 0
        self._ask_at = 0.0
        self._hints: Hints | None = None
        self._hints_fd = self._answer_fd = -1
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, and return the exit code. Never leaves a cell behind."""
        self._listen_to_signals()
        try:
            while not self._finished():
                self._turn_once(clock.boot_seconds())
        except StoreError as error:
            self._say("store_damaged", why=clean_line(str(error)))
            self._code = INTERNAL
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave a cell running
            self._say("internal_error", why=clean_line(f"{type(error).__name__}: {error}"), where=_where(error))
            self._code = INTERNAL
        finally:
            self._yard.close()
            self._selector.close()
            self._restore_signals()
        return self._code

    def _turn_once(self, now: float) -> None:
        self._obey_signals(now)
        self._yard.tick(now)
        self._look_at_zygote()
        self._collect(now)
        self._keep_leases(now)
        self._drain(now)
        self._keep_house(now)
        if not self._ask_store(now):
            self._sleep(now)

    def _finished(self) -> bool:
        return self._draining and not self._flights

    # ------------------------------------------------------------------------------------------------------------ store

    def _ask_store(self, now: float) -> bool:
        """Do one thing with the store, if something is due and it may be asked; tell whether that changed anything.

        While a turn is under way nothing else is: what is due then is so a moment later.
        """
        if self._under_way is not None:
            return self._heed_answer(self._under_way, now)
        if now < self._ask_at:
            return False
        if self._flights and now >= self._beat_at:
            return self._extend(now)
        if not self._draining and self._accepts and now >= self._register_at:
            return self._register(now)
        return self._turn_if_due(now)

    def _turn_if_due(self, now: float) -> bool:
        backlog = self._backlog()
        due = now >= backlog.due_at
        room = self._budget.left(now, self._room()) if self._appetite.wants(now, settles=due) else 0
        if not due and (not room or backlog.gathers):
            return False
        return self._turn(now, room)

    def _backlog(self) -> Backlog:
        return Backlog(len(self._done), len(self._flights), self._done_at, self._yard.waiting, self._yard.flowing)

    def _room(self) -> int:
        if self._draining or not self._accepts or not self._yard.crew.works or self._register_at <= 0:
            return 0
        left = max(0, len(self._done) - SETTLE_MAX)
        return min(self._share, self._plan.pool.concurrency - (len(self._flights) - len(self._done)) - left)

    def _turn(self, now: float, room: int) -> bool:
        """Begin a turn. What goes along is out of `_done` until the answer, and back in it when there is none."""
        batch, self._done = self._done[:SETTLE_MAX], self._done[SETTLE_MAX:]
        self._done_at = now if self._done else float("inf")
        settlements = [f.settlement for f in batch if f.settlement is not None]
        accepts = [name for name in self._accepts if self._takes(self._plan.policies[name], now)]
        turning = self._store.turning(settlements, room if accepts else 0, accepts)
        asked_at = clock.boot_seconds()
        turning.begin()
        self._under_way = UnderWay(turning, batch, room, turning.fileno(), asked_at)
        if len(self._flights) == len(batch):  # nothing to go on with meanwhile
            return self._heed_answer(self._under_way, now)
        self._await(self._under_way.line)
        return True

    def _heed_answer(self, asked: UnderWay, now: float) -> bool:
        """Take the answer to the turn under way, if it has come.

        Where halves of the slots take turns, the next one begins before its jobs are looked at. With few slots what
        ended meanwhile waits for these: else two groups would stay apart for ever, each with a call of its own.
        """
        if not self._has_come(asked) or not self._foresees(asked):
            return False
        self._under_way = None
        self._await(-1)
        answer = self._call(now, asked.turning.take)
        if answer is None:
            self._done = [*asked.batch, *self._done]
            self._done_at = now
            return True
        for flight in asked.batch:
            del self._flights[flight.handle]
        if asked.room:
            self._appetite.answered(now, len(answer.grants), asked.room, tells=self._hints is not None)
        flights = asked.flights if answer is asked.foreseen else self._flights_of(answer, asked.asked_at)
        self._board(flights)
        if self._halves(asked) and self._done and now < min(self._beat_at, self._register_at):
            self._turn_if_due(now)  # the ledger goes on while we look at what it gave
        self._take(flights, asked.asked_at)
        self._report(asked.batch, answer)  # last: nobody waits for it
        return True

    def _has_come(self, asked: UnderWay) -> bool:
        """Whether to wait for the next word of the ledger: it has come, or there is nothing to go on with meanwhile."""
        return len(self._flights) <= len(asked.batch) or asked.turning.has_come()

    def _foresees(self, asked: UnderWay) -> bool:
        """Make ready what the ledger is about to give while it writes that down; whether it has said how that went."""
        if asked.foreseen is not None:
            return True
        asked.foreseen = asked.turning.foresee()
        if asked.foreseen is None:
            return True
        asked.flights = self._flights_of(asked.foreseen, asked.asked_at)
        for flight in asked.flights if not self._halves(asked) else ():
            self._look_at(flight)
        return self._has_come(asked)

    def _halves(self, asked: UnderWay) -> bool:
        """Whether halves of the slots take turns."""
        return asked.line >= 0 and self._share < self._plan.pool.concurrency

    def _takes(self, policy: TypePolicy, now: float) -> bool:
        """Whether attempts of a type can be started now: its cells do not rest, and its secrets are there."""
        return self._yard.takes(policy) and self._plan.vault.takes(policy, now)

    def _board(self, flights: Sequence[Flight]) -> None:
        """Have flights be ours: from now on their leases are kept."""
        for flight in flights:
            self._flights[flight.handle] = flight
            self._lease_at = min(self._lease_at, flight.lease_until)
        self._budget.spend(len(flights), clock.boot_seconds())

    def _look_at(self, flight: Flight) -> None:
        """Judge a flight, once."""
        if not flight.judged:
            flight.judged = True
            flight.outcome = self._judge.verdict(flight.grant)

    def _take(self, flights: Sequence[Flight], asked_at: float) -> None:
        """Judge flights and have them made: while cells make one portion, the next is judged."""
        for portion in self._yard.portions(flights):
            self._judged(portion, asked_at)

    def _judged(self, flights: Sequence[Flight], asked_at: float) -> None:
        for flight in flights:
            self._look_at(flight)
            if flight.outcome is None:
                self._plan.vault.equip(flight, asked_at)
        going = [flight for flight in flights if flight.outcome is None]
        self._yard.enter(going, clock.boot_seconds())
        self._settle_up([flight for flight in flights if flight.outcome is not None], asked_at)
        if self._draining:
            self._yard.withdraw_waiting(clock.boot_seconds())
        elif going:
            self._yard.dispatch(clock.boot_seconds())

    def _flights_of(self, turn: Turn, asked_at: float) -> list[Flight]:
        return [self._flight(grant, asked_at) for grant in turn.grants]

    def _flight(self, grant: Grant, asked_at: float) -> Flight:
        self._handle += 1
        flight = Flight(self._handle, grant, self._plan.policies[grant.job.type], lease_until=0.0)
        flight.prolong(asked_at, grant.lease.seconds)
        return flight

    def _collect(self, now: float) -> None:
        ended, self._yard.ended = self._yard.ended, []
        self._settle_up(ended, now)

    def _settle_up(self, ended: Sequence[Flight], now: float) -> None:
        for flight in ended:
            flight.settlement = self._settler.settle(flight, clock.system_clock())
            if not self._done:
                self._done_at = now
            self._done.append(flight)

    def _report(self, batch: Sequence[Flight], answer: Turn) -> None:
        states = {each.job_id: each for each in answer.settled}
        for flight in batch:
            job = flight.grant.job
            found = states.get(job.id)
            what = type(flight.outcome).__name__.lower()
            if found is not None:
                self._say("settled", job=job.id, type=job.type, outcome=what, state=found.state, reason=found.reason)
            else:
                fence = flight.grant.lease.fence
                self._say("fenced_off", job=job.id, type=job.type, outcome=what, fence=fence)
        for grant in answer.grants:
            self._say("claimed", job=grant.job.id, type=grant.job.type, fence=grant.lease.fence)

    def _register(self, now: float) -> bool:
        answer = self._call(now, lambda: self._store.register(self._plan.facts))
        if answer is None:
            return True
        self._register_at = now + REGISTER_SECONDS
        wanted = {name: self._plan.facts.types[name] for name in self._accepts}
        different = sorted(name for name, digest in wanted.items() if answer.types.get(name) != digest)
        if different:
            text = f"the ledger's policy of {', '.join(different)} is not the one in the lock file of this host"
            self._refuse("L-ledger", f"{text}. Run: benteng policy apply")
        elif not self._told:
            self._told = True
            self._plan.ready()
        return True

    # ----------------------------------------------------------------------------------------------------- store away

    def _call(self, now: float, verb: Callable[[], T]) -> T | None:
        """Call a verb; None when the store is away. Then nothing is asked for a while, longer each time."""
        try:
            answer = verb()
        except StoreUnavailable as error:
            self._away(now, error)
            return None
        if self._away_times:
            self._say("store_back", seconds=round(now - self._away_since, 1))
        self._away_times = 0
        return answer

    def _away(self, now: float, error: StoreUnavailable) -> None:
        if not self._away_times:
            self._away_since = now
            self._say("store_away", why=clean_line(str(error)))
        pause = min(STORE_BACKOFF_SECONDS * 2 ** min(self._away_times, 16), STORE_BACKOFF_SECONDS_MAX)
        self._away_times += 1
        self._ask_at = clock.boot_seconds() + pause * (0.5 + self._rng.random())
        limit = self._plan.give_up_seconds
        if limit is not None and now - self._away_since > limit and not self._draining:
            self._begin_drain(now, UNAVAILABLE)

    # ----------------------------------------------------------------------------------------------------------- leases

    def _extend(self, now: float) -> bool:
        flights = [flight for flight in self._flights.values() if flight.held][:BATCH_MAX]
        if not flights:
            self._beat_at = now + self._plan.beat_seconds
            return False
        proofs = [flight.proof for flight in flights]
        progress = [flight.progress for flight in flights]
        asked_at = clock.boot_seconds()
        answers = self._call(now, lambda: self._store.extend(proofs, progress if any(progress) else ()))
        if answers is None:
            return True
        for flight, answer in zip(flights, answers, strict=True):
            flight.progressed = 0
            self._heed(flight, answer, asked_at)
        self._beat_at = asked_at + self._plan.beat_seconds
        self._watch_leases()
        self._yard.guard(self._flights.values())
        return True

    def _heed(self, flight: Flight, answer: Extension, asked_at: float) -> None:
        if answer.lost:
            self._say("lease_lost", job=flight.grant.job.id, fence=flight.grant.lease.fence)
            self._yard.stop(flight, StopReason.LOST, asked_at)
            return
        flight.prolong(asked_at, answer.seconds)
        if answer.cancel:
            self._yard.stop(flight, StopReason.CANCEL, asked_at)

    def _keep_leases(self, now: float) -> None:
        """Stop what holds a lease that is about to end: nobody may still run when somebody else may start."""
        if now < self._lease_at:
            return
        for flight in tuple(self._flights.values()):
            if flight.outcome is None and flight.stop is not StopReason.LEASE and flight.lease_until <= now:
                self._say("lease_ends", job=flight.grant.job.id, fence=flight.grant.lease.fence)
                self._yard.stop(flight, StopReason.LEASE, now)
        self._watch_leases()

    def _watch_leases(self) -> None:
        running = [f for f in self._flights.values() if f.outcome is None and f.stop is not StopReason.LEASE]
        self._lease_at = min((flight.lease_until for flight in running), default=float("inf"))

    # ------------------------------------------------------------------------------------------------------------ drain

    def _drain(self, now: float) -> None:
        if self._drain_until > now:
            return
        for flight in tuple(self._flights.values()):
            if flight.outcome is None and flight.stop is None:
                grace = 0.0 if self._signals > 1 else DRAIN_KILL_SECONDS
                self._yard.stop(flight, StopReason.DRAIN, now, grace_seconds=grace)
        if now > self._drain_until + LEAVE_SECONDS and self._flights:
            self._say("left_unsettled", attempts=len(self._flights))
            self._code = self._code or UNAVAILABLE
            self._flights.clear()
            self._done.clear()
            self._under_way = None

    def _begin_drain(self, now: float, code: int) -> None:
        self._code = self._code or code
        if not self._draining:
            self._draining = True
            self._drain_until = now + self._plan.pool.drain_seconds
            self._say("draining", attempts=len(self._flights), seconds=self._plan.pool.drain_seconds)
            self._yard.withdraw_waiting(now)

    def _refuse(self, rule: str, text: str) -> None:
        self._say("refused", rule=rule, why=text)
        self._record(WorkerRefusal(rule, clean_line(text)))
        self._accepts = ()
        self._begin_drain(clock.boot_seconds(), REFUSED)

    def _record(self, refusal: WorkerRefusal) -> None:
        """Write into the log why this worker works no more; a store that is away does not keep it from ending."""
        if self._call(clock.boot_seconds(), lambda: self._store.register(self._plan.facts, refusal)) is None:
            self._say("warning", rule="W-unrecorded", why="the log does not have it: the store is away")

    def _look_at_zygote(self) -> None:
        """Compare what the zygote imported with what was reviewed, once for each zygote."""
        crew = self._yard.crew
        if crew.refused is not None and not self._draining:
            self._refuse(crew.refused.rule, crew.refused.text)
        if crew.deserted and not self._draining:
            self._say("deserted", why="the warden is gone, and with it zygote and cells")
            self._begin_drain(clock.boot_seconds(), UNAVAILABLE)
        code, crew.reported = crew.reported, None
        if code is None or self._draining:
            return
        reviewed = {name: policy for name, policy in self._plan.policies.items() if name in code}
        lines = differences(reviewed, code)
        if lines:
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            text = f"the lock file differs from the code: {clean_line(lines[0])}{more}. Run: benteng policy lock"
            self._refuse("L-differs", text)
            return
        self._accepts = tuple(sorted(self._plan.types.keys() & code.keys()))
        unknown = sorted(self._plan.types.keys() - code.keys())
        if not self._accepts:
            self._refuse("W-pool", f"the app has no job type for pool {self._plan.pool.name}")
            return
        crew.approve()
        self._say("ready", pool=self._plan.pool.name, types=len(self._accepts), zygote=crew.hatchery.pid)
        if unknown:
            self._say("warning", rule="W-unknown", why=f"the code does not have, so they wait: {', '.join(unknown)}")

    # ---------------------------------------------------------------------------------------------------- loop and host

    def _tune(self) -> None:
        """Listen to where the ledger's hints come from now: each session has its own descriptor."""
        hints = self._store.hints
        if hints is self._hints:
            return
        if self._hints_fd >= 0:
            self._selector.unregister(self._hints_fd)
        self._hints, self._hints_fd = hints, -1 if hints is None else hints.fileno()
        if self._hints_fd >= 0:
            self._selector.register(self._hints_fd, selectors.EVENT_READ, self._hinted)

    def _await(self, line: int) -> None:
        """Be woken by the answer to a turn; -1: by none. Where hints are heard, it is heard too."""
        self._tune()
        if self._answer_fd >= 0:
            self._selector.unregister(self._answer_fd)
        self._answer_fd = -1 if line == self._hints_fd else line
        if self._answer_fd >= 0:
            self._selector.register(self._answer_fd, selectors.EVENT_READ, _nothing)

    def _hinted(self, mask: int, now: float) -> None:
        """Heed a hint; while a turn is under way behind its answer, which may not know of what was hinted at."""
        del mask
        if self._under_way is None and self._hints is not None and self._hints.heard():
            self._appetite.hint(now)

    def _sleep(self, now: float) -> None:
        self._tune()
        self._hinted(0, now)  # what came with an answer wakes no selector
        wake = min(self._yard.wake_at(now), self._lease_at, self._house_at, self._store_wakes_at(now))
        if self._draining:
            wake = min(wake, self._drain_until if now < self._drain_until else now + 0.05)
        self._plan.rests()
        for key, mask in self._selector.select(max(0.0, wake - clock.boot_seconds())):
            key.data(mask, clock.boot_seconds())

    def _store_wakes_at(self, now: float) -> float:
        if self._under_way is not None:
            return float("inf")  # the answer wakes us
        due = [self._backlog().due_at]
        if self._flights:
            due.append(self._beat_at)
        if self._accepts and not self._draining:
            due += [self._register_at, self._claims_at(now)]
        return max(min(due), self._ask_at)

    def _claims_at(self, now: float) -> float:
        """Return when the queue is to be asked; inf without room or a cell for more: whatever makes them wakes us."""
        if self._appetite.waits:
            return self._appetite.look_at
        return self._budget.wakes_at(now) if self._room() and not self._backlog().gathers else float("inf")

    def _keep_house(self, now: float) -> None:
        """Kill orphans that fell to this process, and leave when an attempt is stuck by a fault of ours."""
        if now < self._house_at:
            return
        self._house_at = now + HOUSEKEEPING_SECONDS
        system.kill_strays(self._plan.tend(now) | self._yard.crew.pids)
        leases = max((f.grant.lease.seconds for f in self._flights.values()), default=0.0)
        stuck = self._yard.overdue(now, max(STUCK_LEASES * leases, STUCK_SECONDS_MIN))
        if stuck:
            self._say("stuck", attempts=len(stuck))
            raise BentengError("an attempt did not end although it was killed")

    def _listen_to_signals(self) -> None:
        reader, writer = self._pipe
        self._selector.register(reader, selectors.EVENT_READ, self._signalled)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count)

    def _restore_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in self._pipe:
            os.close(number)

    def _signalled(self, mask: int, now: float) -> None:
        del mask, now
        os.read(self._pipe[0], 4096)

    def _count(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signals += 1

    def _obey_signals(self, now: float) -> None:
        """The first signal drains, the second ends at once."""
        if self._signals:
            self._begin_drain(now, OK)
        if self._signals > 1:
            self._drain_until = min(self._drain_until, now)


def _nothing(mask: int, now: float) -> None:
    """Be woken, no more."""
    del mask, now


def _where(error: BaseException) -> str:
    """Return the innermost place of a traceback, as file and line."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "" if at is None else f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
