"""What each facet may do with each table, asked of SQLite when a statement is prepared. Deny by default.

A guard against mistakes, not a wall: whoever can open the file can open it without this. In the embedded ledger the
wall is the cell, which cannot read the file (DESIGN section 2, "Facets are roles").
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from types import MappingProxyType

from benteng.store.records import Facet

READ, INSERT, UPDATE, DELETE = "read", "insert", "update", "delete"

_SEE = frozenset({READ})
_ADD = frozenset({READ, INSERT})
_CHANGE = frozenset({READ, UPDATE})
_PUT = frozenset({READ, INSERT, UPDATE})
_MOVE = frozenset({READ, INSERT, UPDATE, DELETE})
_OUT = frozenset({READ, UPDATE, DELETE})

_WRITER: Mapping[str, frozenset[str]] = {
    "installation": _CHANGE,
    "audit": _ADD,
    "job_type": _SEE,
    "control": _SEE,
    "operation": _CHANGE,
    "job": _OUT,
    "resource": _CHANGE,
    "tally": _PUT,
}
"""What every verb that changes jobs needs."""

_JUDGE: Mapping[str, frozenset[str]] = {"artifact": _SEE, "access": _SEE, "speaks": _SEE}
"""What evidence is read from."""

_ENTRANCE: Mapping[str, frozenset[str]] = {
    "operation": _PUT,
    "job": _MOVE,
    "job_resource": _ADD,
    "quarantine": _ADD,
    "depth": _PUT,
}
"""What letting a job in needs, also as a successor."""

RIGHTS: Mapping[Facet, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        Facet.PRODUCER: {**_WRITER, **_JUDGE, **_ENTRANCE},
        Facet.CONSUMER: {**_WRITER, **_JUDGE, **_ENTRANCE, "resource": _PUT, "worker": _PUT},
        Facet.KEEPER: {
            **_WRITER,
            "operation": _OUT,
            "quarantine": _ADD,
            "control": _PUT,
            "leader": _PUT,
            "tally": _MOVE,
            "job_resource": frozenset({READ, DELETE}),  # with the operation that is purged
        },
        Facet.OPERATOR: {
            **_WRITER,
            **_JUDGE,
            "job": _MOVE,
            "quarantine": _MOVE,
            "job_resource": _ADD,
            "control": _PUT,
            "job_type": _PUT,
            "artifact": _PUT,
            "access": _ADD,
            "depth": _PUT,
            "worker": _SEE,
            "leader": _SEE,
        },
        Facet.AUDITOR: {"installation": _SEE, "audit": _SEE},
    },
)
"""facet -> table -> what it may do there."""

SECRETS: Mapping[tuple[str, str], Facet] = MappingProxyType({("job", "token"): Facet.CONSUMER})
"""Columns that one facet alone may read; to every other they are null."""

_READS = MappingProxyType({sqlite3.SQLITE_INSERT: INSERT, sqlite3.SQLITE_UPDATE: UPDATE, sqlite3.SQLITE_DELETE: DELETE})
_ALWAYS = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_SAVEPOINT,
        sqlite3.SQLITE_RECURSIVE,
    }
)
_FUNCTIONS = frozenset(
    {
        "coalesce",
        "count",
        "max",
        "min",
        "json_each",
        "json_extract",
        "length",
        "sum",
        "raise",
        "substr",
        "instr",
        "nullif",
    }
)
_PRAGMAS = frozenset({"quick_check", "journal_mode", "synchronous", "page_count", "data_version"})
_TABLE_FUNCTIONS = frozenset({"json_each"})

Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]


def authorizer(facet: Facet) -> Authorizer:
    """Return what SQLite asks before it prepares a statement of this facet."""
    rights = RIGHTS[facet]

    def allow(action: int, first: str | None, second: str | None, _database: str | None, _inside: str | None) -> int:
        if action == sqlite3.SQLITE_READ and SECRETS.get((first or "", second or ""), facet) is not facet:
            return sqlite3.SQLITE_IGNORE
        return sqlite3.SQLITE_OK if _is_allowed(rights, action, first or "", second or "") else sqlite3.SQLITE_DENY

    return allow


def _is_allowed(rights: Mapping[str, frozenset[str]], action: int, first: str, second: str) -> bool:
    if action in _ALWAYS:
        return True
    if action == sqlite3.SQLITE_READ:
        return first in _TABLE_FUNCTIONS or READ in rights.get(first, ())
    if action in _READS:
        return _READS[action] in rights.get(first, ())
    if action == sqlite3.SQLITE_FUNCTION:
        return second in _FUNCTIONS
    if action == sqlite3.SQLITE_PRAGMA:
        return first in _PRAGMAS and (not second or first == "quick_check")
    return False
