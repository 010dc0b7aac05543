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
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from benteng.decide import Disposition
from benteng.errors import BentengError
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import Grant, operation_key
from benteng.lifecycle import QuarantineReason, State
from benteng.store.records import Admission, LeaseProof, Query, Replay, Settlement
from benteng.testing.bench import Bench, proof
from benteng.testing.invariants import check_ledger
from benteng.testing.ledger import HIGH, LOW, MEDIUM, ONCE, POOL, Ledger, make_policy
from benteng.testing.model import Disagreement, Model, Row, Seen

MEDIUM_2 = make_policy("t.medium@2", MEDIUM.tier, resources=MEDIUM.resources)
"""The next major of MEDIUM: another type, the same operations."""

POLICIES = {policy.name: policy for policy in (LOW, MEDIUM, MEDIUM_2, ONCE, HIGH)}
TYPES = tuple(POLICIES)
KEYS = ("host:a", "host:b", "host:c")
SECOND_US = 1_000_000
DAY = 86_400
WHY = "a reason"
OpenLedger = Callable[[], AbstractContextManager[Ledger]]

jobs_by_number = st.integers(0, 1_000)
"""A job by its number, modulo how many there are: shrinks towards the first."""
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

    @rule(
        name=st.sampled_from(TYPES),
        operation=st.sampled_from(["1", "2", "3", None]),
        payload=st.sampled_from([None, None, None, b'{"x":"other"}']),
        resources=st.sets(st.sampled_from(KEYS), max_size=2),
        when=st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0, 5, 40]), st.sampled_from([0, 0, 0, 20, 100])),
        entry=st.sampled_from([State.READY] * 4 + [State.HELD, State.QUARANTINED]),
    )
    def enqueue(self, name: str, operation: Any, payload: Any, resources: Any, when: Any, entry: State) -> None:
        """Ask for a job: fresh, a duplicate, a conflict, or the same intent of another type."""
        priority, delay, expires = when
        job = self.bench.job(
            POLICIES[name],
            operation=operation,
            payload=payload,
            resources=() if name == LOW.name else tuple(resources),
            priority=priority,
            available_at=delay and self.model.now + delay * SECOND_US,
            expires_at=expires and self.model.now + expires * SECOND_US,
        )
        self._admit(Admission(job, entry))

    @rule(name=st.sampled_from(TYPES), operation=st.sampled_from(["1", "2", "3"]))
    def enqueue_with_a_key_of_another_type(self, name: str, operation: str) -> None:
        """Use the bytes of a key that a LOW job may have: a key belongs to its type."""
        key = operation_key(LOW.name, {"x": operation})
        self._admit(Admission(self.bench.job(POLICIES[name], operation=operation, operation_key=key)))

    def _admit(self, admission: Admission) -> None:
        self.agrees = False
        (receipt,) = self.bench.admit(admission.job, entry=admission.entry)
        _agree_on({"receipt": self.model.admit(admission)}, {"receipt": replace(receipt, rule="", reason="")})

    @precondition(lambda self: self.model.rows)
    @rule(number=jobs_by_number, by_operator=st.booleans())
    def cancel(self, number: int, *, by_operator: bool) -> None:
        """Cancel any job."""
        job_id, facet = self._job(number).job.id, self.bench.operator if by_operator else self.bench.producer
        self._same(lambda: self.model.cancel(job_id), lambda: facet.cancel([job_id], WHY))

    # --- consumer ---------------------------------------------------------------------------------------------------

    @rule(n=st.integers(1, 4), accepts=st.sampled_from([TYPES, TYPES, TYPES[:2], TYPES[2:]]))
    def claim(self, n: int, accepts: tuple[str, ...]) -> None:
        """Start jobs."""
        self.agrees = False
        grants = self.bench.claim(n, accepts)
        self.model.claim(n, accepts, grants, self._seen())
        self.grants += grants

    @precondition(lambda self: self.grants)
    @rule(number=jobs_by_number, forged=st.sampled_from([0, 0, 1, 2]))
    def extend(self, number: int, forged: int) -> None:
        """Send the heartbeat of any attempt, also of one that is over or never was."""
        told = self._proof(number, forged)
        self._same(lambda: [self.model.extend(told)], lambda: self.bench.consumer.extend([told]))

    @precondition(lambda self: self._running())
    @rule(number=jobs_by_number, disposition=st.sampled_from(Disposition), delay=st.sampled_from([0.0, 5.0, 1e9]))
    def settle(self, number: int, disposition: Disposition, delay: float) -> None:
        """End a running attempt in any way but quarantine for a given reason."""
        told = proof(self._pick(self._running(), number))
        self._settle(told, disposition, delay_seconds=delay, reason=QuarantineReason.PERMANENT)

    @precondition(lambda self: self._running())
    @rule(number=jobs_by_number, reason=st.sampled_from(QuarantineReason), started=st.booleans())
    def quarantine(self, number: int, reason: QuarantineReason, *, started: bool) -> None:
        """End a running attempt in quarantine."""
        told = proof(self._pick(self._running(), number))
        self._settle(told, Disposition.QUARANTINE, reason=reason, started=started)

    @precondition(lambda self: self.grants)
    @rule(number=jobs_by_number, forged=st.integers(0, 2), disposition=st.sampled_from(Disposition))
    def settle_old_or_forged(self, number: int, forged: int, disposition: Disposition) -> None:
        """End an attempt that may be over, or with another fence or token."""
        self._settle(self._proof(number, forged), disposition, reason=QuarantineReason.PERMANENT)

    def _settle(self, told: LeaseProof, disposition: Disposition, **fields: Any) -> None:
        is_quarantine = disposition is Disposition.QUARANTINE
        fields |= {"result": b'"done"'} if disposition is Disposition.COMPLETE else {}
        fields["reason"] = fields["reason"] if is_quarantine else None
        asked = Settlement(told, disposition, **fields)
        self._same(lambda: self.model.settle(asked), lambda: self.bench.settle(asked))

    # --- time -------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 4, 6, 31, 31, 70, 3_700, 31 * DAY]))
    def advance(self, seconds: int) -> None:
        """Let time pass."""
        self.bench.advance(seconds)
        self.model.now = self.bench.clock()

    @rule()
    def reclaim(self) -> None:
        """Take back what was lost."""
        self._same(self.model.reclaim, lambda: set(self.bench.reclaim()))

    @rule()
    def stage(self) -> None:
        """Let the keeper do its round."""
        self.agrees = False
        staged = self.bench.stage()
        _agree_on({"staged": self.model.stage()}, {"staged": (staged.ready, staged.expired)})

    @rule()
    def purge(self) -> None:
        """Forget what may be forgotten."""
        self._same(self.model.purge, lambda: self.bench.keeper.purge(1_000))

    # --- operator ---------------------------------------------------------------------------------------------------

    @rule(where=switches, mode=st.sampled_from(ControlMode))
    def tighten(self, where: Any, mode: ControlMode) -> None:
        """Set a switch stricter."""
        control = Control(where[0], where[1], mode, WHY)
        self._same(lambda: self.model.tighten(control), lambda: self.bench.operator.tighten(control))

    @precondition(lambda self: self.model.switches)
    @rule(number=jobs_by_number, mode=st.sampled_from([ControlMode.OPEN, ControlMode.OPEN, ControlMode.HOLD]))
    def loosen(self, number: int, mode: ControlMode) -> None:
        """Set a switch looser."""
        scope, name = self._pick(list(self.model.switches), number)
        control = Control(scope, name, mode, WHY)
        self._same(lambda: self.model.loosen(control), lambda: self.bench.operator.loosen(control))

    @precondition(lambda self: self._in_state(State.HELD))
    @rule(number=jobs_by_number)
    def release(self, number: int) -> None:
        """Let a held job go on."""
        job_id = self._pick(self._in_state(State.HELD), number)
        self._same(lambda: self.model.release(job_id), lambda: self.bench.operator.release([job_id], WHY))

    @precondition(lambda self: self._in_state(State.QUARANTINED))
    @rule(number=jobs_by_number, reason=st.sampled_from(QuarantineReason))
    def classify(self, number: int, reason: QuarantineReason) -> None:
        """Say what a quarantined job is."""
        job_id = self._pick(self._in_state(State.QUARANTINED), number)
        operator = self.bench.operator
        self._same(lambda: self.model.classify(job_id, reason), lambda: operator.classify(job_id, reason, "a note"))

    @precondition(lambda self: self._in_state(State.QUARANTINED))
    @rule(number=jobs_by_number, free=st.booleans())
    def discard(self, number: int, *, free: bool) -> None:
        """Give up a quarantined job."""
        job_id, operator = self._pick(self._in_state(State.QUARANTINED), number), self.bench.operator
        self._same(lambda: self.model.discard(job_id, free=free), lambda: operator.discard([job_id], WHY, free=free))

    @precondition(lambda self: self._in_state(State.QUARANTINED))
    @rule(number=jobs_by_number, happened=st.booleans())
    def resolve(self, number: int, *, happened: bool) -> None:
        """Say whether it happened."""
        job_id, operator = self._pick(self._in_state(State.QUARANTINED), number), self.bench.operator
        self._same(
            lambda: self.model.resolve(job_id, happened=happened),
            lambda: operator.resolve(job_id, happened=happened, reason=WHY),
        )

    @precondition(lambda self: self._in_state(State.QUARANTINED))
    @rule(number=jobs_by_number, entry=st.sampled_from([State.READY, State.READY, State.HELD]))
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

    def _job(self, number: int) -> Row:
        return self._pick(list(self.model.rows.values()), number)

    def _in_state(self, state: State) -> list[str]:
        return [row.job.id for row in self.model.rows.values() if row.state is state]

    def _running(self) -> list[Grant]:
        fences = {row.fence for row in self.model.rows.values() if row.state is State.RUNNING}
        return [grant for grant in self.grants if grant.lease.fence in fences]

    def _proof(self, number: int, forged: int) -> LeaseProof:
        told = proof(self._pick(self.grants, number))
        return (told, replace(told, fence=told.fence + 1), replace(told, token="0" * 32))[forged]


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
