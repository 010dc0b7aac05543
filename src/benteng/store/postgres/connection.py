"""One connection to a PostgreSQL ledger as one login, and the calls of verbs that it carries.

Each verb is one statement in a transaction of its own. A lost connection is opened again; the same call is repeated
only when that is safe, else StoreUnavailable says that nobody knows, and what is true is found by asking. May be used
from several threads, one call at a time, and never across a fork.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import ceil
from typing import Any

import psycopg

from benteng.errors import BentengError, FacetError, PolicyError, StoreError, StoreUnavailable
from benteng.store.durability import Durability, refuse_weaker
from benteng.store.postgres import faults, health, wire
from benteng.store.postgres.roles import LIMITS
from benteng.store.postgres.session import Row, Session
from benteng.store.postgres.wire import Param, Types
from benteng.store.records import Facet

PROTOCOL = 1
"""What this client speaks. The ledger says which range it understands."""

TRIES = 4
CONNECT_SECONDS = 5
PATIENCE_SECONDS = 5.0
"""How much longer than its login's statement_timeout a call is waited for: the server gives up first, and says so."""

SETTINGS: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # a silent cut without FIN is noticed
}
_ALIVE: weakref.WeakSet[Ledger] = weakref.WeakSet()
_ABANDONED: list[object] = []
_PROTOCOL = b"""
select
  p.*,
  current_setting('fsync') as fsync,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('synchronous_standby_names') as standbys,
  pg_backend_pid() as backend
from benteng_v1.protocol() p
"""
_TYPES = b"""
select t.typname, t.oid::bigint as oid, t.typarray::bigint as array
from pg_catalog.pg_type t
join pg_catalog.pg_namespace n on n.oid = t.typnamespace
where n.nspname = 'benteng_v1'
  and t.typtype = 'c'
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a ledger is, with the login in its address, and the environment that it must be of.

    patience_seconds  how long one call may wait for its answer, repetitions included; None: as long as the server may
    """

    dsn: str
    environment: str
    patience_seconds: float | None = None


INTERRUPTED = "the wait for the ledger's answer was interrupted: this may have been stored, or not. Ask again"


@dataclass(slots=True)
class Call:
    """One call of a verb: what is asked, on which session it is under way, and what came of it.

    repeatable  a second call after a lost answer changes nothing more
    resumed     this is such a second call: the server may need a moment to be there again
    durability  the class that the ledger must have, on the very connection that carries the call
    make        what becomes of the values of a row, of whose many columns each is used; None: a dict by their names
    early       have its rows sent before it is committed, for `foresee`
    """

    verb: str
    parameters: tuple[Param | None, ...]
    repeatable: bool = False
    resumed: bool = False
    durability: Durability = Durability.D0
    make: Callable[[Sequence[Any]], Any] | None = None
    early: bool = False
    sent: Session | None = None
    said: list[Any] | BentengError = field(default_factory=lambda: StoreUnavailable(INTERRUPTED))


class Ledger:
    """The PostgreSQL store as one facet sees it. The facets' verbs are in the classes derived from this one."""

    facet: Facet
    waits = False
    """Whether a busy ledger is like one that is away: for workers and keepers, which come again anyway."""

    def __init__(self, place: Place, pool: str = "") -> None:
        self.place = place
        self.pool = pool
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection: Session | None = None
        self._under_way: Call | None = None
        self._closed = False
        self._types = Types({})
        self._login = ""
        self.durability = Durability.D0
        """The class of the ledger as the server was set when this connection began."""
        self._patience_seconds = place.patience_seconds or LIMITS[self.facet].statement_seconds + PATIENCE_SECONDS
        self._until = time.monotonic() + self._patience_seconds
        with self._lock:
            self._connected()
        _ALIVE.add(self)

    @property
    def origin(self) -> str:
        """The login that the server has authenticated."""
        return self._login

    def close(self) -> None:
        """Close the connection. Safe to call twice, and in a forked child."""
        if os.getpid() != self._pid:
            self.abandon()
            return
        with self._lock:
            self._finish()
            self._closed = True
            self._drop()

    def abandon(self) -> None:
        """Forget an inherited connection without a word to the server: it belongs to the parent."""
        if self._connection is not None:
            _ABANDONED.append(self._connection)
            self._connection = None

    def call(self, verb: str, *parameters: Param | None, repeatable: bool = False, resumed: bool = False) -> list[Row]:
        """Call a verb and return its rows; see `Call`."""
        return self.ask(Call(verb, parameters, repeatable, resumed))

    def ask(self, call: Call) -> list[Any]:
        """Begin a call and wait for its rows."""
        self.begin(call)
        return self.end(call)

    def begin(self, call: Call) -> None:
        """Hand a call to the server, and do not wait for its answer. The next call waits for it first."""
        with self._lock:
            self._finish()
            self._until = time.monotonic() + self._patience_seconds
            with suppress(Exception):  # what could not be sent is sent when the answer is asked for, or raises there
                call.sent = self._send(call)
            self._under_way = call

    def end(self, call: Call) -> list[Any]:
        """Wait for the rows of a call that was begun."""
        self._refuse_fork()
        with self._lock:
            if call is self._under_way:
                self._finish()
        if isinstance(call.said, Exception):
            raise call.said
        return call.said

    def foresee(self, call: Call) -> list[Any] | None:
        """Wait for the rows that `end` will return if they are committed; None: `end` has something else to say."""
        session = self.awaited(call)
        with self._lock, suppress(psycopg.Error):  # which `end` meets again
            return None if session is None else session.foresee(call.make)
        return None

    def awaited(self, call: Call) -> Session | None:
        """Return the session that an answer is still to come on; None when `end` would not wait, or ask anew."""
        return call.sent if call is self._under_way else None

    def _finish(self) -> None:
        """Wait for the end of the call that was begun last. An interruption leaves it unknown."""
        call, self._under_way = self._under_way, None
        if call is not None:
            try:
                call.said = self._tried(call)
            except BentengError as error:
                call.said = error

    def _tried(self, call: Call) -> list[Any]:
        resumed = call.resumed
        for left in range(TRIES - 1, -1, -1):
            left *= time.monotonic() < self._until  # noqa: PLW2901 - out of time is out of tries
            try:
                return self._ask(call)
            except StoreUnavailable:
                if not left or not resumed:
                    raise
            except psycopg.errors.FeatureNotSupported as error:  # a verb was replaced: the plan of its call is void
                self._drop()
                if not left:
                    raise faults.translated(error, waits=self.waits) from None
            except psycopg.Error as error:
                lost = self._forget_lost(error)
                resumed = resumed or (lost and call.repeatable)
                if not left or not (error.sqlstate in faults.AGAIN or (lost and call.repeatable)):
                    raise faults.translated(error, waits=self.waits) from None
            time.sleep(secrets.randbelow(50) / 1_000 * 4 ** (TRIES - 1 - left))
        raise AssertionError("unreachable: the last try returns or raises")

    def _forget_lost(self, error: psycopg.Error) -> bool:
        """Return whether the connection is gone, and give it up then."""
        lost = faults.is_lost(error)
        if lost:
            self._drop()
        return lost

    def _ask(self, call: Call) -> list[Any]:
        session, call.sent = call.sent or self._send(call), None
        return session.rows(call.make)

    def _send(self, call: Call) -> Session:
        session = self._connected()
        refuse_weaker(self.durability, call.durability)
        session.until = self._until
        session.send(_statement(call.verb, len(call.parameters)), call.parameters, early=call.early)
        return session

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError("this ledger was opened before a fork. Open it again in the child")

    def _connected(self) -> Session:
        self._refuse_fork()
        if self._closed:
            raise StoreError("this ledger is closed. Open it again")
        if self._connection is not None and (self._connection.is_busy or self._connection.is_over):
            self._drop()
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    @property
    def listening(self) -> Session | None:
        """The session, when it is open and hears hints."""
        session = self._connection
        return session if session is not None and session.listens and not session.closed else None

    def _open(self) -> Session:
        try:
            connection = Session.connect(
                self.place.dsn,
                autocommit=True,
                prepare_threshold=None,  # until it is known that no pooler stands between
                application_name=f"benteng-{self.facet}",
                connect_timeout=self._connect_seconds(),
                **SETTINGS,
            )
        except psycopg.Error as error:
            raise StoreUnavailable(f"cannot connect to the ledger ({type(error).__name__}). Try again later") from None
        try:
            self._recognise(connection)
        except psycopg.Error as error:
            connection.close()
            raise faults.translated(error, waits=True) from None
        except BentengError:
            connection.close()
            raise
        return connection

    def _connect_seconds(self) -> int:
        """Return libpq's limit for each address that a name has: at least its own least, 2 s."""
        return max(2, min(CONNECT_SECONDS, ceil(self._until - time.monotonic())))

    def _recognise(self, connection: Session) -> None:
        wire.register(connection)
        connection.until = self._until
        found = connection.ask(_PROTOCOL)
        if not found:
            raise StoreError("the ledger has no installation row. Run: benteng migrate up")
        row = found[0]
        if not row["oldest"] <= PROTOCOL <= row["newest"]:
            raise StoreError(
                f"the ledger speaks protocol {row['oldest']} to {row['newest']}, this benteng {PROTOCOL}. "
                "Upgrade the older one",
            )
        if row["facet"] != self.facet:
            raise FacetError(f"this login is no {self.facet}. Use the login of that facet")
        if row["pool"] and row["pool"] != self.pool:
            raise PolicyError("S-pool", "the login is of another pool", fix="use the login of the pool that is opened")
        if row["environment"] != self.place.environment:
            raise PolicyError(
                "S-environment",
                f"this ledger was made for environment {row['environment']!r}, not {self.place.environment!r}",
                fix="that is fixed when it is made: use another database, or set the environment that it has",
            )
        connection.keep_plans(row["backend"])
        self._login = row["login"]
        self.durability = health.durability(row)
        self._types = Types({each["typname"]: (each["oid"], each["array"]) for each in connection.ask(_TYPES)})

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@cache
def _statement(verb: str, count: int) -> bytes:
    """Return the call of a verb with as many arguments."""
    places = ", ".join(f"${number}" for number in range(1, count + 1))
    return f"select * from benteng_v1.{verb}({places})".encode()  # noqa: S608 - the verb is a word of this package


def _abandon_all() -> None:
    for ledger in list(_ALIVE):
        ledger.abandon()


os.register_at_fork(after_in_child=_abandon_all)
