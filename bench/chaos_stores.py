"""Where a chaos run keeps its jobs: a file, or a PostgreSQL server of its own that it can hurt. See chaos.py."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[1]
FACETS = ("producer", "consumer", "keeper", "operator", "auditor")


class Place(Protocol):
    """A ledger, seen from beside it: nothing of the measured path."""

    origin: str
    """Whom the ledger authenticates the producer as."""
    version: str

    def settings(self) -> str:
        """Return the lines of benteng.toml that name it."""
        ...

    def dsn(self, facet: str) -> str:
        """Return the address for a facet."""
        ...

    def completed(self) -> int:
        """Count the completed operations."""
        ...

    def is_free(self) -> bool:
        """Return whether nobody who is frozen now keeps others from writing."""
        ...

    def hurt(self, kind: str) -> None:
        """Put in a fault of the server: terminate, restart."""
        ...

    def calls(self) -> dict[str, int]:
        """Return how often each verb was called, as far as the ledger counts."""
        ...

    def close(self) -> None:
        """Take it away."""
        ...


class File:
    """The embedded ledger."""

    def __init__(self, root: Path, pool: str) -> None:
        del pool
        self._path = root / "ledger" / "benteng.db"
        self._path.parent.mkdir(mode=0o700)
        self.origin = f"os:{os.getuid()}"
        self.version = f"sqlite {sqlite3.sqlite_version}"

    def settings(self) -> str:
        """See Place."""
        return f'dsn = "{self.dsn("")}"'

    def dsn(self, facet: str) -> str:
        """See Place: one file for all."""
        del facet
        return f"sqlite:///{self._path}"

    def completed(self) -> int:
        """See Place."""
        with contextlib.closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("select count(*) from operation where state = 'completed'").fetchone()[0])

    def is_free(self) -> bool:
        """See Place: SQLite has one writer, and frozen inside a transaction it would stop everybody."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=0.5, isolation_level=None)) as connection:
            try:
                connection.execute("begin immediate")
                connection.execute("rollback")
            except sqlite3.OperationalError:
                return False
        return True

    def hurt(self, kind: str) -> None:
        """See Place: there is no server."""
        raise ValueError(kind)

    def calls(self) -> dict[str, int]:
        """See Place: it counts none."""
        return {}

    def close(self) -> None:
        """See Place."""


class Server:
    """A PostgreSQL server that really writes, and a login for each service."""

    def __init__(self, root: Path, pool: str) -> None:
        del root
        sys.path.insert(0, str(ROOT))
        from benteng.store.postgres import migrate, roles
        from tests.support.servers import PostgresServer

        self._server = PostgresServer.launch(durable=True, settings={"track_functions": "pl"})
        self._name = self._server.create_database()
        self.origin = "c_producer"
        self.version = f"postgresql {self._server.version()}"
        dba = self._server.dsn(dbname=self._name)
        migrate.up(dba, "dev")
        for facet in FACETS:
            roles.create_login(dba, roles.Login(f"c_{facet}", facet, pool if facet == "consumer" else ""))

    def settings(self) -> str:
        """See Place."""
        return "[dsn]\n" + "\n".join(f'{facet} = "{self.dsn(facet)}"' for facet in FACETS)

    def dsn(self, facet: str) -> str:
        """See Place."""
        return self._server.dsn(f"c_{facet}", self._name)

    def completed(self) -> int:
        """See Place."""
        return self._count("select count(*) from benteng.operation where ended = 'completed'")

    def is_free(self) -> bool:
        """See Place: a verb is one statement, so that a frozen client has no open transaction."""
        return True

    def hurt(self, kind: str) -> None:
        """See Place."""
        if kind == "restart":
            self._server.restart("immediate")
            return
        self._count(
            "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity"
            " where datname = current_database() and application_name like 'benteng-%' order by random() limit 1) a"
        )

    def calls(self) -> dict[str, int]:
        """See Place."""
        with self._server.connect(dbname=self._name) as connection:
            query = "select funcname, calls from pg_stat_user_functions where schemaname = 'benteng_v1' order by 1"
            return dict(connection.execute(query).fetchall())

    def close(self) -> None:
        """See Place."""
        self._server.close()

    def _count(self, query: str) -> int:
        with self._server.connect(dbname=self._name) as connection:
            (count,) = connection.execute(query.encode()).fetchone() or (0,)
        return int(count)


STORES: dict[str, type[File | Server]] = {"sqlite": File, "postgres": Server}
