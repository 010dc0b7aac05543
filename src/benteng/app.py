"""The object that users make: it defines job types, and enqueues through the one gate.

Making it reads nothing and opens nothing: configuration, keys and store are reached when the first job is enqueued.
In a zygote or a cell it stays inert (inert.py). `enqueue` may be called from several threads.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from benteng import inert
from benteng.errors import BentengError, Refused
from benteng.lifecycle import State
from benteng.policy import POOL_DEFAULT, PRIORITY_DEFAULT, Effect, Tier
from benteng.raised import ErrorClass
from benteng.receipt import Receipt
from benteng.task import UNDECLARED, Handler, Options, Registry, register
from benteng.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from benteng.aio import Aio
    from benteng.gate import Gate, JobSpec
    from benteng.lobby import Lobby
    from benteng.store.records import Status

F = TypeVar("F", bound=Handler)
C = TypeVar("C", bound=Callable[..., Verdict])


class Benteng:
    """One application: its job types, and its way into the queue.

    dsn     address of the store; default: from the configuration, else a SQLite file in the user's state directory
    config  directory from which `benteng.toml` is looked for; default: the working directory
    """

    def __init__(self, dsn: str = "", *, config: Path | None = None) -> None:
        self.registry = Registry()
        self._dsn = dsn
        self._config = config
        self._lobby: Lobby | None = None
        self._lock = threading.Lock()
        _MADE.add(self)

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

        spec = JobSpec(
            job_type, {} if payload is None else payload, actor, request_id, priority, delay_seconds, run_at, durability
        )
        return Receipt.of(self.lobby.enqueue(spec), self)

    def enqueue_many(self, specs: Sequence[JobSpec]) -> list[Receipt | Refused]:
        """Let several jobs in, 250 by each commit; one answer for each, in order.

        A refused one does not stop the others. Raises what `enqueue` raises besides Refused: PolicyError and
        KeyringError before anything is stored; StoreUnavailable when nothing of its commit was, while those of the
        commits before it are in (a note of the error says how many).
        """
        return [said if isinstance(said, Refused) else Receipt.of(said, self) for said in self.gate.enqueue_many(specs)]

    @property
    def aio(self) -> Aio:
        """The same verbs for coroutines: `await app.aio.enqueue(...)`."""
        from benteng.aio import Aio

        return Aio(self)

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
        return self.lobby.gate

    @property
    def lobby(self) -> Lobby:
        """Where callers wait for the gate; opened when it is first needed, and again in a forked child."""
        lobby = self._lobby
        return lobby if lobby is not None else self._open()

    @property
    def is_open(self) -> bool:
        """Whether the gate is open already."""
        return self._lobby is not None

    def close(self) -> None:
        """Let those who wait be answered and give back the store's connection. The next use opens it again."""
        with self._lock:
            lobby, self._lobby = self._lobby, None
        if lobby is not None:
            lobby.close()

    def abandon(self) -> None:
        """Leave the open gate to the parent: in a forked child, whose other threads are gone with their locks."""
        self._lock = threading.Lock()
        self._lobby = None

    def _open(self) -> Lobby:
        if inert.is_inert():
            msg = "a handler cannot enqueue: it has no credential. Use ctx.then(...) for a successor"
            raise BentengError(msg)
        with self._lock:
            if self._lobby is None:
                from benteng.lobby import Lobby
                from benteng.opening import open_gate

                self._lobby = Lobby(open_gate(self.registry, self._dsn, self._config, say=_to_stderr))
            return self._lobby


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - dev mode says aloud what it does by itself


def _abandon_all() -> None:
    for app in list(_MADE):
        app.abandon()


_MADE: weakref.WeakSet[Benteng] = weakref.WeakSet()
os.register_at_fork(after_in_child=_abandon_all)
