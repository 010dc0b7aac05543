"""The producer's verbs: ask for evidence, admit, look at and cancel jobs of the own origin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from benteng.evidence import Evidence
from benteng.redact import clean_line
from benteng.store.contract import BATCH_MAX
from benteng.store.durability import Durability
from benteng.store.postgres import rows, wire
from benteng.store.postgres.connection import Call, Ledger
from benteng.store.postgres.wire import ENTRANCE, QUESTION, REFUSAL, TEXT
from benteng.store.records import Admission, Cancelled, Disposal, Facet, Question, Receipt, Refusal, Status


class PostgresProducer(Ledger):
    """See store.contract.Producer."""

    facet = Facet.PRODUCER

    def evidence(self, questions: Sequence[Question]) -> list[Evidence]:
        """See Producer.evidence."""
        within_batch(questions)
        asked = self._types.many(QUESTION, map(wire.question, questions))
        return [rows.evidence(row) for row in self.call("evidence", asked, repeatable=True)]

    def admit(self, admissions: Sequence[Admission], refusals: Sequence[Refusal] = ()) -> list[Receipt]:
        """See Producer.admit."""
        if not (admissions or refusals):
            return []
        asked = self.admitting(admissions, refusals)
        asked.begin()
        asked.wait()
        return asked.receipts()

    def admitting(self, admissions: Sequence[Admission], refusals: Sequence[Refusal] = ()) -> PostgresAdmitting:
        """See StepwiseProducer.admitting. Repeated after a lost answer: what is there then, the first try let in."""
        within_batch(admissions)
        within_batch(refusals)
        jobs = self._types.many(ENTRANCE, map(wire.admission, admissions))
        refused = self._types.many(REFUSAL, map(wire.refusal, refusals))
        wanted = max((each.durability for each in admissions), default=Durability.D0)
        call = Call("admit", (jobs, refused), bool(admissions or refusals), durability=wanted, make=tuple)
        return PostgresAdmitting(self, admissions, call)

    def status(self, job_ids: Sequence[str]) -> list[Status]:
        """See Producer.status."""
        within_batch(job_ids)
        asked = wire.ids(dict.fromkeys(job_ids))
        return [rows.status(row) for row in self.call("status", asked, repeatable=True)]

    def cancel(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """See Producer.cancel."""
        within_batch(job_ids)
        return [rows.cancelled(row) for row in self.call("cancel", wire.ids(job_ids), TEXT(bounded(reason)))]


class PostgresAdmitting:
    """See store.contract.Admitting."""

    def __init__(self, ledger: Ledger, admissions: Sequence[Admission], call: Call) -> None:
        self._ledger = ledger
        self._admissions = admissions
        self._call = call
        self._rows: list[tuple[Any, ...]] = []

    def begin(self) -> None:
        """See Admitting.begin."""
        self._ledger.begin(self._call)

    def wait(self) -> None:
        """See Admitting.wait."""
        self._rows = self._ledger.end(self._call)

    def receipts(self) -> list[Receipt]:
        """See Admitting.receipts."""
        return [_own(rows.receipt(*row[1:]), given) for row, given in zip(self._rows, self._admissions, strict=True)]


def within_batch(items: Sequence[object]) -> None:
    """Raise ValueError for a batch that is larger than the contract allows."""
    if len(items) > BATCH_MAX:
        raise ValueError(f"at most {BATCH_MAX} in one call")


def bounded(text: str, bytes_max: int = 512) -> str:
    """Return a person's or a handler's text as one clean line."""
    return clean_line(text, bytes_max=bytes_max)


def _own(receipt: Receipt, given: Admission) -> Receipt:
    """Read a duplicate of itself as what it is: the answer to the first try of this very call was lost."""
    if receipt.disposal is Disposal.DUPLICATE and receipt.job_id == given.job.id:
        return replace(receipt, disposal=Disposal.ADMITTED, result=None)
    return receipt
