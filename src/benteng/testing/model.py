"""A small model of a ledger: what the store contract promises, as dicts and one client at a time.

Each verb changes the model and returns what the store must answer, or raises what the store must raise. Two things are
the store's to choose, within the contract: how far a claim walks the line, and which fences and tokens it gives. There
the model follows what it is shown, and raises Disagreement when the contract forbids it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from benteng.clock import SECOND, Instant
from benteng.decide import Disposition
from benteng.errors import NeedsAction, PolicyError
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import Attempt, Grant, Job
from benteng.lifecycle import TERMINAL, OperationState, QuarantineReason, State, operation_after
from benteng.policy import Effect, Tier, TypePolicy
from benteng.store.records import (
    Admission,
    Cancelled,
    Disposal,
    Extension,
    LeaseProof,
    Receipt,
    Reclaimed,
    Settled,
    Settlement,
)

FRESH_SECONDS = 5
"""A woken job that nobody has claimed for so long no longer keeps the others asleep."""
STOPPED = frozenset(TERMINAL | {State.QUARANTINED})
GOES_BACK = frozenset(set(Disposition) - {Disposition.COMPLETE, Disposition.QUARANTINE})
UNSTARTED = frozenset({Disposition.HAND_BACK, Disposition.HOLD})
KILLED = frozenset({Disposition.CRASH, Disposition.INTERRUPT})


class Disagreement(AssertionError):  # noqa: N818 - named by what happened
    """The store did what the contract forbids."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a store shows of one job."""

    state: State
    attempts: int
    reason: QuarantineReason | None
    waits_for: str = ""


@dataclass(slots=True)
class Row:
    """One job with its operation. `waits_for` of a ready job is the key for which it was woken."""

    job: Job
    policy: TypePolicy
    seq: int
    epoch: int
    state: State
    due_at: Instant
    reason: QuarantineReason | None = None
    operation: OperationState = OperationState.RESERVED
    classified: str = ""
    attempts: int = 0
    crashes: int = 0
    handbacks: int = 0
    snoozes: int = 0
    starts: int = 0
    fence: int = 0
    token: str = ""
    lease_until: Instant = 0
    cancel_asked: bool = False
    waits_for: str = ""
    woken_at: Instant = 0
    result: bytes | None = None
    result_until: Instant = 0
    keep_until: Instant | None = None

    @property
    def place(self) -> tuple[int, Instant, int]:
        """Where the job stands in line."""
        return self.job.priority, self.due_at, self.seq

    @property
    def key(self) -> tuple[str, str]:
        """What at most one job that is not freed has."""
        return self.job.type.partition("@")[0], self.job.operation_key

    @property
    def seen(self) -> Seen:
        """What the store must show."""
        waits_for = self.waits_for if self.state is State.BLOCKED else ""
        return Seen(self.state, self.attempts, self.reason, waits_for)


@dataclass(slots=True)
class Model:
    """Jobs by id, holders by resource key, switches. `now` is the store's clock.

    let_go        keys that somebody who waits for them must be awake for, since the last look at the store
    fence_before  the last fence at that look
    """

    policies: Mapping[str, TypePolicy]
    now: Instant
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    holders: dict[str, str] = field(default_factory=dict[str, str])
    fences: dict[str, int] = field(default_factory=dict[str, int])
    closed: set[str] = field(default_factory=set[str])
    switches: dict[tuple[ControlScope, str], ControlMode] = field(
        default_factory=dict[tuple[ControlScope, str], ControlMode]
    )
    tokens: set[str] = field(default_factory=set[str])
    let_go: set[str] = field(default_factory=set[str])
    admitted: int = 0
    fence: int = 0
    fence_before: int = 0

    # --- producer ---------------------------------------------------------------------------------------------------

    def admit(self, admission: Admission) -> Receipt:
        """Return the receipt, without rule and reason."""
        job, policy = admission.job, self.policies[admission.job.type]
        mode = self.mode(policy)
        if mode is ControlMode.HALT:
            return Receipt(Disposal.REFUSED)
        new = Row(job, policy, self.admitted, 1, State.READY, max(job.available_at, self.now))
        owner = self._owner(new)
        if owner and owner.job.payload_sha256 != job.payload_sha256:
            return Receipt(Disposal.CONFLICT, owner.job.id, owner.state)
        if owner:
            return Receipt(Disposal.DUPLICATE, owner.job.id, owner.state, result=owner.result)
        self.admitted += 1
        new.epoch += max((row.epoch for row in self.rows.values() if row.key == new.key), default=0)
        new.state = self._entry(admission.entry, mode, job)
        new.reason = QuarantineReason.DIVERTED if new.state is State.QUARANTINED else None
        self.rows[job.id] = new
        return Receipt(Disposal.ADMITTED, job.id, new.state)

    def _owner(self, new: Row) -> Row | None:
        same = (row for row in self.rows.values() if row.key == new.key)
        return next((row for row in same if row.operation is not OperationState.FREED), None)

    def _entry(self, entry: State, mode: ControlMode, job: Job) -> State:
        if entry is State.QUARANTINED or mode is ControlMode.DIVERT:
            return State.QUARANTINED
        if entry is State.HELD or mode is ControlMode.HOLD:
            return State.HELD
        return State.SCHEDULED if job.available_at > self.now else State.READY

    def cancel(self, job_id: str) -> list[Cancelled]:
        """Cancel one job; running ones are asked."""
        row = self.rows[job_id]
        if row.state in STOPPED:
            return []
        if row.state is State.RUNNING:
            row.cancel_asked = True
        else:
            self._move(row, State.CANCELLED)
        return [Cancelled(job_id, row.state)]

    # --- consumer ---------------------------------------------------------------------------------------------------

    def claim(self, n: int, accepts: Sequence[str], grants: Sequence[Grant], seen: Mapping[str, Seen]) -> None:
        """Follow a claim: its grants, and where it put what it could not start."""
        line = [row for row in self._startable(State.READY) if row.job.type in accepts]
        ids, held_before = {row.job.id for row in line}, dict(self.holders)
        _agree(len(grants) <= n, "more grants than asked for")
        for grant in grants:
            self._start(grant, accepts)
        last = max((row.place for row in line if row.state is State.RUNNING), default=None)
        behind = [grant.job.id for grant in grants if grant.job.id in ids]
        _agree(behind == sorted(behind, key=lambda job_id: self.rows[job_id].place), "grants are out of order")
        for row in line:
            if row.state is State.READY and not self._passed(row, seen[row.job.id], accepts):
                is_behind = len(grants) == n and (last is None or row.place > last)
                _agree(is_behind, f"{row.job.id} could have started and did not")
            if row.state is State.BLOCKED and row.waits_for not in held_before:
                holder = self.rows[self.holders[row.waits_for]]
                _agree(holder.place < row.place or holder.job.id not in ids, "one from behind took the resource")
        for row in self._startable(State.BLOCKED):
            self._passed(row, seen[row.job.id], accepts)

    def _start(self, grant: Grant, accepts: Sequence[str]) -> None:
        row, lease = self.rows[grant.job.id], grant.lease
        keys = row.job.refs.resources
        _agree(row in self._startable(State.READY, State.BLOCKED) and row.job.type in accepts, "nothing to start")
        _agree(not self._is_late(row) and not set(keys) & self.holders.keys(), "expired, or a resource is held")
        _agree(lease.fence > self.fence and lease.token not in self.tokens, "fence or token were given before")
        spent = Attempt(row.attempts + 1, row.crashes, row.handbacks, row.snoozes)
        _agree((row.job, spent) == (grant.job, grant.attempt), "another job, or another number of the attempt")
        _agree(lease.seconds == row.policy.limits.lease_seconds, "another lease than the policy's")
        self._give_baton(row, taken=keys)
        self.holders |= dict.fromkeys(keys, row.job.id)
        self.fences |= dict.fromkeys(keys, lease.fence)
        self.fence = row.fence = lease.fence
        self.tokens.add(lease.token)
        row.state, row.token = State.RUNNING, lease.token
        row.attempts, row.starts = row.attempts + 1, row.starts + 1
        row.lease_until = self.now + int(lease.seconds * SECOND)

    def _passed(self, row: Row, seen: Seen, accepts: Sequence[str]) -> bool:
        """Follow what a claim did with a job that it did not start; False when it is where it was."""
        if seen.state is State.QUARANTINED and self._is_late(row) and row.job.type in accepts:
            self._move(row, State.QUARANTINED, QuarantineReason.EXPIRED)
        elif seen.state is State.BLOCKED and seen.waits_for != (row.waits_for if row.state is State.BLOCKED else ""):
            _agree(seen.waits_for in row.job.refs.resources, "parked on a key that it does not need")
            _agree(seen.waits_for in self.holders, "parked on a key that is free")
            self._give_baton(row, taken=(seen.waits_for,))
            row.state, row.waits_for = State.BLOCKED, seen.waits_for
        else:
            return row.state is State.BLOCKED
        return True

    def _give_baton(self, row: Row, taken: Sequence[str]) -> None:
        if row.waits_for and row.waits_for not in taken:
            self.let_go.add(row.waits_for)
        row.waits_for = ""

    def extend(self, proof: LeaseProof) -> Extension:
        """Renew a lease that is not over."""
        row = self._proven(proof)
        if row is None or row.lease_until <= self.now:
            return Extension(proof.job_id, lost=True)
        seconds = row.policy.limits.lease_seconds
        row.lease_until = self.now + int(seconds * SECOND)
        return Extension(proof.job_id, lost=False, cancel=row.cancel_asked, seconds=seconds)

    def settle(self, asked: Settlement) -> list[Settled]:
        """End an attempt within the bounds of its policy."""
        row = self._proven(asked.proof)
        if row is None:
            return []
        is_last_crash = asked.disposition is Disposition.QUARANTINE and asked.reason is QuarantineReason.CRASHED
        row.crashes += (is_last_crash and asked.started) or asked.disposition is Disposition.CRASH
        self._end(row, asked)
        return [Settled(row.job.id, row.state, row.reason)]

    def _proven(self, proof: LeaseProof) -> Row | None:
        row = self.rows.get(proof.job_id)
        is_it = row and row.state is State.RUNNING and (row.fence, row.token) == (proof.fence, proof.token)
        return row if is_it else None

    def _end(self, row: Row, asked: Settlement) -> None:
        if row.policy.effect is Effect.ONCE and asked.disposition in KILLED:
            return self._move(row, State.QUARANTINED, QuarantineReason.UNCERTAIN)
        if row.cancel_asked and asked.disposition in GOES_BACK:
            self._give_back(row, asked.disposition in UNSTARTED)
            return self._move(row, State.CANCELLED)
        match asked.disposition:
            case Disposition.COMPLETE:
                return self._complete(row, asked.result)
            case Disposition.RETRY | Disposition.CRASH:
                return self._retry(row, asked)
            case Disposition.SNOOZE:
                return self._snooze(row, asked)
            case Disposition.HAND_BACK | Disposition.INTERRUPT:
                return self._hand_back(row, asked)
            case Disposition.HOLD:
                self._give_back(row, True)
                return self._move(row, State.HELD)
            case Disposition.QUARANTINE:
                self._give_back(row, not asked.started)
                return self._move(row, State.QUARANTINED, asked.reason)
            case _:
                assert_never(asked.disposition)

    def _give_back(self, row: Row, unstarted: bool) -> None:  # noqa: FBT001 - said by its caller in the same line
        row.attempts -= unstarted
        row.starts -= unstarted

    def _complete(self, row: Row, result: bytes) -> None:
        self._move(row, State.COMPLETED)
        row.result, row.result_until = result, self._in(row.policy.limits.result_keep_seconds)

    def _keep(self, row: Row) -> None:
        keep = row.policy.limits.operation_keep_seconds
        row.keep_until = None if keep is None else self._in(keep)

    def _retry(self, row: Row, asked: Settlement) -> None:
        limits, is_crash = row.policy.limits, asked.disposition is Disposition.CRASH
        if row.attempts >= limits.attempts_max or (is_crash and row.crashes >= limits.crashes_max):
            why = QuarantineReason.CRASHED if is_crash else QuarantineReason.EXHAUSTED
            return self._move(row, State.QUARANTINED, why)
        delay = min(max(asked.delay_seconds, limits.backoff_seconds_min), limits.backoff_seconds_max)
        row.due_at = self._in(delay)
        return self._move(row, State.SCHEDULED)

    def _snooze(self, row: Row, asked: Settlement) -> None:
        limits = row.policy.limits
        if row.snoozes >= limits.snoozes_max:
            return self._move(row, State.QUARANTINED, QuarantineReason.EXHAUSTED)
        row.attempts, row.snoozes = row.attempts - 1, row.snoozes + 1
        row.due_at = self._in(min(max(asked.delay_seconds, limits.backoff_seconds_min), limits.snooze_seconds_max))
        return self._move(row, State.SCHEDULED)

    def _hand_back(self, row: Row, asked: Settlement) -> None:
        limits = row.policy.limits
        is_free = row.handbacks < limits.handbacks_max
        is_over = not is_free and row.attempts >= limits.attempts_max
        row.starts -= asked.disposition is Disposition.HAND_BACK
        row.attempts, row.handbacks = row.attempts - is_free, row.handbacks + 1
        if is_over:
            return self._move(row, State.QUARANTINED, QuarantineReason.EXHAUSTED)
        return self._move(row, State.READY)

    # --- keeper -----------------------------------------------------------------------------------------------------

    def reclaim(self) -> set[Reclaimed]:
        """Take back every job whose lease ran out."""
        lost = [row for row in self.rows.values() if row.state is State.RUNNING and row.lease_until <= self.now]
        for row in lost:
            row.crashes += 1
            self._lose(row)
        return {Reclaimed(row.job.id, row.state, row.reason) for row in lost}

    def _lose(self, row: Row) -> None:
        limits = row.policy.limits
        if row.policy.effect is Effect.ONCE:
            self._move(row, State.QUARANTINED, QuarantineReason.UNCERTAIN)
        elif row.cancel_asked:
            self._move(row, State.CANCELLED)
        elif row.crashes >= limits.crashes_max or row.attempts >= limits.attempts_max:
            self._move(row, State.QUARANTINED, QuarantineReason.CRASHED)
        else:
            self._move(row, State.READY)

    def stage(self) -> tuple[int, int]:
        """Let time do its part; return how many jobs became ready and how many expired."""
        late = [row for row in self.rows.values() if row.state not in STOPPED | {State.RUNNING} and self._is_late(row)]
        for row in late:
            self._move(row, State.QUARANTINED, QuarantineReason.EXPIRED)
        due = [row for row in self.rows.values() if row.state is State.SCHEDULED and row.due_at <= self.now]
        for row in due:
            row.state = State.READY
        self.sweep()
        return len(due), len(late)

    def purge(self) -> int:
        """Forget what is past its retention; return how many results and operations."""
        results = [row for row in self.rows.values() if row.result is not None and row.result_until <= self.now]
        for row in results:
            row.result = None
        over = [row for row in self.rows.values() if row.keep_until is not None and row.keep_until <= self.now]
        for row in over:
            del self.rows[row.job.id]
        return len(results) + len(over)

    # --- operator ---------------------------------------------------------------------------------------------------

    def tighten(self, control: Control) -> None:
        """Set a switch, or raise PolicyError when that loosens it."""
        where = control.scope, control.name
        _allow(control.mode.rank >= self.switches.get(where, ControlMode.OPEN).rank)
        self.switches[where] = control.mode

    def loosen(self, control: Control) -> None:
        """Set a switch, or raise PolicyError when that does not loosen it."""
        where = control.scope, control.name
        _allow(control.mode.rank < self.switches.get(where, ControlMode.OPEN).rank)
        self.switches[where] = control.mode
        if control.mode is ControlMode.OPEN:
            del self.switches[where]
        self.sweep()

    def mode(self, policy: TypePolicy) -> ControlMode:
        """Return the strictest switch over a type."""
        over = [(ControlScope.TYPE, policy.name), (ControlScope.POOL, policy.pool)]
        return max((self.switches.get(where, ControlMode.OPEN) for where in over), key=lambda mode: mode.rank)

    def release(self, job_id: str) -> list[Cancelled]:
        """Let a held job go on."""
        row = self.rows[job_id]
        if row.state is not State.HELD:
            return []
        _allow(self.mode(row.policy) not in {ControlMode.HOLD, ControlMode.DIVERT})
        row.due_at = max(row.job.available_at, self.now)
        row.state = State.SCHEDULED if row.job.available_at > self.now else State.READY
        return [Cancelled(job_id, row.state)]

    def classify(self, job_id: str, reason: QuarantineReason) -> None:
        """Say what a person thinks that a quarantined job is."""
        row = self._apart(job_id)
        _allow(QuarantineReason.UNCERTAIN not in {row.reason, reason})
        row.classified = reason

    def discard(self, job_id: str, *, free: bool) -> list[Cancelled]:
        """Give up a quarantined job."""
        row = self.rows[job_id]
        if row.state is not State.QUARANTINED:
            return []
        _allow(row.reason is not QuarantineReason.UNCERTAIN)
        if free and row.policy.tier is Tier.HIGH:
            raise NeedsAction("the model says so")
        self._move(row, State.DISCARDED)
        row.operation = OperationState.FREED if free else row.operation
        return [Cancelled(job_id, row.state)]

    def resolve(self, job_id: str, *, happened: bool) -> Cancelled:
        """Say whether the effect of an uncertain job happened."""
        row = self._apart(job_id)
        _allow(row.reason is QuarantineReason.UNCERTAIN)
        self._move(row, State.COMPLETED if happened else State.DISCARDED)
        if not happened:
            row.operation = OperationState.FREED
        self._free(row)
        return Cancelled(job_id, row.state)

    def replay(self, job_id: str, entry: State) -> Cancelled:
        """Bring a quarantined job back with a new budget."""
        row = self._apart(job_id)
        seen_as = row.classified or row.reason
        _allow(row.reason is not QuarantineReason.UNCERTAIN and seen_as != QuarantineReason.SUSPICIOUS)
        _allow((self._owner(row) or row) is row, self.mode(row.policy) is not ControlMode.HALT)
        state = self._entry(entry, self.mode(row.policy), row.job)
        _allow(state is not State.QUARANTINED)
        row.job = replace(row.job, generation=row.job.generation + 1)
        row.state, row.reason, row.classified, row.operation = state, None, "", OperationState.RESERVED
        row.attempts = row.crashes = row.handbacks = row.snoozes = 0
        row.due_at = max(row.job.available_at, self.now)
        return Cancelled(job_id, state)

    def _apart(self, job_id: str) -> Row:
        row = self.rows[job_id]
        _allow(row.state is State.QUARANTINED)
        return row

    # --- moving, waiting and waking ---------------------------------------------------------------------------------

    def _move(self, row: Row, state: State, reason: QuarantineReason | None = None) -> None:
        was_running, is_uncertain = row.state is State.RUNNING, reason is QuarantineReason.UNCERTAIN
        if row.state is State.READY:
            self._give_baton(row, taken=())
        row.state, row.reason, row.waits_for, row.cancel_asked = state, reason, "", False
        row.operation = operation_after(state, started=row.starts > 0, reason=reason)
        if state in TERMINAL:
            self._keep(row)
        if was_running and is_uncertain and row.policy.closes:
            self.closed |= set(row.job.refs.resources)
        elif was_running:
            self._free(row)

    def _free(self, row: Row) -> None:
        for key in [key for key, holder in self.holders.items() if holder == row.job.id]:
            del self.holders[key]
            self.closed.discard(key)
            self.let_go.add(key)

    def sweep(self) -> None:
        """Note that every key for which a job waits wants somebody awake."""
        self.let_go |= {row.waits_for for row in self.rows.values() if row.state is State.BLOCKED}

    def wake(self, seen: Mapping[str, Seen]) -> None:
        """Follow which waiters were woken: the first in line of a free key, and somebody where a key was let go."""
        for key in {row.waits_for for row in self.rows.values() if row.state is State.BLOCKED}:
            line = [row for row in self._startable(State.BLOCKED) if row.waits_for == key]
            woken = [row for row in line if seen[row.job.id].state is State.READY]
            # A claim may have given the key to another one after the waking, and parked others on it.
            has_claimed = self.fence > self.fence_before
            is_taken_now = self.fences.get(key, 0) > self.fence_before
            _agree(not woken or key not in self.holders or is_taken_now, f"woken for {key}, which is held")
            _agree(has_claimed or woken == line[: len(woken)], f"the first in line for {key} still sleeps")
            for row in woken:
                row.state, row.woken_at = State.READY, self.now
            fresh = self.now - FRESH_SECONDS * SECOND
            awake = [r for r in self._startable(State.READY) if r.waits_for == key and r.woken_at > fresh]
            needs = key in self.let_go and key not in self.holders and len(line) > len(woken)
            _agree(bool(awake) or not needs, f"{key} was let go, somebody waits for it and all sleep")
        self.let_go.clear()
        self.fence_before = self.fence

    def _startable(self, *states: State) -> list[Row]:
        """Return the jobs in these states whose switches let them start, in order."""
        rows = [row for row in self.rows.values() if row.state in states]
        return sorted((r for r in rows if self.mode(r.policy) is not ControlMode.HALT), key=lambda row: row.place)

    def _is_late(self, row: Row) -> bool:
        return 0 < row.job.expires_at < self.now

    def _in(self, seconds: float) -> Instant:
        return self.now + int(seconds * SECOND)


def _agree(holds: bool, complaint: str) -> None:  # noqa: FBT001 - an assertion with a name
    if not holds:
        raise Disagreement(complaint)


def _allow(*conditions: bool) -> None:
    if not all(conditions):
        raise PolicyError("model", "the model says so")
