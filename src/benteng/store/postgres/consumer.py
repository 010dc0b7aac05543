"""The consumer's verbs: one worker of one pool claims, extends and settles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import msgspec

from benteng.decide import Disposition
from benteng.errors import BentengError, PolicyError, StoreUnavailable
from benteng.job import Grant
from benteng.lifecycle import QuarantineReason, State
from benteng.store.postgres import rows, wire
from benteng.store.postgres.connection import Call, Ledger, Place, Row
from benteng.store.postgres.faults import LostAnswerError
from benteng.store.postgres.producer import bounded, within_batch
from benteng.store.postgres.rows import UndecodableError
from benteng.store.postgres.session import Session
from benteng.store.postgres.wire import BOOL, ENTRANCE, INT8, SETTLEMENT, TEXT, Param
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

PROGRESS_BYTES_MAX = 4096
REASON_BYTES_MAX = 512
_STARTED = rows.Started._make


class PostgresConsumer(Ledger):
    """See store.contract.Consumer."""

    facet = Facet.CONSUMER
    waits = True
    overlaps = True

    def __init__(self, place: Place, pool: str) -> None:
        super().__init__(place, pool)
        self._worker = f"pid:{os.getpid()}"

    @property
    def hints(self) -> Session | None:
        """See Consumer.hints. None behind a transaction pooler: a session there is nobody's own."""
        return self.listening

    def _open(self) -> Session:
        session = super()._open()
        session.listen(self.pool)
        return session

    def register(self, facts: WorkerFacts, refusal: WorkerRefusal | None = None) -> Registration:
        """See Consumer.register."""
        if facts.pool != self.pool:
            raise PolicyError(
                "S-pool", "the worker is of another pool than the one that was opened", fix="open its pool"
            )
        self._worker = bounded(facts.worker, 256)
        types = msgspec.json.encode(dict(facts.types), order="sorted").decode()
        texts = (self._worker, facts.pool, facts.host, facts.boot_id)
        refused = (
            ("", "") if refusal is None else (bounded(refusal.rule, 256), bounded(refusal.reason, REASON_BYTES_MAX))
        )
        more = (facts.version, types, facts.isolation, *refused)
        found = self.call("register", *map(TEXT, texts), INT8(facts.pid), *map(TEXT, more), repeatable=refusal is None)
        self._make_ready()
        return Registration({row["name"]: row["sha256"] for row in found if row["name"]}, found[0]["now"])

    def _make_ready(self) -> None:
        """Have the server plan what settlements need, while none is waited for: it settles nothing."""
        self.begin(Call("settle", (*self._ended(()), BOOL(False), *wire.used(()), *wire.NOT_PLAIN), make=tuple))

    def claim(self, n: int, accepts: Sequence[str]) -> list[Grant]:
        """See Consumer.claim. Never repeated: leases of a claim whose answer was lost simply end."""
        return list(self.turn((), n, accepts).grants)

    def extend(self, leases: Sequence[LeaseProof], progress: Sequence[str] = ()) -> list[Extension]:
        """See Consumer.extend."""
        within_batch(leases)
        if progress and len(progress) != len(leases):
            raise ValueError("progress is empty, or one text for each lease")
        if not leases:
            return []
        said = progress or [""] * len(leases)
        found = self.call(
            "extend",
            wire.ids(proof.job_id for proof in leases),
            INT8.many(proof.fence for proof in leases),
            TEXT.many(proof.token for proof in leases),
            TEXT.many(bounded(text, PROGRESS_BYTES_MAX) for text in said),
            repeatable=True,
        )
        return [_extension(proof, row) for proof, row in zip(leases, found, strict=True)]

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """See Consumer.settle. Repeated after a lost answer: fence and token tell what the first try has done."""
        return list(self.turn(settlements, 0, ()).settled)

    def turn(self, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]) -> Turn:
        """See Consumer.turn. One transaction: its claim leaves alone what it would have to wait for."""
        asked = self.turning(settlements, n, accepts)
        asked.begin()
        return asked.take()

    def turning(self, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]) -> PostgresTurning:
        """See StepwiseConsumer.turning."""
        within_batch(settlements)
        claim = (INT8(n), TEXT.many(accepts), TEXT(self._worker)) if n > 0 and accepts else ()
        if not settlements:
            return PostgresTurning(self, Call("claim", claim, make=_STARTED, early=True) if claim else None, None)
        is_plain = wire.is_plain(settlements)
        ended = self._ended(() if is_plain else settlements)
        used = wire.used(settlements) + (wire.plain(settlements) if is_plain else wire.NOT_PLAIN)
        again = Call("settle", (*ended, BOOL(True), *used), make=tuple)
        if not claim:
            return PostgresTurning(self, Call("settle", (*ended, BOOL(False), *used), make=tuple), again)
        return PostgresTurning(self, Call("turn", (*ended, *claim, *used), make=_STARTED, early=True), again)

    def _ended(self, settlements: Sequence[Settlement]) -> tuple[Param, Param]:
        heirs = (
            wire.entrance(job, State.READY, parent=each.proof.job_id) for each in settlements for job in each.successors
        )
        ended = self._types.many(SETTLEMENT, map(wire.settlement, settlements))
        return ended, self._types.many(ENTRANCE, heirs)

    def set_apart(self, row: rows.Started, error: UndecodableError) -> None:
        """Quarantine a job that cannot be read, its attempt given back."""
        reason = QuarantineReason.UNDECODABLE
        self.settle(
            [Settlement(rows.proof(row), Disposition.QUARANTINE, reason=reason, error=str(error), started=False)]
        )


class PostgresTurning:
    """See store.contract.Turning. Nothing to settle and nothing to claim is no call.

    again  what is asked when the answer is lost, or was an error: how the settlements stand. Leases of what it may have
           started simply end
    """

    _rows: list[Any] | None = None
    _foreseen: Turn | None = None

    def __init__(self, ledger: PostgresConsumer, call: Call | None, again: Call | None) -> None:
        self._ledger = ledger
        self._call = call
        self._again = again
        self._unreadable: list[tuple[rows.Started, UndecodableError]] = []

    def begin(self) -> None:
        """See Turning.begin."""
        if self._call is not None:
            self._ledger.begin(self._call)

    def fileno(self) -> int:
        """See Turning.fileno."""
        session = self._session
        return -1 if session is None or session.closed else session.fileno()

    def has_come(self) -> bool:
        """See Turning.has_come."""
        session = self._session
        return session is None or session.has_come()

    def foresee(self) -> Turn | None:
        """See Turning.foresee."""
        if self._call is not None:
            self._rows = self._ledger.foresee(self._call)
            self._foreseen = None if self._rows is None else self._read(self._call, self._rows)
        return self._foreseen

    def take(self) -> Turn:
        """See Turning.take. Jobs that cannot be read are set apart alone."""
        turn = self._taken()
        unreadable, self._unreadable = self._unreadable, []
        for row, error in unreadable:
            self._ledger.set_apart(row, error)
        return turn

    def _taken(self) -> Turn:
        if self._call is None:
            return Turn((), ())
        try:
            found = self._ledger.end(self._call)
            if self._foreseen is not None and found is self._rows:
                return self._foreseen
            return self._read(self._call, found)
        except BentengError as error:
            if self._again is None or not self._asks_again(error):
                raise
            return self._read(self._again, self._ledger.ask(self._again))

    def _asks_again(self, error: BentengError) -> bool:
        """A lost answer tells nothing. By an error of a turn nothing has happened, and its claim may be to blame."""
        if isinstance(error, StoreUnavailable):
            return isinstance(error, LostAnswerError)
        return self._call is not None and self._call.verb == "turn"

    @property
    def _session(self) -> Session | None:
        return None if self._call is None else self._ledger.awaited(self._call)

    def _read(self, call: Call, found: list[Any]) -> Turn:
        """Return the rows of the verb that was called as a turn."""
        match call.verb:
            case "settle":
                return Turn(tuple(starmap(rows.settled, found)), ())
            case _:
                settled = [each for row in found if row.settled_ids for each in rows.all_settled(row)]
                return Turn(tuple(settled), self._granted(found))

    def _granted(self, found: Sequence[rows.Started]) -> tuple[Grant, ...]:
        shared = rows.Shared(row.facts for row in found if row.facts)
        self._unreadable = []
        grants = [self._grant(row, shared) for row in found if row.job_id]
        return tuple([grant for grant in grants if grant is not None])

    def _grant(self, row: rows.Started, shared: rows.Shared) -> Grant | None:
        try:
            return rows.grant(row, shared)
        except UndecodableError as error:
            self._unreadable.append((row, error))
            return None


def _extension(proof: LeaseProof, row: Row) -> Extension:
    if row["lost"]:
        return Extension(proof.job_id, lost=True)
    return Extension(proof.job_id, lost=False, cancel=row["cancel"], seconds=row["seconds"])
