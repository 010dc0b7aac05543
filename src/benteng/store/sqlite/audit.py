"""Write audit records: one for each thing that happened, in the transaction in which it happened.

A record carries keyed digests of the operation key and of the payload digest, never the values (DESIGN section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from secrets import token_bytes
from typing import Any

import msgspec

from benteng.audit import SALT_BYTES, AuditRecord, Event, body_bytes, body_like, bounded, leaf_of
from benteng.clock import Instant
from benteng.lifecycle import State
from benteng.redact import keyed


class Subject(msgspec.Struct, frozen=True, gc=False):
    """What a record says of a job: columns of `job` and of `quarantine`. Rows that are read often begin with them."""

    seq: int
    id: str
    type: str
    policy_sha256: str
    origin: str
    actor: str
    request_id: str
    operation_key: str
    payload_sha256: str
    summary: str
    attempts: int
    fence: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into the log, and by what people find it.

    seq       the number in line of the job that it is about, or None
    job_id    the id of the job instead, or None
    ready     the type of which the record says that a job is ready, or ""
    """

    body: bytes
    seq: int | None
    job_id: str | None
    ready: str


Said = tuple[tuple[str, Any], ...]
"""Fields of a record that its row does not have, with their values."""


def subject_of(row: Mapping[str, Any]) -> Subject:
    """Return what a record says of a row."""
    return Subject(*(row[name] for name in Subject.__struct_fields__))


def entry_about(kind: AuditRecord, job: Subject, audit_key: bytes, at_us: Instant, attempt: int, fence: int) -> Entry:
    """Return the entry of the record of a kind that is about a job."""
    body = body_like(
        kind,
        at_us=at_us,
        attempt=attempt,
        fence=fence,
        job_id=job.id,
        operation=digest(audit_key, job.operation_key),
        payload=digest(audit_key, job.payload_sha256),
        request_id=job.request_id,
        summary=job.summary,
    )
    return Entry(body, job.seq, None, job.type if kind.state_to == State.READY else "")


def entry_of(record: AuditRecord) -> Entry:
    """Return the entry of a record that is about no job of the ledger, or about one that is only known by its id."""
    return Entry(body_bytes(record), None, record.job_id or None, "")


@lru_cache(maxsize=256)
def kind_of(
    event: Event, login: str, type_name: str, policy_sha256: str, origin: str, actor: str, said: Said
) -> AuditRecord:
    """Return what the records of one event have in common about jobs that are alike: most of a turn's records do."""
    fields: dict[str, Any] = {"type": type_name, "policy_sha256": policy_sha256, "origin": origin, "actor": actor}
    fields |= dict(said)
    return bounded(AuditRecord(at_us=0, event=event, login=login, contract_version=major(type_name), **fields))


def parameters(entries: Sequence[Entry]) -> list[tuple[bytes, bytes, bytes, int | None, str | None]]:
    """Return the rows of `audit` for entries, as `append` takes them, each with a salt of its own."""
    drawn = token_bytes(SALT_BYTES * len(entries))
    salts = [drawn[at : at + SALT_BYTES] for at in range(0, len(drawn), SALT_BYTES)]
    return [
        (leaf_of(salt, entry.body), salt, entry.body, entry.seq, entry.job_id)
        for salt, entry in zip(salts, entries, strict=True)
    ]


@lru_cache(maxsize=1024)
def digest(audit_key: bytes, text: str) -> str:
    """Return the keyed digest of a key or digest; each is said when its job enters, starts and ends."""
    return keyed(audit_key, text.encode())


@lru_cache(maxsize=1024)
def major(type_name: str) -> int:
    """Return the number behind the `@` of a type name, 0 when there is none."""
    digits = type_name.rpartition("@")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 4 else 0  # noqa: PLR2004  TYPE_NAME
