"""The consumer's verbs: one worker of one pool claims, extends and settles."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

import msgspec

from benteng.audit import Event
from benteng.errors import BentengError, PolicyError
from benteng.job import Grant
from benteng.store.contract import BATCH_MAX
from benteng.store.records import (
    Extension,
    Facet,
    LeaseProof,
    Registration,
    Settled,
    Settlement,
    Turn,
    WorkerFacts,
    WorkerRefusal,
)
from benteng.store.sqlite.claim import Claimant, claim
from benteng.store.sqlite.connection import Place
from benteng.store.sqlite.hints import Ear
from benteng.store.sqlite.policies import policy_of
from benteng.store.sqlite.producer import within_batch
from benteng.store.sqlite.settle import is_proof, settle
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Ledger, Tx
from benteng.store.sqlite.text import PROGRESS_BYTES_MAX, bounded

_JOB_TYPE = statements("job_type")
_REGISTER = statements("register")
_EXTEND = statements("extend")


class SqliteConsumer(Ledger):
    """See store.contract.Consumer."""

    facet = Facet.CONSUMER
    overlaps = False

    def __init__(self, place: Place, pool: str) -> None:
        super().__init__(place)
        self.pool = pool
        self._worker = f"pid:{os.getpid()}"
        self._ear: Ear | None = None
        self._deaf = True

    @property
    def hints(self) -> Ear | None:
        """See Consumer.hints. Listens from the first time on that somebody asks."""
        if self._deaf:
            self._listen()
        return self._ear

    def close(self) -> None:
        """Close connection and ear. Safe to call twice, and in a forked child."""
        if self._ear is not None and self.is_own:
            self._ear.close()
        self._ear, self._deaf = None, False
        super().close()

    def _listen(self) -> None:
        self._deaf = False
        try:
            self._ear = Ear(self.place.path, self.pool)
        except OSError:
            self._ear = None  # polling finds everything

    def register(self, facts: WorkerFacts, refusal: WorkerRefusal | None = None) -> Registration:
        """See Consumer.register."""
        if facts.pool != self.pool:
            raise PolicyError(
                "S-pool", "the worker is of another pool than the one that was opened", fix="open its pool"
            )
        if self._ear is not None and not self._ear.is_there():
            self._ear.close()
            self._listen()
        with self.writing() as tx:
            self._worker = bounded(facts.worker)
            self._record(tx, facts, refusal)
            digests = tx.all(_JOB_TYPE["digests"], {"pool": self.pool})
            return Registration({row["name"]: row["sha256"] for row in digests}, tx.now)

    def _record(self, tx: Tx, facts: WorkerFacts, refusal: WorkerRefusal | None) -> None:
        event, why = Event.REGISTERED, WorkerRefusal("", "")
        if refusal is not None:
            event, why = Event.WORKER_REFUSED, refusal
        elif not self._is_new(tx, facts):
            return
        detail = f"pool {self.pool}, version {facts.version}"
        said = {"rule": why.rule, "reason": why.reason, "detail": detail, "summary": facts.isolation}
        tx.say(event, worker=self._worker, **said)

    def _is_new(self, tx: Tx, facts: WorkerFacts) -> bool:
        seen = tx.changed(_REGISTER["seen"], _facts(facts) | {"now": tx.now})
        return any(row["is_new"] for row in seen)

    def claim(self, n: int, accepts: Sequence[str]) -> list[Grant]:
        """See Consumer.claim."""
        if n <= 0 or not accepts:
            return []
        with self.writing() as tx:
            return self._claim(tx, n, accepts)

    def extend(self, leases: Sequence[LeaseProof], progress: Sequence[str] = ()) -> list[Extension]:
        """See Consumer.extend."""
        within_batch(leases)
        if progress and len(progress) != len(leases):
            raise ValueError("progress is empty, or one text for each lease")
        if not leases:
            return []
        with self.writing() as tx:
            said = zip_longest(leases, progress, fillvalue="")
            return [self._extend(tx, proof, text) for proof, text in said if isinstance(proof, LeaseProof)]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """See Consumer.settle."""
        within_batch(settlements)
        if not settlements:
            return []
        with self.writing() as tx:
            return settle(tx, settlements, pool=self.pool)

    def turn(self, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]) -> Turn:
        """See Consumer.turn. One transaction: there is one writer at a time, so resources cannot deadlock."""
        within_batch(settlements)
        if not settlements:
            return Turn((), tuple(self.claim(n, accepts)))
        with self.writing() as tx:
            settled = settle(tx, settlements, pool=self.pool)
            if n <= 0 or not accepts:
                return Turn(tuple(settled), ())
            return Turn(tuple(settled), tuple(self._claim_apart(tx, n, accepts)))

    def turning(self, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]) -> SqliteTurning:
        """See StepwiseConsumer.turning."""
        return SqliteTurning(self, settlements, n, accepts)

    def _claim(self, tx: Tx, n: int, accepts: Sequence[str]) -> list[Grant]:
        claimant = Claimant(self.pool, self._worker, tuple(bounded(name) for name in accepts))
        return claim(tx, min(n, BATCH_MAX), claimant)

    def _claim_apart(self, tx: Tx, n: int, accepts: Sequence[str]) -> list[Grant]:
        """Claim without putting the settlements before it at risk: whatever fails here is undone alone."""
        try:
            with tx.savepoint():
                return self._claim(tx, n, accepts)
        except (sqlite3.Error, BentengError):
            if not tx.alive:
                raise
            return []  # the next claim meets the same error, with nothing at stake, and raises it

    def _extend(self, tx: Tx, proof: LeaseProof, progress: str) -> Extension:
        asked = {"id": proof.job_id, "fence": proof.fence, "token": proof.token, "pool": self.pool, "now": tx.now}
        row = tx.one(_EXTEND["proven"], asked) if is_proof(proof) else None
        if row is None:
            return Extension(proof.job_id, lost=True)
        seconds = policy_of(tx, row["type"]).limits.lease_seconds
        tx.run(
            _EXTEND["renew"],
            {
                "seq": row["seq"],
                "now": tx.now,
                "lease_until": tx.after(seconds),
                "progress": bounded(progress, PROGRESS_BYTES_MAX),
            },
        )
        return Extension(proof.job_id, lost=False, cancel=bool(row["cancel_asked"]), seconds=seconds)


class SqliteTurning:
    """See store.contract.Turning. Nobody else would do the work: it is done when its answer is taken."""

    def __init__(
        self, consumer: SqliteConsumer, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]
    ) -> None:
        self._work = partial(consumer.turn, settlements, n, accepts)

    def begin(self) -> None:
        """See Turning.begin."""

    def fileno(self) -> int:
        """See Turning.fileno."""
        return -1

    def has_come(self) -> bool:
        """See Turning.has_come."""
        return True

    def foresee(self) -> None:
        """See Turning.foresee."""

    def take(self) -> Turn:
        """See Turning.take."""
        return self._work()


def _facts(facts: WorkerFacts) -> dict[str, object]:
    return {
        "worker": bounded(facts.worker),
        "pool": facts.pool,
        "host": bounded(facts.host),
        "boot_id": bounded(facts.boot_id),
        "pid": facts.pid,
        "version": bounded(facts.version),
        "types": msgspec.json.encode(dict(facts.types), order="sorted").decode(),
    }
