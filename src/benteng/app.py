"""The object that users make: it defines job types, and enqueues through the one gate.

Making it reads nothing and opens nothing: configuration, keys and store are reached when the first job is enqueued.
In a zygote or a cell it stays inert (inert.py). `enqueue` may be called from several threads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from benteng import inert
from benteng.errors import BentengError, Refused
from benteng.lifecycle import TERMINAL, State
from benteng.policy import POOL_DEFAULT, PRIORITY_DEFAULT, Effect, Tier
from benteng.raised import ErrorClass
from benteng.task import UNDECLARED, Handler, Options, Registry, register
from benteng.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from benteng.gate import Gate, JobSpec
    from benteng.store.records import Receipt as Admitted
    from benteng.store.records import Status

F = TypeVar("F", bound=Handler)
C = TypeVar("C", bound=Callable[..., Verdict])
POLL_SECONDS_MAX = 0.5


class NotCompleted(BentengError):  # noqa: N818 - named by what happened, like the others
    """The job did not complete: it is cancelled, discarded or in quarantine; or the wait was not long enough."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What enqueue answers: which job stands for the operation, and where it was then.

    duplicate  the operation existed already: this is the first job's receipt
    """

    job_id: str
    state: State
    duplicate: bool
    _app: Benteng

    def status(self) -> Status:
        """Return how the job is doing now. Raises NotCompleted when the store no longer knows it."""
        found = self._app.status([self.job_id])
        if not found:
            msg = f"job {self.job_id} is not known to the store"
            raise NotCompleted(msg)
        return found[0]

    def wait(self, timeout_seconds: float = 60.0) -> State:
        """Wait until the job has ended or is in quarantine; return its state. Raises NotCompleted at the timeout."""
        end = time.monotonic() + timeout_seconds
        pause = 0.01
        while True:
            state = self.status().state
            if state in TERMINAL or state is State.QUARANTINED:
                return state
            if time.monotonic() >= end:
                msg = f"job {self.job_id} is still {state} after {timeout_seconds} s"
                raise NotCompleted(msg)
            time.sleep(pause)
            pause = min(pause * 1.5, POLL_SECONDS_MAX)

    def result(self, timeout_seconds: float = 60.0) -> Any:
        """Wait, and return what the handler returned, as JSON values. Raises NotCompleted when it did not complete."""
        state = self.wait(timeout_seconds)
        status = self.status()
        if state is not State.COMPLETED:
            msg = f"job {self.job_id} is {state}: {status.error or status.reason or 'no reason given'}"
            raise NotCompleted(msg)
        return None if status.result is None else msgspec.json.decode(status.result)


class Benteng:
    """One application: its job types, and its way into the queue.

    dsn     address of the store; default: from the configuration, else a SQLite file in the user's state directory
    config  directory from which `benteng.toml` is looked for; default: the working directory
    """

    def __init__(self, dsn: str = "", *, config: Path | None = None) -> None:
        self.registry = Registry()
        self._dsn = dsn
        self._config = config
        self._gate: Gate | None = None
        self._lock = threading.Lock()

    @overload
    def job(self, target: F, /) -> F: ...
    @overload
    def job(
        self,
        target: str | None = None,
        /,
        *,
        tier: Tier = ...,
        effect: Effect = ...,
        pool: str = ...,
        operation: tuple[str, ...] = ...,
        resources: tuple[str, ...] | None = ...,
        successors: tuple[str, ...] = ...,
        secrets: tuple[str, ...] = ...,
        errors: Mapping[str, ErrorClass] = ...,
        signed: bool | None = ...,
        **limits: float | None,
    ) -> Callable[[F], F]: ...
    def job(
        self,
        target: Any = None,
        /,
        *,
        tier: Tier = Tier.LOW,
        effect: Any = UNDECLARED,
        pool: str = POOL_DEFAULT,
        operation: tuple[str, ...] = (),
        resources: Any = UNDECLARED,
        successors: tuple[str, ...] = (),
        secrets: tuple[str, ...] = (),
        errors: Mapping[str, ErrorClass] | None = None,
        signed: bool | None = None,
        **limits: float | None,
    ) -> Any:
        """Make a function a job type: `@app.job`, or `@app.job("name@major", tier=..., ...)`.

        The one parameter annotated with a Contract is the payload; at LOW the parameters may be the contract
        themselves. A parameter `ctx` receives the Context. `limits` are the fields of `policy.Limits`. Raises
        DefinitionError naming rule and fix for a contract, field path or option that the tier does not allow.
        """
        options = Options(tier, effect, pool, operation, resources, successors, secrets, errors or {}, signed, limits)
        return register(self.registry, target, options)

    def evidence(self, name: str) -> Callable[[F], F]:
        """Make a function an evidence loader (I/O, time-limited): runs at the gate, and in the cell before a start."""

        def decorate(function: F) -> F:
            self.registry.add_loader(name, function)
            return function

        return decorate

    def check(self, job_type: str | Handler, needs: str | Iterable[str] = ()) -> Callable[[C], C]:
        """Make a pure function a semantic check of a job type: (payload, *facts) -> Verdict."""

        def decorate(function: C) -> C:
            self.registry.add_check(job_type, (needs,) if isinstance(needs, str) else needs, function)
            return function

        return decorate

    def enqueue(
        self,
        job_type: str | Handler,
        payload: object = None,
        *,
        actor: str = "",
        request_id: str = "",
        priority: int = PRIORITY_DEFAULT,
        delay_seconds: float = 0.0,
        run_at: datetime | None = None,
        durability: str = "D0",
    ) -> Receipt:
        """Judge a job and let it in. The same operation again gives the first job's receipt.

        durability  the class that the ledger must have: D0 (any), D1 (a disk), D2 (a synchronous replica too)

        Raises Refused naming rule, field and fix (Conflict: the operation exists with another payload); PolicyError
        when the lock file does not have the type as the code defines it, or the ledger is of a lower class;
        KeyringError when it must be signed and cannot be; StoreUnavailable. Whatever is raised, nothing was stored but
        the record of a refusal.
        """
        from benteng.gate import JobSpec

        spec = JobSpec(job_type, {} if payload is None else payload, actor, request_id, priority, delay_seconds, run_at)
        return self._receipt(self.gate.enqueue(replace(spec, durability=durability)))

    def enqueue_many(self, specs: Sequence[JobSpec]) -> list[Receipt | Refused]:
        """Let several jobs in by one commit; one answer for each, in order. A refused one does not stop the others."""
        return [said if isinstance(said, Refused) else self._receipt(said) for said in self.gate.enqueue_many(specs)]

    def status(self, job_ids: Sequence[str]) -> list[Status]:
        """Return the jobs of this origin among those asked."""
        return self.gate.producer.status(job_ids)

    def cancel(self, job_id: str, reason: str) -> State | None:
        """Cancel a job of this origin and return its state now; None when there was nothing to cancel."""
        done = self.gate.producer.cancel([job_id], reason)
        return done[0].state if done else None

    @property
    def gate(self) -> Gate:
        """The gate, opened when it is first needed."""
        if inert.is_inert():
            msg = "a handler cannot enqueue: it has no credential. Use ctx.then(...) for a successor"
            raise BentengError(msg)
        with self._lock:
            if self._gate is None:
                from benteng.opening import open_gate

                self._gate = open_gate(self.registry, self._dsn, self._config, say=_to_stderr)
            return self._gate

    def close(self) -> None:
        """Give back the store's connection. The next use opens it again."""
        with self._lock:
            if self._gate is not None:
                self._gate.producer.close()
                self._gate = None

    def _receipt(self, admitted: Admitted) -> Receipt:
        return Receipt(admitted.job_id, admitted.state or State.READY, admitted.disposal == "duplicate", self)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - dev mode says aloud what it does by itself
