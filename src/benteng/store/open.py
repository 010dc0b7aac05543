"""Open a ledger by its address, one facet at a time. The only module that knows the concrete stores.

One address, one facet: whoever opens a producer cannot call an operator's verb. What an address means:
`sqlite:///relative.db`, `sqlite:////absolute/path.db`; `default_dsn()` is a file in the user's state directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Never
from urllib.parse import parse_qs, unquote, urlsplit

from benteng.clock import Clock, system_clock
from benteng.errors import PolicyError
from benteng.store.contract import Auditor, Keeper, Operator, StepwiseConsumer, StepwiseProducer
from benteng.store.records import Symptom

if TYPE_CHECKING:
    from benteng.store.postgres.connection import Place as RemotePlace
    from benteng.store.sqlite.connection import Place

SUPPORTED = "sqlite:///relative.db or sqlite:////absolute/path.db"
_LATER = ("redis", "rediss", "valkey")


def default_dsn() -> str:
    """Return the address of the ledger in the user's state directory, outside every root that a cell may read."""
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else _home() / ".local" / "state"
    return f"sqlite:///{home / 'benteng' / 'benteng.db'}"


def open_producer(dsn: str, *, environment: str = "dev", clock: Clock = system_clock) -> StepwiseProducer:
    """Open the facet that admits jobs.

    All `open_` functions raise PolicyError for an address or environment that cannot be, StoreError for a file that is
    open to others, StoreUnavailable and StoreDamaged as their names say.
    """
    if is_postgres(dsn):
        from benteng.store.postgres.producer import PostgresProducer

        return PostgresProducer(_remote(dsn, environment))
    from benteng.store.sqlite.producer import SqliteProducer

    return SqliteProducer(_place(dsn, environment, clock))


def open_consumer(
    dsn: str,
    pool: str,
    *,
    environment: str = "dev",
    clock: Clock = system_clock,
    patience_seconds: float | None = None,
) -> StepwiseConsumer:
    """Open the facet of one worker of one pool.

    patience_seconds  how long a ledger on another host may keep a call waiting; None: as long as its login may take
    """
    if is_postgres(dsn):
        from benteng.store.postgres.consumer import PostgresConsumer

        return PostgresConsumer(_remote(dsn, environment, patience_seconds), pool)
    from benteng.store.sqlite.consumer import SqliteConsumer

    return SqliteConsumer(_place(dsn, environment, clock), pool)


def open_keeper(dsn: str, *, environment: str = "dev", clock: Clock = system_clock) -> Keeper:
    """Open the facet of what time does."""
    if is_postgres(dsn):
        from benteng.store.postgres.keeper import PostgresKeeper

        return PostgresKeeper(_remote(dsn, environment))
    from benteng.store.sqlite.keeper import SqliteKeeper

    return SqliteKeeper(_place(dsn, environment, clock))


def open_operator(dsn: str, *, environment: str = "dev", clock: Clock = system_clock) -> Operator:
    """Open the facet of a person."""
    if is_postgres(dsn):
        from benteng.store.postgres.operator import PostgresOperator

        return PostgresOperator(_remote(dsn, environment))
    from benteng.store.sqlite.operator import SqliteOperator

    return SqliteOperator(_place(dsn, environment, clock))


def open_auditor(dsn: str, *, environment: str = "dev", clock: Clock = system_clock) -> Auditor:
    """Open the facet that reads the log."""
    if is_postgres(dsn):
        from benteng.store.postgres.auditor import PostgresAuditor

        return PostgresAuditor(_remote(dsn, environment))
    from benteng.store.sqlite.auditor import SqliteAuditor

    return SqliteAuditor(_place(dsn, environment, clock))


def examine(dba_dsn: str) -> list[Symptom]:
    """Return what only the administrator of a PostgreSQL ledger sees. Raises StoreUnavailable, PolicyError."""
    if not is_postgres(dba_dsn):
        _refuse("the administrator's address is not that of a PostgreSQL database")
    from benteng.store.postgres.health import examine as look

    return look(dba_dsn)


def _home() -> Path:
    """Return this user's home; a user of a container, who has none, gets one that does not exist."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def is_postgres(dsn: str) -> bool:
    """Return whether an address names a PostgreSQL ledger: `postgresql://login@host/database`."""
    return urlsplit(dsn).scheme in {"postgres", "postgresql"}


def credential_files(dsn: str) -> list[Path]:
    """Return the files that open a ledger for whoever can read them: SQLite's own; password file and client key."""
    if not is_postgres(dsn):
        return [path_of(dsn)]
    named = parse_qs(urlsplit(dsn).query)
    home = _home()
    usual = {
        "passfile": os.environ.get("PGPASSFILE", str(home / ".pgpass")),
        "sslkey": os.environ.get("PGSSLKEY", str(home / ".postgresql" / "postgresql.key")),
    }
    return [Path(named.get(name, [default])[-1]).absolute() for name, default in usual.items()]


def credential_words(dsn: str) -> list[str]:
    """Return the texts that nobody but the holder of a ledger's address may have: the address, a password, a path."""
    if not is_postgres(dsn):
        return [dsn, str(path_of(dsn))]
    parts = urlsplit(dsn)
    named = parse_qs(parts.query).get("password", [])
    return [dsn, *(unquote(word) for word in (parts.password, *named) if word)]


def _remote(dsn: str, environment: str, patience_seconds: float | None = None) -> RemotePlace:
    # The server's clock decides; the address says which login, and so which facet, the server knows the caller as.
    from benteng.store.postgres.connection import Place as Remote

    return Remote(dsn, environment, patience_seconds)


def _place(dsn: str, environment: str, clock: Clock) -> Place:
    from benteng.store.sqlite.connection import Place
    from benteng.store.sqlite.file import make_directory

    path = path_of(dsn)
    if dsn == default_dsn():
        make_directory(path.parent)
    return Place(path, environment, clock)


def path_of(dsn: str) -> Path:
    """Return the absolute path that a SQLite address names. Raises PolicyError for any other address."""
    parts = urlsplit(dsn)
    if parts.scheme in _LATER:
        _refuse(f"{parts.scheme} ledgers are not in this version")
    if parts.scheme != "sqlite":
        _refuse("the address does not begin with a scheme that is known")
    if parts.netloc or parts.query or parts.fragment or len(parts.path) < 2:  # noqa: PLR2004  "/" and a name
        _refuse("the address names no file")
    path = unquote(parts.path[1:])
    if "\0" in path or path.startswith(":memory:"):
        _refuse("the address names no file")
    return Path(path).absolute()


def _refuse(reason: str) -> Never:
    # The address itself is not repeated: for other stores it carries a password.
    raise PolicyError("S-dsn", reason, fix=f"use {SUPPORTED}")
