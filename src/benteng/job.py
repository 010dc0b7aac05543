"""The nouns: a job, its references, an attempt with its lease, and the grant that a claim returns.

All are frozen values. A job carries references and exact payload bytes, never commands, paths or secrets; its digest
and operation key are computed from those bytes, so that every door can compute them again (DESIGN sections 1, 3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from benteng.clock import Instant
from benteng.evidence import Evidence
from benteng.policy import PRIORITY_DEFAULT, Tier

_UUID_VERSION_7 = 0x7 << 76
_UUID_VARIANT = 0b10 << 62


class ArtifactRef(msgspec.Struct, frozen=True, gc=False, order=True):
    """An immutable reference to an artifact: its id and the sha256 (lower-case hex) of its bytes."""

    id: str
    sha256: str


class Refs(msgspec.Struct, frozen=True, gc=False):
    """What a job refers to, found in its payload by the type's field paths: sorted, distinct.

    Resources are `kind:value` keys that are locked for the attempt, at most 16, all or none.
    """

    artifacts: tuple[ArtifactRef, ...] = ()
    targets: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class Job(msgspec.Struct, frozen=True, gc=False):
    """One admitted piece of work.

    id               UUIDv7, canonical lower-case text, made by the gate
    type             `name@major`
    available_at     not before this instant; 0: at once
    expires_at       not started after this instant; 0: never expires
    origin           the login or key that the store authenticated; the gate's value is only believed if the store
    agrees actor            on whose behalf, as `svc:deployer` or `user:ana`
    request_id       correlation id of the caller
    payload          canonical bytes of the contract; payload_sha256 is their digest (hex)
    operation_key    identity of the operation (hex): see `operation_key`
    policy_sha256    digest of the type's policy under which the job was judged
    generation       0 at first, +1 for each replay
    envelope         signed claims (see envelope.py), or b"" when the tier does not require a signature
    summary          allow-listed JSON text for people and audit; never the payload
    """

    id: str
    type: str
    tier: Tier
    payload: bytes
    payload_sha256: str
    operation_key: str
    origin: str
    actor: str = ""
    request_id: str = ""
    priority: int = PRIORITY_DEFAULT
    available_at: Instant = 0
    expires_at: Instant = 0
    refs: Refs = Refs()
    policy_sha256: str = ""
    generation: int = 0
    envelope: bytes = b""
    summary: str = "{}"


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """Which try this is. `number` counts from 1; crashes, handbacks and snoozes are of the tries before it."""

    number: int
    crashes: int = 0
    handbacks: int = 0
    snoozes: int = 0


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to change one running job, and to hold its resources, for `seconds` from the store's answer.

    `fence` never goes back in an installation and is handed to the handler; `token` is secret and never leaves the
    supervisor. Both are compared at every transition.
    """

    job_id: str
    fence: int
    token: str
    seconds: float


class Grant(msgspec.Struct, frozen=True, gc=False):
    """A claimed job: what to run, under which lease, and the evidence for the second judgement.

    `alone` asks for a cell of its own: the job was resident in a shared cell that crashed.
    """

    job: Job
    attempt: Attempt
    lease: Lease
    evidence: Evidence
    alone: bool = False


def new_job_id(now: Instant, entropy: bytes) -> str:
    """Return a UUIDv7 (RFC 9562 5.7) from an instant and 10 random bytes. It identifies; it orders nothing."""
    noise = int.from_bytes(entropy[:10], "big")
    value = (now // 1_000 & (1 << 48) - 1) << 80 | _UUID_VERSION_7 | (noise >> 62 & 0xFFF) << 64
    digits = f"{value | _UUID_VARIANT | noise & (1 << 62) - 1:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of bytes as lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def operation_key(type_name: str, values: Mapping[str, object]) -> str:
    """Return the key of an operation: type name *without major* plus the declared values (hex).

    Not from a time stamp or a random number (seed, "Idempotency key"): the same intent gives the same key, also after a
    new major of its contract. Values are JSON values taken from the canonical payload.
    """
    return _key(["operation", type_name.partition("@")[0], dict(values)])


def own_operation_key(job_id: str) -> str:
    """Return the key of a job whose type declares no operation: each job is an operation of its own (hex)."""
    return _key(["job", job_id])


def _key(parts: list[object]) -> str:
    return sha256_hex(msgspec.json.encode(parts, order="deterministic"))
