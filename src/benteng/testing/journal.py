"""What the clients of a ledger were told: the half of the truth that the store cannot change afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benteng.job import Grant
from benteng.store.records import Admission, Disposal, Receipt, Settled


@dataclass(frozen=True, slots=True)
class Started:
    """One grant as its worker saw it."""

    job_id: str
    fence: int
    token: str
    payload_sha256: str


@dataclass(slots=True)
class Journal:
    """Answers that reached a client, in the order in which they arrived.

    admitted: payload digest by job id;  started: grants;  completed: ids whose completion was accepted
    """

    admitted: dict[str, str] = field(default_factory=dict[str, str])
    started: list[Started] = field(default_factory=list[Started])
    completed: list[str] = field(default_factory=list[str])

    def receipts(self, admissions: Sequence[Admission], receipts: Sequence[Receipt]) -> None:
        """Note what `admit` answered."""
        for admission, receipt in zip(admissions, receipts, strict=True):
            if receipt.disposal is Disposal.ADMITTED:
                self.admitted[receipt.job_id] = admission.job.payload_sha256

    def grants(self, grants: Sequence[Grant]) -> None:
        """Note what `claim` answered."""
        for grant in grants:
            lease = grant.lease
            self.started.append(Started(grant.job.id, lease.fence, lease.token, grant.job.payload_sha256))

    def settled(self, settled: Sequence[Settled]) -> None:
        """Note what `settle` answered."""
        self.completed.extend(answer.job_id for answer in settled if answer.state.value == "completed")
