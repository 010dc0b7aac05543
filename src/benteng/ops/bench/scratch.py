"""A scratch ledger on the user's own store, with what a benchmark reads of it beside the verbs. Gone afterwards.

SQLite: a directory beside the user's file, so on the same disk. PostgreSQL: a database of its own on the user's server,
with a login for each facet, made and dropped by the address of an administrator (BENTENG_DBA_DSN).
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from benteng.config import Config
from benteng.ops.exits import Exit, Fault
from benteng.policy import Tier
from benteng.store.open import default_dsn, is_postgres
from benteng.store.records import Facet

ACTOR = "svc:bench"
DBA_DSN = "BENTENG_DBA_DSN"
POOLS = tuple(tier.value for tier in Tier)


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows that the ledger holds. `audit`: records of jobs; those of workers and switches are not counted."""

    operations: int
    completed: int
    audit: int

    def since(self, before: Counts) -> Counts:
        """Return how many more there are than before."""
        return Counts(self.operations - before.operations, self.completed - before.completed, self.audit - before.audit)


class Ledger(ABC):
    """A scratch ledger, and what a benchmark reads of it beside the verbs."""

    name: str

    @abstractmethod
    def addresses(self) -> dict[str, str]:
        """Return the address for each facet, and `consumer.POOL` for each pool."""

    @abstractmethod
    def counts(self) -> Counts:
        """Count rows; exactly, not by an estimate."""

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """Return what the durability and the speed of commits depend on, as the server has it for a producer."""

    @abstractmethod
    def insert_bare(self, rows: list[tuple[str, bytes]]) -> None:
        """Insert rows into a table without anything, by one commit: what a queue without hardening would do."""

    @abstractmethod
    def close(self) -> None:
        """Remove everything."""


_COUNT = (
    "select (select count(*) from {0}operation), (select count(*) from {0}operation where state = 'completed'), "
    "(select count(*) from {0}audit where {1})"
)


class SqliteScratch(Ledger):
    """A file in a directory of its own, beside the user's."""

    def __init__(self, dsn: str) -> None:
        beside = Path(dsn.removeprefix("sqlite:///")).parent
        beside.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root = Path(tempfile.mkdtemp(prefix="benteng-bench-", dir=beside))
        self._path = self._root / "queue.db"
        self._bare: sqlite3.Connection | None = None
        self.name = "sqlite"

    def addresses(self) -> dict[str, str]:
        """See Ledger.addresses."""
        return {"": f"sqlite:///{self._path}"}

    def counts(self) -> Counts:
        """See Ledger.counts."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
            return Counts(*connection.execute(_COUNT.format("", "coalesce(job, job_id) is not null")).fetchone())

    def settings(self) -> dict[str, str]:
        """See Ledger.settings."""
        from benteng.store.open import open_producer

        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
            journal = connection.execute("pragma journal_mode").fetchone()[0]
        with closing(open_producer(f"sqlite:///{self._path}")) as producer:
            durability = producer.durability
        synchronous = "full" if durability >= "D1" else "below full"
        return {
            "version": sqlite3.sqlite_version,
            "journal_mode": journal,
            "synchronous": synchronous,
            "durability": durability,
        }

    def insert_bare(self, rows: list[tuple[str, bytes]]) -> None:
        """See Ledger.insert_bare."""
        if self._bare is None:
            self._bare = sqlite3.connect(self._root / "bare.db", isolation_level=None)
            for statement in (
                "pragma journal_mode = wal",
                "pragma synchronous = full",
                "create table job (id text primary key, payload blob)",
            ):
                self._bare.execute(statement)
        self._bare.execute("begin immediate")
        self._bare.executemany("insert into job values (?, ?)", rows)
        self._bare.execute("commit")

    def close(self) -> None:
        """See Ledger.close."""
        if self._bare is not None:
            self._bare.close()
        shutil.rmtree(self._root)


class PostgresScratch(Ledger):
    """A database of its own, and a login for each facet and pool."""

    def __init__(self, dba: str, passwords: Path) -> None:
        self._dba = dba
        self._passwords = passwords
        self._database = f"benteng_bench_{secrets.token_hex(6)}"
        self._logins: list[str] = []
        self._bare: Any = None
        self.name = "postgresql"
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        from psycopg import sql

        from benteng.store.postgres import migrate, roles

        with self._administer() as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(self._database)))
            connection.execute(sql.SQL("revoke all on database {} from public").format(sql.Identifier(self._database)))
        own = self._address(self._dba_user, self._database, own=False)
        migrate.up(own, "dev")
        roles.install(own)
        lines: list[str] = []
        for facet, pool in [*((f, "") for f in ("producer", "keeper", "operator")), *(("consumer", p) for p in POOLS)]:
            name, password = self._login(facet, pool), secrets.token_urlsafe(24)
            speaks = [roles.Speech(actor, "*") for actor in ("", ACTOR)] if facet == "producer" else []
            roles.create_login(own, roles.Login(name, facet, pool), password, speaks)
            self._logins.append(name)
            lines.append(f"*:*:*:{name}:{password}\n")
        groups = sql.SQL(", ").join(sql.Identifier(roles.group(facet)) for facet in roles.FACET_VERBS)
        with self._administer() as connection:
            connection.execute(
                sql.SQL("grant connect on database {} to {}").format(sql.Identifier(self._database), groups)
            )
        self._passwords.write_text("".join(lines))
        self._passwords.chmod(0o600)

    def _login(self, facet: str, pool: str = "") -> str:
        return f"{self._database}_{pool or facet}"

    def addresses(self) -> dict[str, str]:
        """See Ledger.addresses."""
        facets = {
            facet: self._address(self._login(facet), self._database) for facet in ("producer", "keeper", "operator")
        }
        pools = {f"consumer.{pool}": self._address(self._login("consumer", pool), self._database) for pool in POOLS}
        return facets | pools

    def counts(self) -> Counts:
        """See Ledger.counts."""
        with self._administer(self._database) as connection:
            row = connection.execute(_COUNT.format("benteng.", "job_id is not null").encode()).fetchone()
        return Counts(*row or (0, 0, 0))

    def settings(self) -> dict[str, str]:
        """See Ledger.settings."""
        import psycopg

        names = (
            "server_version",
            "fsync",
            "synchronous_commit",
            "synchronous_standby_names",
            "full_page_writes",
            "shared_buffers",
        )
        with psycopg.connect(self.addresses()["producer"], autocommit=True) as connection:
            found = connection.execute(
                "select name, current_setting(name) from unnest(%s::text[]) name", [list(names)]
            ).fetchall()
        return dict(found)

    def insert_bare(self, rows: list[tuple[str, bytes]]) -> None:
        """See Ledger.insert_bare."""
        if self._bare is None:
            self._bare = self._administer(self._database)
            self._bare.execute("create table public.bare (id uuid primary key, payload bytea)")
        ids, payloads = [each[0] for each in rows], [each[1] for each in rows]
        self._bare.execute(
            "insert into public.bare select * from unnest(%b::uuid[], %b::bytea[])", [ids, payloads], prepare=True
        )

    def close(self) -> None:
        """See Ledger.close."""
        from psycopg import sql

        if self._bare is not None:
            self._bare.close()
        with self._administer() as connection:
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(self._database))
            )
            for name in self._logins:
                connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))

    @property
    def _dba_user(self) -> str:
        from psycopg.conninfo import conninfo_to_dict

        return str(conninfo_to_dict(self._dba).get("user", ""))

    def _administer(self, database: str = "") -> Any:
        import psycopg

        options: dict[str, Any] = {"dbname": database} if database else {}
        return psycopg.connect(self._dba, autocommit=True, **options)

    def _address(self, user: str, database: str, *, own: bool = True) -> str:
        """Return the administrator's address with another user and database; `own`: a login that we made."""
        from psycopg.conninfo import conninfo_to_dict

        found: dict[str, str] = {key: str(value) for key, value in conninfo_to_dict(self._dba).items()}
        password = found.pop("password", "")
        found = {key: value for key, value in found.items() if key not in ("user", "dbname", "passfile")}
        if own:
            found["passfile"] = str(self._passwords)
        secret = f":{quote(password, safe='')}" if password and not own else ""
        return f"postgresql://{quote(user, safe='')}{secret}@/{database}?{urlencode(found, quote_via=quote)}"


def scratch(config: Config, passwords: Path) -> Ledger:
    """Make a scratch ledger on the store that a configuration names. Raises Fault when there is no administrator."""
    dsn = config.dsns.get(Facet.PRODUCER, "") or default_dsn()
    if not is_postgres(dsn):
        return SqliteScratch(dsn)
    dba = os.environ.get(DBA_DSN, "")
    if not dba:
        raise Fault(
            Exit.CONFIG, "a scratch database needs an administrator", fix=f"set {DBA_DSN} to a superuser's address"
        )
    return PostgresScratch(dba, passwords)
