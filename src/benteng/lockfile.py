"""`benteng.lock` on disk, and the same data as rows of the ledger's `job_type`.

The file is reviewed in the repository and read on each host; the rows are for the store's own checks. Writing is
atomic: a reader sees the old file or the new one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from benteng.errors import PolicyError
from benteng.policy import LOCK_BYTES_MAX, TypePolicy, parse_lock, render_lock
from benteng.store.records import TypeRow


def read(path: Path) -> dict[str, TypePolicy]:
    """Return the policies in a lock file; an absent file has none. Raises PolicyError."""
    try:
        with path.open("rb") as stream:
            return parse_lock(stream.read(LOCK_BYTES_MAX + 1)).types
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PolicyError("L-read", f"{path.name} cannot be read: {error.strerror}") from None


def write(path: Path, types: Mapping[str, TypePolicy]) -> None:
    """Write a lock file, atomically and durably."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(render_lock(types))
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), 0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def to_rows(types: Mapping[str, TypePolicy]) -> list[TypeRow]:
    """Return the rows of `job_type` for policies."""
    return [
        TypeRow(name, msgspec.json.encode(policy, order="sorted"), policy.sha256)
        for name, policy in sorted(types.items())
    ]


def from_rows(rows: Iterable[TypeRow]) -> dict[str, TypePolicy]:
    """Return the policies in rows of `job_type`."""
    return {row.name: msgspec.json.decode(row.policy, type=TypePolicy) for row in rows}
