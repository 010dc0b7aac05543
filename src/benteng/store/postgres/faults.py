"""What an error of PostgreSQL means to the caller: try later, stop and look, not yours to do, or a rule was broken.

No message of the server is repeated but our own verbs' (class BT): others may hold a value, or a password.
"""

from __future__ import annotations

import psycopg

from benteng.errors import (
    BentengError,
    Busy,
    FacetError,
    NeedsAction,
    PolicyError,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)


class LostAnswerError(StoreUnavailable):
    """The connection was lost while a call was under way: nobody knows whether it was committed."""


RULE, ACTION, HISTORY = "BT001", "BT002", "BT003"
AGAIN = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: nothing happened, and the same call may go through."""

BUSY = frozenset({"55P03"})
"""lock_not_available."""

LOST = frozenset({"57P01", "57P02", "57P03", "57P05"})
"""The server ended the session: shutdown, crash, starting up, idle timeout. Class 08 says the same."""

AWAY = frozenset({"25006", "57014", "53000", "53100", "53200", "53300", "53400", "58030", "58000", "25P03"})
"""Read-only or in recovery, cancelled by a timeout, no disk, memory or connection left, I/O error."""

DAMAGED = frozenset({"XX001", "XX002"})
"""Data or index corrupted."""

MISSING = frozenset({"3F000", "42883", "42704", "42P01"})
"""Schema, function, type or table is not there."""


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection is gone, so that it is unknown whether the call was committed."""
    state = error.sqlstate or ""
    return state in LOST or state.startswith("08") or (not state and isinstance(error, psycopg.OperationalError))


def translated(error: psycopg.Error, *, waits: bool) -> BentengError:
    """Return the error of ours that says the same. `waits`: a busy store is to the caller like one that is away."""
    state = error.sqlstate or ""
    name = type(error).__name__
    if state == RULE:
        said = error.diag
        return PolicyError(said.message_detail or "S", said.message_primary or "", fix=said.message_hint or "")
    if state == ACTION:
        return NeedsAction(error.diag.message_primary or "this needs an Action")
    if state == HISTORY:
        return StoreUnavailable(error.diag.message_primary or "")
    if state == "42501":
        return FacetError("this login may not do that. Use the login of the facet that has the verb")
    if state in BUSY:
        busy = "the ledger is locked by somebody else. Nothing was stored; try again later"
        return StoreUnavailable(busy) if waits else Busy(busy)
    if is_lost(error):
        return LostAnswerError(f"the connection to the ledger was lost ({name} {state}). Try again later")
    if state in AWAY or state in AGAIN:
        return StoreUnavailable(f"the ledger cannot be reached or written just now ({name} {state}). Try again later")
    if state in DAMAGED:
        return StoreDamaged(f"the ledger is damaged ({name} {state}). Stop, copy it, and look")
    if state in MISSING:
        return StoreError(f"the database holds no ledger of this version ({name} {state}). Run: benteng migrate up")
    return StoreError(f"the ledger refused ({name} {state})")
