"""One ledger on the bench: its facets open, its types applied, and short words for what tests do over and over.

Everything goes through the store contract, and every answer is noted in the journal, so that `check_ledger` can compare
what clients were told with what the store holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from benteng.decide import Disposition
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import Grant, Job
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import TypePolicy
from benteng.store.contract import Auditor, Consumer, Keeper, Operator, StepwiseConsumer, StepwiseProducer
from benteng.store.records import (
    Admission,
    AuditRow,
    Disposal,
    JobView,
    LeaseProof,
    Receipt,
    Reclaimed,
    Replay,
    Settled,
    Settlement,
    Staged,
)
from benteng.testing.journal import Journal
from benteng.testing.ledger import ACCEPTS, LOW, OTHER_POOL, POOL, TYPES, Ledger, make_job, type_row

AUDIT_PAGE = 1_000


class Bench:
    """A ledger with its facets. `advance` moves the store's clock; every other word is one verb or one look."""

    def __init__(self, ledger: Ledger, *, types: Sequence[TypePolicy] = TYPES) -> None:
        self.ledger = ledger
        self.clock = ledger.clock
        self.journal = Journal()
        if types:
            self.operator.apply_types([type_row(policy) for policy in types], "the suite's types")

    @cached_property
    def producer(self) -> StepwiseProducer:
        """The producer facet of this bench."""
        return self.ledger.producer()

    @cached_property
    def consumer(self) -> StepwiseConsumer:
        """The consumer facet of the pool `default`."""
        return self.ledger.consumer(POOL)

    @cached_property
    def elsewhere(self) -> StepwiseConsumer:
        """The consumer facet of the pool `other`."""
        return self.ledger.consumer(OTHER_POOL)

    @cached_property
    def keeper(self) -> Keeper:
        """The keeper facet of this bench."""
        return self.ledger.keeper()

    @cached_property
    def operator(self) -> Operator:
        """The operator facet of this bench."""
        return self.ledger.operator()

    @cached_property
    def auditor(self) -> Auditor:
        """The auditor facet of this bench."""
        return self.ledger.auditor()

    def advance(self, seconds: float) -> None:
        """Move the store's clock."""
        self.clock.advance(seconds)

    def job(self, policy: TypePolicy = LOW, **changes: Any) -> Job:
        """Return a job of this producer's origin, not admitted yet: see `make_job`."""
        fields: dict[str, Any] = {"origin": self.producer.origin} | changes
        return make_job(policy, **fields)

    def admit(self, *jobs: Job, entry: State = State.READY) -> list[Receipt]:
        """Admit jobs in one call; held and diverted ones with rule R1."""
        rule = "" if entry is State.READY else "R1"
        admissions = [Admission(job, entry, rule, rule and "a reason") for job in jobs]
        receipts = self.producer.admit(admissions)
        self.journal.receipts(admissions, receipts)
        return receipts

    def admitted(self, policy: TypePolicy = LOW, *, entry: State = State.READY, **changes: Any) -> Job:
        """Return one job that was admitted."""
        job = self.job(policy, **changes)
        (receipt,) = self.admit(job, entry=entry)
        assert receipt.disposal is Disposal.ADMITTED, receipt
        return job

    def claim(self, n: int = 1, accepts: Sequence[str] = ACCEPTS, *, consumer: Consumer | None = None) -> list[Grant]:
        """Claim up to n jobs of the pool `default`, or through another consumer."""
        grants = (consumer or self.consumer).claim(n, accepts)
        self.journal.grants(grants)
        return grants

    def started(self, policy: TypePolicy = LOW, **changes: Any) -> Grant:
        """Return the grant of one new job, which is the only one that could start."""
        job = self.admitted(policy, **changes)
        (grant,) = self.claim()
        assert job.id == grant.job.id, "another job was first in line"
        return grant

    def settle(self, *settlements: Settlement, consumer: Consumer | None = None) -> list[Settled]:
        """Settle in one call."""
        settled = (consumer or self.consumer).settle(settlements)
        self.journal.settled(settled)
        return settled

    def reclaim(self, n: int = 100) -> list[Reclaimed]:
        """Take back jobs whose lease ran out."""
        return self.keeper.reclaim(n)

    def stage(self, n: int = 100) -> Staged:
        """Let time do its part."""
        return self.keeper.stage(n)

    def due(self, seconds: float = 600.0) -> None:
        """Move the clock past every backoff and stage what is due."""
        self.advance(seconds)
        self.stage()

    def tighten(self, mode: ControlMode, name: str = LOW.name, scope: ControlScope = ControlScope.TYPE) -> None:
        """Set a switch to a stricter mode."""
        self.operator.tighten(Control(scope, name, mode, "a reason"))

    def loosen(self, name: str = LOW.name, scope: ControlScope = ControlScope.TYPE) -> None:
        """Open a switch."""
        self.operator.loosen(Control(scope, name, ControlMode.OPEN, "a reason"))

    def replay(self, job: Job, entry: State = State.READY) -> None:
        """Bring a quarantined job back as a re-judged next generation."""
        again = replace(job, generation=self.view(job.id).job.generation + 1)
        self.operator.replay(Replay(again, entry, "a reason"))

    def view(self, job_id: str) -> JobView:
        """Return everything about one job that must exist."""
        view = self.operator.show(job_id)
        assert view is not None, f"no job {job_id}"
        return view

    def state(self, job_id: str) -> State:
        """Return where a job is."""
        return self.view(job_id).state

    def states(self, *jobs: Job | Grant) -> list[str]:
        """Return where several jobs are, as words."""
        return [self.state(one.id if isinstance(one, Job) else one.job.id).value for one in jobs]

    def audit(self) -> list[AuditRow]:
        """Return the whole audit log."""
        return audit_rows(self.auditor)

    def events(self, job_id: str = "") -> list[str]:
        """Return the audit events of one job, or those of no job, in order."""
        return [record["event"] for record in records(self.audit()) if record["job_id"] == job_id]


def audit_rows(auditor: Auditor) -> list[AuditRow]:
    """Return the whole audit log, page by page."""
    rows: list[AuditRow] = []
    while page := auditor.audit_page(rows[-1].seq if rows else 0, AUDIT_PAGE):
        rows.extend(page)
    return rows


def records(rows: Sequence[AuditRow]) -> list[dict[str, Any]]:
    """Return the bodies of audit rows that were not erased."""
    return [msgspec.json.decode(row.body) for row in rows if row.body is not None]


def proof(grant: Grant) -> LeaseProof:
    """Return what proves that an attempt is the caller's."""
    return LeaseProof(grant.job.id, grant.lease.fence, grant.lease.token)


def settlement(grant: Grant, disposition: Disposition = Disposition.COMPLETE, **fields: Any) -> Settlement:
    """Return the settlement of a grant; completed with result null by default."""
    usual: dict[str, Any] = {"holds": bool(grant.job.refs.resources)}
    if disposition is Disposition.COMPLETE:
        usual["result"] = b"null"
    return Settlement(proof(grant), disposition, **(usual | fields))


def quarantine(
    grant: Grant,
    reason: QuarantineReason = QuarantineReason.PERMANENT,
    **fields: Any,
) -> Settlement:
    """Return a settlement that quarantines."""
    context: dict[str, Any] = {"error": "an error"} | fields
    return settlement(grant, Disposition.QUARANTINE, reason=reason, **context)
