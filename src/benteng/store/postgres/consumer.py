"""The consumer's verbs: one worker of one pool claims, extends and settles."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from benteng.decide import Disposition
from benteng.errors import PolicyError
from benteng.job import Grant
from benteng.lifecycle import QuarantineReason, State
from benteng.store.postgres import rows, wire
from benteng.store.postgres.connection import Ledger, Place, Row
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
_FIRST, _AGAIN = map(BOOL, (False, True))


class PostgresConsumer(Ledger):
    """See store.contract.Consumer."""

    facet = Facet.CONSUMER
    waits = True

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
        return Registration({row["name"]: row["sha256"] for row in found if row["name"]}, found[0]["now"])

    def claim(self, n: int, accepts: Sequence[str]) -> list[Grant]:
        """See Consumer.claim. Never repeated: leases of a claim whose answer was lost simply end."""
        if n <= 0 or not accepts:
            return []
        found = self.call("claim", INT8(n), TEXT.many(accepts), TEXT(self._worker))
        return [grant for row in found if (grant := self._grant(row)) is not None]

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
        within_batch(settlements)
        if not settlements:
            return []
        asked, used = self._ended(settlements), wire.used(settlements)
        try:
            found = self.call("settle", *asked, BOOL(False), *used)
        except LostAnswerError:
            found = self.call("settle", *asked, BOOL(True), *used)
        return [rows.settled(row) for row in found]

    def turn(self, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]) -> Turn:
        """See Consumer.turn. One transaction: its claim leaves alone what it would have to wait for."""
        within_batch(settlements)
        if not settlements or n <= 0 or not accepts:
            return Turn(tuple(self.settle(settlements)), tuple(self.claim(n, accepts)))
        used = wire.used(settlements)
        asked = (*self._ended(settlements), INT8(n), TEXT.many(accepts), TEXT(self._worker), *used)
        try:
            found = self.call("turn", *asked)
        except LostAnswerError:
            # What it settled is found by asking again; the leases of what it may have claimed simply end.
            again = self.call("settle", *self._ended(settlements), BOOL(True), *used)
            return Turn(tuple(map(rows.settled, again)), ())
        settled = tuple(rows.settled(rows.of_turn(row)) for row in found if row["settled_id"])
        grants = [self._grant(row) for row in found if not row["settled_id"]]
        return Turn(settled, tuple(grant for grant in grants if grant is not None))

    def _ended(self, settlements: Sequence[Settlement]) -> tuple[Param, Param]:
        heirs = (
            wire.entrance(job, State.READY, parent=each.proof.job_id) for each in settlements for job in each.successors
        )
        ended = self._types.many(SETTLEMENT, map(wire.settlement, settlements))
        return ended, self._types.many(ENTRANCE, heirs)

    def _grant(self, row: Row) -> Grant | None:
        """Return the grant; one that cannot be read is set apart alone, its attempt given back."""
        try:
            return rows.grant(row)
        except UndecodableError as error:
            lease = rows.lease(row)
            proof = LeaseProof(lease.job_id, lease.fence, lease.token)
            reason = QuarantineReason.UNDECODABLE
            self.settle([Settlement(proof, Disposition.QUARANTINE, reason=reason, error=str(error), started=False)])
            return None


def _extension(proof: LeaseProof, row: Row) -> Extension:
    if row["lost"]:
        return Extension(proof.job_id, lost=True)
    return Extension(proof.job_id, lost=False, cancel=row["cancel"], seconds=row["seconds"])
