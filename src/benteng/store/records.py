"""The values that cross the seam between benteng and its stores: requests in, answers out. No behaviour.

Every time is an `Instant` of the store's clock, every duration is seconds. Text that a person or a handler wrote
arrives here already cleaned and bounded (redact.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from benteng.clock import Instant
from benteng.decide import Disposition
from benteng.evidence import Control
from benteng.job import Grant, Job
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.store.durability import Durability


class Facet(StrEnum):
    """A set of verbs that belongs to one role: one protocol, one database role, one login a service."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    KEEPER = "keeper"
    OPERATOR = "operator"
    AUDITOR = "auditor"


# --- producer ---------------------------------------------------------------------------------------------------------


class Admission(msgspec.Struct, frozen=True, gc=False):
    """A judged job on its way in.

    entry      READY (the store makes it SCHEDULED when `available_at` is later), HELD or QUARANTINED (diverted)
    rule, reason  why it is held or diverted
    durability    the class that the ledger must have which takes it
    """

    job: Job
    entry: State = State.READY
    rule: str = ""
    reason: str = ""
    durability: Durability = Durability.D0


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A job that the gate refused: recorded and tallied, with rule and payload digest, without any value of it."""

    type: str
    actor: str
    request_id: str
    rule: str
    reason: str
    payload_sha256: str = ""
    suspicious: bool = False


class Disposal(StrEnum):
    """What `admit` did with one job.

    admitted   it is new, in the state that the receipt names
    duplicate  the operation exists with the same payload: the receipt is the first job's
    conflict   the operation exists with another payload or from another origin
    refused    the store itself refused: unknown type, control, limits, identity
    """

    ADMITTED = "admitted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    REFUSED = "refused"


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The answer to one admission, in the order asked.

    job_id  the job that owns the operation: the new one, or the first one for a duplicate; "" when nothing may be named
            (refused; conflict with another origin)
    state   of that job now; None when job_id is ""
    result  of the completed operation, for a duplicate
    """

    disposal: Disposal
    job_id: str = ""
    state: State | None = None
    rule: str = ""
    reason: str = ""
    result: bytes | None = None


class Question(msgspec.Struct, frozen=True, gc=False):
    """What evidence is wanted for: the identity of one job before it is admitted."""

    type: str
    actor: str
    operation_key: str
    artifact_ids: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """How one job of the caller's own origin is doing. `result` is None until completed, or after its retention."""

    job_id: str
    state: State
    reason: QuarantineReason | None = None
    error: str = ""
    result: bytes | None = None
    available_at: Instant = 0
    finished_at: Instant = 0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What `cancel` did: the state now. RUNNING means that the worker was asked and has not answered yet."""

    job_id: str
    state: State


# --- consumer ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Who a worker is: facts of its host and process, not a name it chose.

    types       policy digest of each job type, as the worker's own lock file has it
    isolation   JSON text of what it can really do here to hold a cell; one of more than 4096 bytes is recorded as cut
    """

    worker: str
    pool: str
    host: str
    boot_id: str
    pid: int
    version: str
    types: Mapping[str, str]
    isolation: str = "{}"


@dataclass(frozen=True, slots=True)
class WorkerRefusal:
    """Why a worker does not start: the id of the rule, and a sentence."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Registration:
    """The answer to `register`: the policy digests that the ledger holds for the pool's types, and the store's now."""

    types: Mapping[str, str]
    now: Instant


class LeaseProof(msgspec.Struct, frozen=True, gc=False):
    """What proves that an attempt is still the caller's: compared with the row at every transition."""

    job_id: str
    fence: int
    token: str


class Extension(msgspec.Struct, frozen=True, gc=False):
    """The answer for one lease. `lost`: kill its cell. `cancel`: stop it. `seconds`: the lease left from now."""

    job_id: str
    lost: bool
    cancel: bool = False
    seconds: float = 0.0


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How one attempt ended, as decided by the worker; see decide.Disposition. The store checks every bound again.

    connects, refused   what it did with the network of a pool with `egress`: for the audit alone
    holds   the job has resources. Where a worker says that its jobs have none, the store need not look before it locks
            them; what it finds counts
    """

    proof: LeaseProof
    disposition: Disposition
    delay_seconds: float = 0.0
    reason: QuarantineReason | None = None
    error: str = ""
    rule: str = ""
    result: bytes = b""
    successors: tuple[Job, ...] = ()
    started: bool = True
    alone: bool = False
    connects: int = 0
    refused: int = 0
    holds: bool = True


class Settled(msgspec.Struct, frozen=True, gc=False):
    """One settlement that was accepted, and where the job is now. An id that is not returned was fenced off."""

    job_id: str
    state: State
    reason: QuarantineReason | None = None


class Turn(msgspec.Struct, frozen=True, gc=False):
    """The answer to settle and claim in one call."""

    settled: tuple[Settled, ...]
    grants: tuple[Grant, ...]


# --- keeper -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """One job whose lease had run out, and where it is now."""

    job_id: str
    state: State
    reason: QuarantineReason | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """What `stage` did: due jobs made ready, blocked jobs woken, jobs expired.

    next_seconds  until then no job is due and no lease ends; None: nothing is scheduled and nothing runs
    """

    ready: int = 0
    woken: int = 0
    expired: int = 0
    next_seconds: float | None = None


# --- operator and auditor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """Which jobs to list; empty fields do not filter. Pages go by the opaque `after` cursor, newest first."""

    states: tuple[State, ...] = ()
    type: str = ""
    origin: str = ""
    actor: str = ""
    request_id: str = ""
    resource: str = ""
    reason: QuarantineReason | None = None
    after: str = ""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class JobLine:
    """One line of a list: never a payload."""

    job_id: str
    type: str
    tier: str
    state: State
    priority: int
    attempts: int
    origin: str
    actor: str
    request_id: str
    admitted_at: Instant
    available_at: Instant
    reason: QuarantineReason | None = None
    error: str = ""
    summary: str = "{}"


@dataclass(frozen=True, slots=True)
class Page:
    """Lines, and the cursor of the next page ("" at the end)."""

    lines: tuple[JobLine, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class ResourceView:
    """Who holds one resource. holder "" means free; closed means kept by an uncertain job until it is resolved."""

    key: str
    holder: str = ""
    fence: int = 0
    closed: bool = False
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One record of the audit log as stored. body and salt are None when erased; the leaf stays."""

    seq: int
    leaf: bytes
    salt: bytes | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """Everything that is known about one job; the payload itself is in `job.payload` for the second judgement only.

    worker_seen_at: last sign of life of the pool's workers, 0 for none;  ahead: ready jobs before this one in its pool.
    """

    job: Job
    state: State
    attempts: int
    crashes: int
    handbacks: int
    snoozes: int
    starts: int
    admitted_at: Instant
    available_at: Instant
    finished_at: Instant
    now: Instant
    pool: str = ""
    reason: QuarantineReason | None = None
    classified: str = ""
    rule: str = ""
    error: str = ""
    fence: int = 0
    worker: str = ""
    lease_until: Instant = 0
    cancel_asked: bool = False
    waits_for: str = ""
    progress: str = ""
    parent: str = ""
    operation: OperationState = OperationState.RESERVED
    epoch: int = 1
    result: bytes | None = None
    resources: tuple[ResourceView, ...] = ()
    control: Control | None = None
    worker_seen_at: Instant = 0
    ahead: int = 0
    audit: tuple[AuditRow, ...] = ()


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One row of `job_type`, as `policy apply` writes it: the policy's canonical JSON and its digest."""

    name: str
    policy: bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Depth:
    """How many active jobs one origin may have."""

    origin: str
    jobs_max: int


@dataclass(frozen=True, slots=True)
class Replay:
    """A judged return from quarantine: the same job, one generation on, with its own attempt budget."""

    job: Job
    entry: State
    reason: str


class Severity(StrEnum):
    """How bad a symptom is. grave: `dev` may go on with it, `prod` may not."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    GRAVE = "grave"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing that a store says of itself, about what, how bad it is, and what to do."""

    check: str
    severity: Severity
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """What `doctor` wants to know of a store: name and version, durability class, findings in words.

    symptoms  findings that are not simply grave
    now       what the ledger's clock said during the call; 0: it has none of its own
    """

    store: str
    version: str
    durability: Durability
    path: str = ""
    findings: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    symptoms: tuple[Symptom, ...] = ()
    now: Instant = 0
