"""Write audit records: one for each thing that happened, in the transaction in which it happened.

A record carries keyed digests of the operation key and of the payload digest, never the values (DESIGN section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from secrets import token_bytes
from typing import Any

from benteng.audit import SALT_BYTES, AuditRecord, body_bytes, commitment, leaf_data
from benteng.redact import keyed


def parameters(records: Sequence[AuditRecord]) -> list[tuple[bytes, bytes, bytes, str | None]]:
    """Return the rows of `audit` for records, as `append` takes them, each with a salt of its own."""
    salts = token_bytes(SALT_BYTES * len(records))
    return [
        _row(record, salts[at : at + SALT_BYTES])
        for at, record in zip(range(0, len(salts), SALT_BYTES), records, strict=True)
    ]


def of_row(row: Mapping[str, Any], audit_key: bytes) -> dict[str, Any]:
    """Return what a record says about a row of `job` or `quarantine`."""
    return {
        "job_id": row["id"],
        "type": row["type"],
        "contract_version": major(row["type"]),
        "policy_sha256": row["policy_sha256"],
        "attempt": row["attempts"],
        "fence": row["fence"],
        "origin": row["origin"],
        "actor": row["actor"],
        "request_id": row["request_id"],
        "operation": digest(audit_key, row["operation_key"]),
        "payload": digest(audit_key, row["payload_sha256"]),
        "summary": row["summary"],
    }


@lru_cache(maxsize=1024)
def digest(audit_key: bytes, text: str) -> str:
    """Return the keyed digest of a key or digest; each is said when its job enters, starts and ends."""
    return keyed(audit_key, text.encode())


@lru_cache(maxsize=1024)
def major(type_name: str) -> int:
    """Return the number behind the `@` of a type name, 0 when there is none."""
    digits = type_name.rpartition("@")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 4 else 0  # noqa: PLR2004  TYPE_NAME


def _row(record: AuditRecord, salt: bytes) -> tuple[bytes, bytes, bytes, str | None]:
    body = body_bytes(record)
    return leaf_data(commitment(salt, body)), salt, body, record.job_id or None
