"""Open a ledger file: check it, make its schema once, set every guard that SQLite offers, and hand out one connection.

Two processes that open a new file at once make one schema: it is created in one immediate transaction that looks again.
A file of somebody else's, a foreign or a newer database is refused before anything of it is changed.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from benteng.clock import Clock
from benteng.errors import PolicyError, StoreDamaged, StoreError, StoreUnavailable
from benteng.lifecycle import ACTIVE, OperationState
from benteng.store.records import Facet
from benteng.store.sqlite import faults, file
from benteng.store.sqlite.rights import authorizer
from benteng.store.sqlite.statements import schema, statements

Answer = TypeVar("Answer")

VERSION_MIN = (3, 37, 0)
"""STRICT tables."""

APPLICATION_ID = 0x62746E67
"""`btng`."""

SCHEMA_VERSION = 3
ENVIRONMENTS = ("dev", "prod")
BUSY_SECONDS = 5.0
BUSY_PAUSE_MS_MAX = 8
VALUE_BYTES_MAX = 8 * 1024 * 1024
PAGES_KIB = 512
"""How much of the file a connection keeps in memory. The kernel has the rest; four times as much was no faster."""

WAL_BYTES_KEPT = 64 * 1024 * 1024

_OPENING = threading.Lock()  # while a new file's descriptor is open, no other thread may hold SQLite's locks on it
_GUARDS = (
    "pragma trusted_schema = off",
    "pragma cell_size_check = on",
    "pragma foreign_keys = on",
    "pragma recursive_triggers = on",  # else `insert or replace` deletes without asking the triggers
    "pragma secure_delete = fast",
    "pragma synchronous = full",
    "pragma temp_store = memory",  # what a savepoint may undo is no file of its own
    f"pragma cache_size = -{PAGES_KIB}",
    f"pragma journal_size_limit = {WAL_BYTES_KEPT}",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a ledger is and what it must be: its file, its environment, and the clock that decides in it."""

    path: Path
    environment: str
    clock: Clock


def connect(place: Place, facet: Facet, *, create: bool) -> tuple[sqlite3.Connection, file.Identity]:
    """Return a checked connection for one facet, and which file it is.

    Raises StoreUnavailable (gone, locked), StoreDamaged (foreign, corrupt), StoreError (open to others, too old a
    library), PolicyError (made for another environment).
    """
    check_library()
    if place.environment not in ENVIRONMENTS:
        raise PolicyError("S-environment", f"environment must be one of {', '.join(ENVIRONMENTS)}")
    with _OPENING:
        return _connect(place, facet, create=create)


def check_library(found: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    """Raise StoreError when the SQLite library is older than what the ledger needs."""
    if found < VERSION_MIN:
        needed, have = (".".join(map(str, version)) for version in (VERSION_MIN, found))
        raise StoreError(f"SQLite {needed} or newer is needed, this Python has {have}. Use a newer Python build")


def _connect(place: Place, facet: Facet, *, create: bool) -> tuple[sqlite3.Connection, file.Identity]:
    if create:
        file.create(place.path)
    identity = file.check(place.path)
    try:
        connection = _open(place.path)
    except sqlite3.Error as error:
        raise faults.translated(error, place.path) from error
    try:
        _prepare(connection, place, create=create)
        if file.identity(place.path) != identity:
            raise StoreUnavailable(f"the ledger {place.path} was moved while it was opened. Try again")
        # The table function declares itself when it is first used, which is no right of a facet.
        connection.execute("select 1 from json_each('[]')").fetchall()
        connection.set_authorizer(authorizer(facet))
        connection.text_factory = str  # a call of Python for each text costs more than all else about it: see store.py
    except sqlite3.Error as error:
        connection.close()
        raise faults.translated(error, place.path) from error
    except BaseException:
        connection.close()
        raise
    return connection, identity


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.fspath(path))}?mode=rw",
        uri=True,
        timeout=0,  # see `retried`
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    connection.text_factory = any_text
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    return connection


def any_text(data: bytes) -> str:
    """Read text that somebody may have written by hand: one bad byte must not fail the rows beside it."""
    return str(data, "utf-8", "replace")


def _prepare(connection: sqlite3.Connection, place: Place, *, create: bool) -> None:
    known = retried(lambda: _known(connection, place.path))
    if not known and not create:
        raise StoreDamaged(f"the ledger {place.path} is empty now. Stop, and find out who emptied it")
    _defend(connection)
    mode = retried(lambda: _value(connection, "pragma journal_mode = wal"))
    if mode != "wal":
        raise StoreError(f"no write-ahead log at {place.path}: this file system cannot share memory. Use a local disk")
    for guard in _GUARDS:
        connection.execute(guard)
    if not known:
        _create(connection, place)
    retried(lambda: _check_environment(connection, place))


def _known(connection: sqlite3.Connection, path: Path) -> bool:
    """Return True for a ledger of ours, False for an empty file. Raises for anything else."""
    application = _value(connection, "pragma application_id")
    version = _value(connection, "pragma user_version")
    objects = _value(connection, "select count(*) from sqlite_master")
    if (application, version, objects) == (0, 0, 0):
        return False
    if application != APPLICATION_ID:
        raise StoreDamaged(f"{path} is a database of another program. Name another file")
    if version != SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version}, this benteng needs {SCHEMA_VERSION}. Use its version")
    return True


def _defend(connection: sqlite3.Connection) -> None:
    # Python 3.12 and newer: no writes to the schema or the shadow of it, no SQL functions from the schema.
    setconfig: Callable[[int, bool], None] | None = getattr(connection, "setconfig", None)
    defensive: Any = getattr(sqlite3, "SQLITE_DBCONFIG_DEFENSIVE", None)
    if setconfig is not None and defensive is not None:
        setconfig(defensive, True)


def _create(connection: sqlite3.Connection, place: Place) -> None:
    retried(lambda: connection.execute("begin immediate"))
    try:
        if not _known(connection, place.path):
            _write_schema(connection)
            _write_installation(connection, place)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _write_schema(connection: sqlite3.Connection) -> None:
    text = schema().replace("{active}", _listed(sorted(ACTIVE))).replace("{operation_states}", _listed(OperationState))
    for statement in split(text):
        connection.execute(statement)
    connection.execute(f"pragma application_id = {APPLICATION_ID}")
    connection.execute(f"pragma user_version = {SCHEMA_VERSION}")


def split(text: str) -> list[str]:
    """Return the statements of a schema text, one by one: a script would commit the transaction that it is in."""
    parts: list[str] = []
    rest = ""
    for line in re.sub(r"--[^\n]*", "", text).splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            parts.append(rest.strip())
            rest = ""
    return parts


def _write_installation(connection: sqlite3.Connection, place: Place) -> None:
    install = statements("installation")
    now = place.clock()
    connection.execute(
        install["create"],
        {"id": str(uuid.uuid4()), "now": now, "environment": place.environment, "audit_key": secrets.token_bytes(32)},
    )
    if place.environment == "dev":
        # Loud defaults, listed by health(): in dev the owner may say and do everything.
        connection.execute(install["dev_speaks"], {"origin": own_origin()})
        connection.execute(install["dev_access"])


def _check_environment(connection: sqlite3.Connection, place: Place) -> None:
    made_for = _value(connection, statements("installation")["environment"])
    if made_for != place.environment:
        raise PolicyError(
            "S-environment",
            f"this ledger was made for environment {made_for!r}, not {place.environment!r}",
            fix="that is fixed when it is made: use another file, or set the environment that it has",
        )


def own_origin() -> str:
    """Return who the operating system says we are: what the embedded ledger takes as the authenticated origin."""
    return f"os:{os.getuid()}"


def retried(ask: Callable[[], Answer]) -> Answer:
    """Return what `ask` returns; while somebody else writes, pause for a random few ms and try again, within bounds.

    SQLite's own handler sleeps up to 100 ms between two tries, so that under load the same process wins for seconds.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return ask()
        except sqlite3.Error as error:
            if faults.code(error) not in faults.BUSY or time.monotonic() > deadline:
                raise
            time.sleep((1 + secrets.randbelow(BUSY_PAUSE_MS_MAX)) / 1_000)


def _value(connection: sqlite3.Connection, sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    return None if row is None else row[0]


def _listed(words: Any) -> str:
    return ", ".join(f"'{word}'" for word in words)
