"""The producer's verbs: ask for evidence, admit, look at and cancel jobs of the own origin."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benteng.evidence import Evidence
from benteng.lifecycle import QuarantineReason, State
from benteng.store.contract import BATCH_MAX
from benteng.store.durability import Durability, refuse_weaker
from benteng.store.records import Admission, Cancelled, Facet, Question, Receipt, Refusal, Status
from benteng.store.sqlite import admission
from benteng.store.sqlite.audit import digest
from benteng.store.sqlite.cancel import cancel
from benteng.store.sqlite.entrance import NAME_BYTES_MAX, Entrance
from benteng.store.sqlite.evidence import of_questions
from benteng.store.sqlite.health import durability
from benteng.store.sqlite.refusals import record
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Ledger, Row, Tx
from benteng.store.sqlite.text import REASON_BYTES_MAX, bounded

_STATUS = statements("status")


class SqliteProducer(Ledger):
    """See store.contract.Producer."""

    facet = Facet.PRODUCER

    def evidence(self, questions: Sequence[Question]) -> list[Evidence]:
        """See Producer.evidence."""
        within_batch(questions)
        with self.reading() as tx:
            return of_questions(tx, questions, origin=self.origin)

    def admit(self, admissions: Sequence[Admission], refusals: Sequence[Refusal] = ()) -> list[Receipt]:
        """See Producer.admit."""
        within_batch(admissions)
        within_batch(refusals)
        if not admissions and not refusals:
            return []
        with self.writing() as tx:
            _refuse_weaker(tx, admissions)
            for refusal in refusals:
                _record(tx, refusal)
            return admission.enter(
                tx, [Entrance(each.job, tx.origin, each.entry, each.rule, each.reason) for each in admissions]
            )

    def admitting(self, admissions: Sequence[Admission], refusals: Sequence[Refusal] = ()) -> SqliteAdmitting:
        """See StepwiseProducer.admitting."""
        return SqliteAdmitting(self, admissions, refusals)

    def status(self, job_ids: Sequence[str]) -> list[Status]:
        """See Producer.status."""
        within_batch(job_ids)
        with self.reading() as tx:
            asked = ({"id": bounded(job_id), "origin": self.origin} for job_id in dict.fromkeys(job_ids))
            rows = [tx.one(_STATUS["of_origin"], parameters) for parameters in asked]
            return [_status(row) for row in rows if row is not None and row["state"]]

    def cancel(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """See Producer.cancel."""
        within_batch(job_ids)
        with self.writing() as tx:
            return cancel(tx, job_ids, reason)


class SqliteAdmitting:
    """See store.contract.Admitting. Nobody else would do the work: it is done when it is waited for."""

    def __init__(self, producer: SqliteProducer, admissions: Sequence[Admission], refusals: Sequence[Refusal]) -> None:
        self._work = partial(producer.admit, admissions, refusals)
        self._receipts: list[Receipt] = []

    def begin(self) -> None:
        """See Admitting.begin."""

    def wait(self) -> None:
        """See Admitting.wait."""
        self._receipts = self._work()

    def receipts(self) -> list[Receipt]:
        """See Admitting.receipts."""
        return self._receipts


def within_batch(items: Sequence[object]) -> None:
    """Raise ValueError for a batch that is larger than the contract allows."""
    if len(items) > BATCH_MAX:
        raise ValueError(f"at most {BATCH_MAX} in one call")


def _refuse_weaker(tx: Tx, admissions: Sequence[Admission]) -> None:
    wanted = max((each.durability for each in admissions), default=Durability.D0)
    if wanted is not Durability.D0:
        refuse_weaker(durability(tx), wanted)


def _record(tx: Tx, refusal: Refusal) -> None:
    record(
        tx,
        type_name=bounded(refusal.type, NAME_BYTES_MAX),
        origin=tx.origin,
        rule=refusal.rule,
        reason=bounded(refusal.reason, REASON_BYTES_MAX),
        actor=refusal.actor,
        request_id=refusal.request_id,
        payload=digest(tx.audit_key, bounded(refusal.payload_sha256)) if refusal.payload_sha256 else "",
        detail="suspicious" if refusal.suspicious else "",
    )


def _status(row: Row) -> Status:
    return Status(
        job_id=row["job_id"],
        state=State(row["state"]),
        reason=QuarantineReason(row["reason"]) if row["reason"] else None,
        error=row["error"],
        result=row["result"],
        available_at=row["due_at"],
        finished_at=row["finished_at"],
    )
