"""What an error of SQLite means to the caller: try later, stop and look, or not yours to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from benteng.errors import FacetError, StoreDamaged, StoreError, StoreUnavailable

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Somebody else is writing: worth another try."""

AWAY = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOLFS,
    }
)
"""The file cannot be read or written just now: the connection is given up, the next verb opens it again."""

DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR})
"""The content is not what it should be. SQLITE_ERROR: a table or column of ours is missing, or an SQL fault of ours."""

_PRIMARY = 0xFF


def code(error: sqlite3.Error) -> int:
    """Return the primary result code, or 0 for an error that Python itself raised."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY


def translated(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the error of ours that says the same. Carries SQLite's own name for it, never a value."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    found = code(error)
    if found in BUSY:
        return StoreUnavailable(f"the ledger {path} is locked by another process ({name}). Try again later")
    if found in AWAY:
        return StoreUnavailable(f"the ledger {path} cannot be read or written just now ({name}). Try again later")
    if found in DAMAGED:
        return StoreDamaged(f"the ledger {path} is damaged or not ours ({name}). Stop, copy it, and look: {error}")
    if found == sqlite3.SQLITE_AUTH:
        return FacetError(f"this facet may not do that: {error}. Open the facet that has the verb")
    return StoreError(f"the ledger {path} refused ({name}): {error}")
