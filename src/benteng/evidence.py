"""What a guard may know beside the job: facts read from the store in the deciding round trip.

Guards are pure. If one needs a fact, the fact is here, fresh from the primary, and never from a cache or a replica
(reference/reliability.md: long fork). The same evidence comes back from `evidence` at the gate and from `claim` for the
second judgement, so that both judge the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from benteng.clock import Instant


class ControlMode(StrEnum):
    """What a switch does to a job type, origin or pool; ordered by strictness.

    open      nothing
    hold      new jobs enter as held
    divert    new jobs enter as quarantined
    halt      nothing enters and nothing starts (the kill switch)
    """

    OPEN = "open"
    HOLD = "hold"
    DIVERT = "divert"
    HALT = "halt"

    @property
    def rank(self) -> int:
        """0 for open up to 3 for halt: to take the strictest of several, and to tell tightening from loosening."""
        return ("open", "hold", "divert", "halt").index(self.value)


class ControlScope(StrEnum):
    """What a switch applies to."""

    TYPE = "type"
    ORIGIN = "origin"
    POOL = "pool"


class Control(msgspec.Struct, frozen=True, gc=False):
    """One switch: scope and name say what it applies to, mode what it does, reason why somebody set it."""

    scope: ControlScope
    name: str
    mode: ControlMode
    reason: str = ""


OPEN = Control(ControlScope.TYPE, "", ControlMode.OPEN)


class ArtifactState(StrEnum):
    """How far an artifact is trusted. Only `approved` may be used by a job."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    REVOKED = "revoked"


class ArtifactFact(msgspec.Struct, frozen=True, gc=False):
    """What the registry says of one artifact id. `expires_at` is None when the approval does not expire."""

    id: str
    sha256: str
    state: ArtifactState
    expires_at: Instant | None = None


class OperationFact(msgspec.Struct, frozen=True, gc=False):
    """The row that holds an operation's key now: whose job it is, with which payload digest, and how far it got."""

    job_id: str
    origin: str
    payload_sha256: str
    state: str
    epoch: int


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """Facts about one job at the store's `now`.

    control            the strictest switch over the job's type, origin and pool
    policy_sha256      digest of the type's row in `job_type`; None when the store does not know the type
    speaks             whether the authenticated origin may speak for the job's actor and enqueue its type
    denied_targets     targets of the job on which its actor may not run its type
    artifacts          registry rows of the artifacts that the job names, by id; a missing id is not registered
    operation          who holds the job's operation key; None when nobody does (not filled by `claim`: the job does)
    """

    now: Instant
    control: Control = OPEN
    policy_sha256: str | None = None
    speaks: bool = False
    denied_targets: tuple[str, ...] = ()
    artifacts: Mapping[str, ArtifactFact] = {}
    operation: OperationFact | None = None
