"""The store contract: one protocol per facet, and the promise of each verb.

One verb is one transaction, and it writes its own audit records: there is no `audit()` to forget. Facets are roles:
whoever opens one facet cannot call the verbs of another (DESIGN section 2, "Facets are roles"). Every store keeps the
same promises; `benteng.testing.conformance` is the suite that says so. All verbs raise StoreUnavailable when the store
cannot be reached or written, and then nothing of the verb has happened, unless its docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from benteng.evidence import ArtifactFact, Control, Evidence
from benteng.job import Grant
from benteng.lifecycle import QuarantineReason
from benteng.store.durability import Durability
from benteng.store.records import (
    Admission,
    AuditRow,
    Cancelled,
    Depth,
    Extension,
    Health,
    JobView,
    LeaseProof,
    Page,
    Query,
    Question,
    Receipt,
    Reclaimed,
    Refusal,
    Registration,
    Replay,
    Settled,
    Settlement,
    Staged,
    Status,
    Turn,
    TypeRow,
    WorkerFacts,
    WorkerRefusal,
)

BATCH_MAX = 1_000
"""Most jobs, settlements or leases in one call; more is an error of the caller."""


class Store(Protocol):
    """What every facet has: an end, a durability class, and the origin that the store authenticated (no parameter)."""

    @property
    def origin(self) -> str:
        """The authenticated caller: a database login, a producer key's owner, or `os:<uid>` for the embedded store."""
        ...

    @property
    def durability(self) -> Durability:
        """The ledger's class on the connection that is open: what `admit` compares with an admission's."""
        ...

    def close(self) -> None:
        """Give back the connection. Safe to call twice."""
        ...


class Admitting(Protocol):
    """One `admit` in steps: made, begun, waited for, read. A second one of the same producer waits for the first."""

    def begin(self) -> None:
        """Hand the jobs to the ledger. Raises nothing of the store; `wait` does."""
        ...

    def wait(self) -> None:
        """Wait until all is stored. Raises as `admit`."""
        ...

    def receipts(self) -> list[Receipt]:
        """Return what `admit` returns, after `wait`."""
        ...


class Producer(Store, Protocol):
    """May ask for evidence, admit jobs and refusals, and look at and cancel jobs of its own origin."""

    def evidence(self, questions: Sequence[Question]) -> list[Evidence]:
        """Return fresh evidence for each question, in order. Reads only; `now` is the store's clock.

        `operation` is filled only when a job of the caller's own origin holds the key: of others it learns nothing.
        """
        ...

    def admit(self, admissions: Sequence[Admission], refusals: Sequence[Refusal] = ()) -> list[Receipt]:
        """Let judged jobs in and record what the gate refused; one receipt for each admission, in order.

        One operation row for each job. Of all callers with one operation key exactly one is admitted and the others get
        ITS receipt (duplicate), or conflict if payload digest or origin differ; also when they race. Control, the
        type's policy digest and limits, the origin (must equal the store's own) and whether it may speak for the
        actor are checked again inside. One refused row never stops the batch. Refusals are tallied by (origin, type,
        rule) and, beyond a rate, aggregated into one audit record, so that a flood cannot fill the disk.
        """
        ...

    def status(self, job_ids: Sequence[str]) -> list[Status]:
        """Return the jobs of the caller's own origin among those asked; others are left out."""
        ...

    def cancel(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """Cancel jobs of the caller's own origin.

        Not running: cancelled, and the key freed if it never started. Running: the flag that `extend` returns. Ids that
        are unknown, foreign or terminal are left out.
        """
        ...


class StepwiseProducer(Producer, Protocol):
    """A producer whose `admit` may be gone through step by step too: no verb more, and no right."""

    def admitting(self, admissions: Sequence[Admission], refusals: Sequence[Refusal] = ()) -> Admitting:
        """As `admit`, step by step, for a caller who has something else to do while the ledger works.

        Begun with nothing at all it lets nothing in, and the ledger makes ready for the next one.
        """
        ...


class Hints(Protocol):
    """Where a ledger tells that there may be something to do. Hints get lost: whoever heeds them still polls."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when a hint may have come."""
        ...

    def heard(self) -> bool:
        """Take in what has come without waiting, and return whether a hint was among it."""
        ...


class Consumer(Store, Protocol):
    """One worker of one pool."""

    @property
    def hints(self) -> Hints | None:
        """Where hints come from as long as this session lasts, another one after that; None: this ledger gives none."""
        ...

    def register(self, facts: WorkerFacts, refusal: WorkerRefusal | None = None) -> Registration:
        """Record the worker and return the ledger's policy digests for its pool. To be repeated as a sign of life.

        The first time the log gets what the worker can do here to hold a cell (`isolation`). With a refusal the worker
        will not start: the log says why, and it is not known as a worker.
        """
        ...

    def claim(self, n: int, accepts: Sequence[str]) -> list[Grant]:
        """Start up to n ready jobs of the pool whose type is accepted, by (priority, due, admission).

        Never more than n; n if n can start. Each spends one attempt, gets a fence that rises per installation and per
        resource, a secret token and a lease. Resources all or none: a job with a busy one is parked `blocked` and
        spends nothing. Types, pools and origins under a closed switch do not start. Expired jobs are quarantined. A
        row that cannot be decoded is quarantined alone as undecodable. Fresh evidence comes along.
        """
        ...

    def extend(self, leases: Sequence[LeaseProof], progress: Sequence[str] = ()) -> list[Extension]:
        """Renew leases; one answer for each, in order.

        Lost: not running under this proof, or already past its lease. `progress` is empty or one cleaned text for each.
        """
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Say how attempts ended; return those that were accepted.

        Compare-and-set on (id, fence, token, running) for each; an id not returned was fenced off: nothing of it
        happened, except an audit record of the stale try. The store enforces attempts, crashes, hand-backs, snoozes
        and backoff bounds itself. A cancel asked for wins over going back. The same id twice in a batch: the first
        counts. Releases wake the next claimable job of each resource. Successors are admitted by the same commit,
        only those the parent's policy lists, of at most its tier, by its actor; HIGH ones enter held.
        """
        ...

    def turn(self, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]) -> Turn:
        """Settle, then claim up to n (n may be 0); may be one transaction where that is safe.

        A settlement that was accepted stays accepted when the claim fails.
        """
        ...


class Turning(Protocol):
    """One `turn` in steps: made, begun, awaited, taken. Whatever else is asked of its consumer waits for its end."""

    def begin(self) -> None:
        """Hand it to the ledger. Raises nothing of the store; `take` does."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when the answer may have come, until `take`; -1: it is there already."""
        ...

    def has_come(self) -> bool:
        """Take in what has come without waiting, and return whether the next step would not wait.

        That is `foresee`, if it was not called yet, then `take`. True also where waiting is futile.
        """
        ...

    def foresee(self) -> Turn | None:
        """Wait for what `take` will return if it is committed; None: only `take` will know.

        Until `take` has returned that very value nothing of it has happened. Raises nothing of the store; `take` does.
        """
        ...

    def take(self) -> Turn:
        """Wait for the answer, and return what `turn` returns. Raises as `turn`."""
        ...


class StepwiseConsumer(Consumer, Protocol):
    """A consumer whose `turn` may be gone through step by step too: no verb more, and no right."""

    @property
    def overlaps(self) -> bool:
        """Whether the ledger works on a turn that was begun while nobody waits for it."""
        ...

    def turning(self, settlements: Sequence[Settlement], n: int, accepts: Sequence[str]) -> Turning:
        """As `turn`, step by step, for a worker that has something else to do while the ledger works."""
        ...


class Keeper(Store, Protocol):
    """What time does, and tightening."""

    def lead(self, name: str, seconds: float) -> bool:
        """Take or renew the leased row that makes the caller the only active keeper; False when another holds it."""
        ...

    def reclaim(self, n: int) -> list[Reclaimed]:
        """Take back up to n running jobs whose lease ran out: by lease only, never by elapsed time.

        `once` is quarantined as uncertain (resources closed at HIGH); else ready, the crash counted, or quarantined as
        crashed when the budget is used up, or cancelled when that was asked.
        """
        ...

    def stage(self, n: int) -> Staged:
        """Make up to n due jobs ready, expire those past `expires_at`, wake blocked jobs whose resources are free."""
        ...

    def tighten(self, control: Control) -> None:
        """Set a switch to a stricter mode: after it returns no job starts that it forbids. Looser: PolicyError."""
        ...

    def purge(self, n: int) -> int:
        """Drop up to n results and operations of ended jobs past their retention; return how many rows changed."""
        ...


class Operator(Store, Protocol):
    """A person's view and a person's switches. Reasons are required where something changes."""

    def find(self, query: Query) -> Page:
        """List jobs, newest first, without payloads."""
        ...

    def show(self, job_id: str) -> JobView | None:
        """Return everything about one job, or None."""
        ...

    def controls(self) -> list[Control]:
        """Return the switches that are not open."""
        ...

    def tighten(self, control: Control) -> None:
        """As Keeper.tighten."""
        ...

    def loosen(self, control: Control) -> None:
        """Set a switch to a looser mode. NeedsAction when it covers a HIGH type and the installation is not `dev`."""
        ...

    def cancel(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """As Producer.cancel, for jobs of every origin."""
        ...

    def release(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """Let held jobs go on: ready, or scheduled when their time has not come; jobs that are not held are left out.

        They are judged again before they start. NeedsAction at HIGH outside `dev`; PolicyError while a switch holds or
        diverts them. All are looked at before one is moved.
        """
        ...

    def classify(self, job_id: str, reason: QuarantineReason, note: str) -> None:
        """Set the class of a quarantined job as a person sees it; `uncertain` can neither be given nor taken away."""
        ...

    def discard(self, job_ids: Sequence[str], reason: str, *, free: bool = False) -> list[Cancelled]:
        """Give up quarantined jobs: a state, never a delete.

        A job that never started frees its key; one that did keeps it, unless `free`, which at HIGH is NeedsAction. An
        uncertain job must be resolved instead (PolicyError).
        """
        ...

    def resolve(self, job_id: str, *, happened: bool, reason: str) -> Cancelled:
        """Say whether the effect of an uncertain job happened: completed, or discarded with its key freed.

        Opens its resources. NeedsAction at HIGH outside `dev`.
        """
        ...

    def replay(self, replay: Replay) -> Cancelled:
        """Bring a quarantined job back, re-judged: generation + 1, a new attempt budget, the same operation.

        Its key is reserved again; PolicyError naming the job when another took it. Uncertain or unclassified-suspicious
        jobs: PolicyError.
        """
        ...

    def evidence(self, questions: Sequence[Question]) -> list[Evidence]:
        """As Producer.evidence, for the judgement of a replay."""
        ...

    def depths(self) -> list[Depth]:
        """Return the origins for which somebody set another depth than the default, by name."""
        ...

    def limit_depth(self, depth: Depth, reason: str) -> None:
        """Let an origin have so many active jobs and no more; the default again takes its row off `depths`.

        PolicyError (S-depth) below 1, above DEPTH_MAX, or when the store knows its origins and this is none.
        """
        ...

    def types(self) -> list[TypeRow]:
        """Return the rows of `job_type`."""
        ...

    def apply_types(self, rows: Sequence[TypeRow], reason: str) -> list[str]:
        """Write the given rows of `job_type`; return the names that changed. NeedsAction for HIGH outside `dev`."""
        ...

    def register_artifact(self, fact: ArtifactFact, reason: str) -> None:
        """Set one artifact's row. Outside `dev` only a revocation, until signed approval exists (NeedsAction else)."""
        ...

    def allow_access(self, actor: str, type_name: str, target: str, reason: str) -> None:
        """Add one row of the access rule (`*` matches all). Only in a `dev` installation (NeedsAction else)."""
        ...

    def health(self) -> Health:
        """Return what `doctor` reports about this store."""
        ...


class Auditor(Store, Protocol):
    """Reads the log, and nothing else."""

    def audit_page(self, after: int, limit: int = 1000) -> list[AuditRow]:
        """Return up to `limit` records with seq > after, in order, gapless."""
        ...
