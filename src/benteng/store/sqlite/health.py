"""Say how the ledger is: its durability as the connection really has it, and what a person should look at."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from benteng.store.durability import Durability
from benteng.store.records import Health
from benteng.store.sqlite.connection import WAL_BYTES_KEPT
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Tx

_HEALTH = statements("health")
_FULL = 2
_OTHERS = 0o077


def health(tx: Tx, path: Path) -> Health:
    """Return what doctor reports."""
    counts = {row["name"]: row["rows"] for row in tx.all(_HEALTH["counts"])}
    return Health(
        store="sqlite",
        version=sqlite3.sqlite_version,
        durability=durability(tx),
        path=str(path),
        findings=(*_content(tx), *_files(path)),
        counts=counts,
    )


def durability(tx: Tx) -> Durability:
    """Return D1 when each commit is synced to this disk, else D0."""
    is_synced = _said(tx, "journal") == "wal" and (_said(tx, "synchronous") or 0) >= _FULL
    return Durability.D1 if is_synced else Durability.D0


def _content(tx: Tx) -> list[str]:
    findings: list[str] = []
    if _said(tx, "integrity") != "ok":
        findings.append("the file is corrupt: stop, copy it, and restore")
    if _rows(tx, "open_access"):
        findings.append("dev default: every actor may run every type on every target (access *, *, *)")
    if _rows(tx, "open_speaks"):
        findings.append("dev default: an origin may speak for every actor and type (speaks origin, *, *)")
    if _rows(tx, "orphans"):
        findings.append("a resource is held by a job that is neither running nor uncertain")
    return findings


def _rows(tx: Tx, name: str) -> int:
    return _said(tx, name) or 0


def _said(tx: Tx, name: str) -> Any:
    """Return the one value of an answer: what a pragma calls it depends on the library."""
    row = tx.one(_HEALTH[name])
    return next(iter(row.values())) if row else None


def _files(path: Path) -> list[str]:
    findings = [f"{name} can be read or written by others: chmod 600 {name}" for name in _loose(path)]
    if path.parent.stat().st_mode & 0o022 and not path.parent.stat().st_mode & 0o1000:
        findings.append(f"others can replace files in {path.parent}: chmod 700 {path.parent}")
    wal = Path(f"{path}-wal")
    if wal.exists() and wal.stat().st_size > 2 * WAL_BYTES_KEPT:
        findings.append("the write-ahead log is large: a reader keeps an old state open")
    return findings


def _loose(path: Path) -> list[str]:
    files = [Path(f"{path}{side}") for side in ("", "-wal", "-shm")]
    return [str(each) for each in files if each.exists() and each.stat().st_mode & _OTHERS]
