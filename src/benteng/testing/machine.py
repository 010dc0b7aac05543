"""A Hypothesis machine that plays any verbs in any order against a store and a small model, and compares them.

    def test_my_store_follows_the_model(tmp_path):
        check_store(lambda: my_ledger(tmp_path), settings(max_examples=20))

After each step every job must be where the model has it; at the end everything that a person may see is compared and
the ledger's invariants are checked. Hypothesis shows the shortest life in which store and model part, and how to repeat
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum, auto
from functools import partial
from typing import Any, assert_never

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from benteng.clock import SECOND, Instant
from benteng.decide import Disposition
from benteng.errors import BentengError
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import Grant, Job, operation_key
from benteng.lifecycle import ACTIVE, QuarantineReason, State
from benteng.store.contract import Operator, Producer
from benteng.store.records import Admission, LeaseProof, Query, Replay, Settlement
from benteng.testing.bench import Bench, proof
from benteng.testing.invariants import check_ledger
from benteng.testing.ledger import HIGH, LOW, MEDIUM, ONCE, POOL, Ledger, make_policy
from benteng.testing.model import Disagreement, Model, Seen

MEDIUM_2 = make_policy("t.medium@2", MEDIUM.tier, resources=MEDIUM.resources)
"""The next major of MEDIUM: another type, the same operations."""

POLICIES = {policy.name: policy for policy in (LOW, MEDIUM, MEDIUM_2, ONCE, HIGH)}
TYPES = tuple(POLICIES)
RESOURCES = ((), ("host:a",), ("host:a",), ("host:b",), ("host:a", "host:b"))
DAY = 86_400
FEW = 2
WHY = "a reason"
OpenLedger = Callable[[], AbstractContextManager[Ledger]]
Switch = tuple[ControlScope, str]


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody asks for. `foreign_key`: with the bytes of a key that a LOW job may have."""

    type: str
    operation: str
    payload: bytes | None
    resources: tuple[str, ...]
    priority: int
    delay_seconds: int
    expires_seconds: int
    entry: State
    foreign_key: bool

    def job(self, bench: Bench, now: Instant) -> Job:
        """Return the job as a gate would make it."""
        own = {"operation_key": operation_key(LOW.name, {"x": self.operation})} if self.foreign_key else {}
        return bench.job(
            POLICIES[self.type],
            operation=self.operation,
            payload=self.payload,
            resources=() if self.type == LOW.name else self.resources,
            priority=self.priority,
            available_at=now + self.delay_seconds * SECOND if self.delay_seconds else 0,
            expires_at=now + self.expires_seconds * SECOND if self.expires_seconds else 0,
            **own,
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ends; `number` says which."""

    number: int
    disposition: Disposition
    reason: QuarantineReason
    started: bool
    delay_seconds: float

    def of(self, told: LeaseProof) -> Settlement:
        """Return the settlement that says so."""
        is_quarantine = self.disposition is Disposition.QUARANTINE
        return Settlement(
            told,
            self.disposition,
            self.delay_seconds,
            reason=self.reason if is_quarantine else None,
            result=b'"done"' if self.disposition is Disposition.COMPLETE else b"",
            started=self.started or not is_quarantine,
            holds=bool(self.number % 2),  # a worker may be wrong about it
        )


class Forgery(StrEnum):
    """What is wrong with a proof."""

    NOTHING = auto()
    FENCE = auto()
    TOKEN = auto()


numbers = st.integers(0, 100)
"""Which of several, modulo how many there are: shrinks towards the first."""
asks = st.builds(
    Ask,
    type=st.sampled_from((*TYPES, MEDIUM.name, MEDIUM.name)),
    operation=st.sampled_from("123456"),
    payload=st.sampled_from([None, None, None, b'{"x":"other"}']),
    resources=st.sampled_from(RESOURCES),
    priority=st.integers(0, 2),
    delay_seconds=st.sampled_from([0, 0, 0, 5]),
    expires_seconds=st.sampled_from([0, 0, 0, 20]),
    entry=st.sampled_from([State.READY] * 5 + [State.HELD, State.QUARANTINED]),
    foreign_key=st.sampled_from([False, False, False, True]),
)
endings = st.builds(
    Ending,
    number=numbers,
    disposition=st.sampled_from([*Disposition, Disposition.COMPLETE, Disposition.QUARANTINE]),
    reason=st.sampled_from(QuarantineReason),
    started=st.booleans(),
    delay_seconds=st.sampled_from([0.0, 5.0, 1e9]),
)
accepted = st.sampled_from([TYPES, TYPES, TYPES[:2], TYPES[2:]])
switches = st.sampled_from([(ControlScope.TYPE, name) for name in TYPES] + [(ControlScope.POOL, POOL)])


class StoreMachine(RuleBasedStateMachine):
    """One life of one fresh ledger. A subclass says how one is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = self.open_ledger()
        self.bench = Bench(self.opened.__enter__(), types=list(POLICIES.values()))
        self.model = Model(POLICIES, self.bench.clock())
        self.grants: list[Grant] = []
        self.agrees = True

    def open_ledger(self) -> AbstractContextManager[Ledger]:
        """Return what opens a fresh ledger and removes it again."""
        raise NotImplementedError("open a ledger: see check_store")

    def teardown(self) -> None:
        """Compare everything, unless the life has failed already, and remove the ledger."""
        try:
            if self.agrees:
                self._compare_all()
                check_ledger(self.bench.ledger, self.bench.journal)
        finally:
            self.opened.__exit__(None, None, None)

    # --- producer ---------------------------------------------------------------------------------------------------

    @initialize(first=st.lists(asks, min_size=4, max_size=8))
    def begin(self, first: list[Ask]) -> None:
        """Begin with some jobs, so that few steps go far."""
        for ask in first:
            self._admit(ask)

    @rule(ask=asks)
    def enqueue(self, ask: Ask) -> None:
        """Ask for a job: fresh, a duplicate, a conflict, or the same intent of another type."""
        self._admit(ask)

    def _admit(self, ask: Ask) -> None:
        self.agrees = False
        admission = Admission(ask.job(self.bench, self.model.now), ask.entry)
        (receipt,) = self.bench.admit(admission.job, entry=admission.entry)
        _agree_on({"receipt": self.model.admit(admission)}, {"receipt": replace(receipt, rule="", reason="")})

    @precondition(lambda self: len(self._in_state(*ACTIVE)) > FEW)
    @rule(number=numbers, by_operator=st.booleans())
    def cancel(self, number: int, *, by_operator: bool) -> None:
        """Cancel any job."""
        facet: Operator | Producer = self.bench.operator if by_operator else self.bench.producer
        job_id = self._pick(list(self.model.rows), number)
        self._same(lambda: self.model.cancel(job_id), lambda: facet.cancel([job_id], WHY))

    # --- consumer ---------------------------------------------------------------------------------------------------

    @rule(n=st.integers(1, 4), accepts=accepted)
    def claim(self, n: int, accepts: tuple[str, ...]) -> None:
        """Start jobs."""
        self.agrees = False
        self._follow(n, accepts, self.bench.claim(n, accepts))

    @rule(n=st.integers(1, 4), several=st.lists(endings, max_size=3))
    def work(self, n: int, several: list[Ending]) -> None:
        """Start jobs and end some of those that run."""
        self.agrees = False
        self._follow(n, TYPES, self.bench.claim(n, TYPES))
        self.model.wake(self._seen())
        for ending in several[: len(self._running())]:
            self._settle(ending.of(proof(self._pick(self._running(), ending.number))))
            self.model.wake(self._seen())

    @precondition(lambda self: self._running())
    @rule(ending=endings, n=st.integers(1, 4), accepts=accepted)
    def turn(self, ending: Ending, n: int, accepts: tuple[str, ...]) -> None:
        """End a running attempt in any way and start jobs in the same call."""
        self.agrees = False
        asked = ending.of(proof(self._pick(self._running(), ending.number)))
        answer = self.bench.consumer.turn([asked], n, accepts)
        self.bench.journal.settled(answer.settled)
        self.bench.journal.grants(answer.grants)
        _agree_on({"settled": tuple(self.model.settle(asked))}, {"settled": answer.settled})
        self._follow(n, accepts, list(answer.grants))

    def _follow(self, n: int, accepts: tuple[str, ...], grants: list[Grant]) -> None:
        self.model.claim(n, accepts, grants, self._seen())
        self.grants += grants

    @precondition(lambda self: self._running())
    @rule(ending=endings)
    def settle(self, ending: Ending) -> None:
        """End a running attempt in any way."""
        self._settle(ending.of(proof(self._pick(self._running(), ending.number))))

    @precondition(lambda self: self.grants)
    @rule(ending=endings, forgery=st.sampled_from(Forgery))
    def use_an_old_or_forged_proof(self, ending: Ending, forgery: Forgery) -> None:
        """Extend and end an attempt that may be over, or with another fence or token."""
        told = self._proof(ending.number, forgery)
        self._same(lambda: [self.model.extend(told)], lambda: self.bench.consumer.extend([told]))
        self._settle(ending.of(told))

    def _settle(self, asked: Settlement) -> None:
        self._same(lambda: self.model.settle(asked), lambda: self.bench.settle(asked))

    # --- time -------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0, 1, 6, 70]))
    def stage(self, seconds: int) -> None:
        """Let time pass and the keeper do its round."""
        self._pass(seconds)
        staged = self.bench.stage()
        _agree_on({"staged": self.model.stage()}, {"staged": (staged.ready, staged.expired)})

    @rule(seconds=st.sampled_from([1, 31, 31, 70]))
    def reclaim(self, seconds: int) -> None:
        """Let time pass and take back what was lost."""
        self._pass(seconds)
        self._same(self.model.reclaim, lambda: set(self.bench.reclaim()))

    @precondition(lambda self: self.grants)
    @rule(seconds=st.sampled_from([20, 20, 20, 31 * DAY]))
    def live_on(self, seconds: int) -> None:
        """Let time pass, forget what is past its retention, and send heartbeats for all attempts."""
        self._pass(seconds)
        self._same(self.model.purge, lambda: self.bench.keeper.purge(1_000))
        told = [proof(grant) for grant in self.grants]
        self._same(lambda: list(map(self.model.extend, told)), lambda: self.bench.consumer.extend(told))

    def _pass(self, seconds: int) -> None:
        self.agrees = False
        self.bench.advance(seconds)
        self.model.now = self.bench.clock()

    # --- operator ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.model.switches) < FEW)
    @rule(where=switches, mode=st.sampled_from(ControlMode))
    def tighten(self, where: Switch, mode: ControlMode) -> None:
        """Set a switch stricter."""
        control = Control(where[0], where[1], mode, WHY)
        self._same(lambda: self.model.tighten(control), lambda: self.bench.operator.tighten(control))

    @precondition(lambda self: self.model.switches)
    @rule(mode=st.sampled_from([ControlMode.OPEN, ControlMode.OPEN, ControlMode.HOLD]))
    def loosen(self, mode: ControlMode) -> None:
        """Set every switch looser that was thrown."""
        for scope, name in list(self.model.switches):
            control = Control(scope, name, mode, WHY)
            self._same(partial(self.model.loosen, control), partial(self.bench.operator.loosen, control))
            self.model.wake(self._seen())

    @precondition(lambda self: self._in_state(State.HELD))
    @rule(number=numbers)
    def release(self, number: int) -> None:
        """Let a held job go on."""
        job_id = self._pick(self._in_state(State.HELD), number)
        self._same(lambda: self.model.release(job_id), lambda: self.bench.operator.release([job_id], WHY))

    @precondition(lambda self: self._in_state(State.QUARANTINED))
    @rule(number=numbers, reason=st.sampled_from(QuarantineReason))
    def classify(self, number: int, reason: QuarantineReason) -> None:
        """Say what a quarantined job is."""
        job_id, operator = self._pick(self._in_state(State.QUARANTINED), number), self.bench.operator
        self._same(lambda: self.model.classify(job_id, reason), lambda: operator.classify(job_id, reason, "a note"))

    @precondition(lambda self: self._in_state(State.QUARANTINED))
    @rule(number=numbers, free=st.booleans(), happened=st.booleans())
    def give_up(self, number: int, *, free: bool, happened: bool) -> None:
        """Discard a quarantined job; when that must be refused, say whether its effect happened."""
        job_id, operator = self._pick(self._in_state(State.QUARANTINED), number), self.bench.operator
        self._same(lambda: self.model.discard(job_id, free=free), lambda: operator.discard([job_id], WHY, free=free))
        self._same(
            lambda: self.model.resolve(job_id, happened=happened),
            lambda: operator.resolve(job_id, happened=happened, reason=WHY),
        )

    @precondition(lambda self: self._in_state(State.QUARANTINED))
    @rule(number=numbers, entry=st.sampled_from([State.READY, State.READY, State.HELD]))
    def replay(self, number: int, entry: State) -> None:
        """Bring a quarantined job back."""
        job = self.model.rows[self._pick(self._in_state(State.QUARANTINED), number)].job
        again = Replay(replace(job, generation=job.generation + 1), entry, WHY)
        self._same(lambda: self.model.replay(job.id, entry), lambda: self.bench.operator.replay(again))

    # --- comparing --------------------------------------------------------------------------------------------------

    @invariant()
    def store_shows_what_the_model_has(self) -> None:
        """Compare state, attempts, reason and what each blocked job waits for."""
        seen = self._seen()
        _agree_on(dict.fromkeys(self.model.rows), dict.fromkeys(seen))
        self.model.wake(seen)
        _agree_on({job_id: row.seen for job_id, row in self.model.rows.items()}, seen)
        self.agrees = True

    def _seen(self) -> dict[str, Seen]:
        page = self.bench.operator.find(Query(limit=200))
        assert not page.next, "more jobs than a page holds"
        return {
            line.job_id: Seen(line.state, line.attempts, line.reason, self._waits_for(line.job_id, line.state))
            for line in page.lines
        }

    def _waits_for(self, job_id: str, state: State) -> str:
        return self.bench.view(job_id).waits_for if state is State.BLOCKED else ""

    def _compare_all(self) -> None:
        for row in self.model.rows.values():
            view = self.bench.view(row.job.id)
            _agree_on(_values(row.job, OF_JOB), _values(view.job, OF_JOB))
            _agree_on(_values(row, OF_ROW), _values(view, OF_ROW))
            for resource in view.resources:
                key = resource.key
                expected = self.model.holders.get(key, ""), self.model.fences.get(key, 0), key in self.model.closed
                _agree_on({key: expected}, {key: (resource.holder, resource.fence, resource.closed)})

    def _same(self, model: Callable[[], object], store: Callable[[], object]) -> None:
        """Require the same answer, or an error of the same type."""
        self.agrees = False
        _agree_on({"answer": _answer(model)}, {"answer": _answer(store)})

    # --- choosing ---------------------------------------------------------------------------------------------------

    def _pick(self, several: list[Any], number: int) -> Any:
        return several[number % len(several)]

    def _in_state(self, *states: State) -> list[str]:
        return [row.job.id for row in self.model.rows.values() if row.state in states]

    def _running(self) -> list[Grant]:
        fences = {row.fence for row in self.model.rows.values() if row.state is State.RUNNING}
        return [grant for grant in self.grants if grant.lease.fence in fences]

    def _proof(self, number: int, forgery: Forgery) -> LeaseProof:
        told = proof(self._pick(self.grants, number))
        match forgery:
            case Forgery.NOTHING:
                return told
            case Forgery.FENCE:
                return replace(told, fence=told.fence + 1)
            case Forgery.TOKEN:
                return replace(told, token="0" * 32)
            case _:
                assert_never(forgery)


OF_JOB = ("id", "type", "payload_sha256", "operation_key", "generation", "refs")
OF_ROW = ("state", "reason", "operation", "epoch", "attempts", "crashes", "starts", "fence", "result")


ABSENT = "nothing"


def _values(of: object, names: tuple[str, ...]) -> dict[str, object]:
    return {name: getattr(of, name) for name in names}


def _agree_on(model: Mapping[str, object], store: Mapping[str, object]) -> None:
    apart = [name for name in model.keys() | store.keys() if model.get(name, ABSENT) != store.get(name, ABSENT)]
    told = [f"{n}: the model has {model.get(n, ABSENT)}, the store {store.get(n, ABSENT)}" for n in sorted(apart)]
    if told:
        raise Disagreement("; ".join(told))


def _answer(call: Callable[[], object]) -> object:
    try:
        return call()
    except BentengError as error:
        return type(error)


def check_store(open_ledger: OpenLedger, lives: settings) -> None:
    """Play lives against the ledgers that `open_ledger` opens. Raises for the first in which store and model part."""

    class Machine(StoreMachine):
        def open_ledger(self) -> AbstractContextManager[Ledger]:
            return open_ledger()

    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    told = settings(lives, deadline=None, print_blob=True, suppress_health_check=slow)
    run_state_machine_as_test(Machine, settings=told)
