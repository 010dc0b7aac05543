"""One connection to the embedded ledger, and the transactions that verbs are made of.

A writing verb is one `begin immediate` ... `commit`: it reads the clock once, draws fences from the installation, and
appends its audit records last. Whatever fails, nothing of it remains. The connection may be used from several threads,
one verb at a time, and never across a fork; it heals when the file was away and is back.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from benteng.audit import AuditRecord, Event
from benteng.clock import SECOND, Instant, microseconds
from benteng.errors import StoreDamaged, StoreError, StoreUnavailable
from benteng.store.durability import Durability
from benteng.store.records import Facet
from benteng.store.sqlite import audit, faults, file, hints
from benteng.store.sqlite.connection import Place, any_text, connect, own_origin, retried
from benteng.store.sqlite.facts import Facts, Known
from benteng.store.sqlite.statements import by_place, statements

Row = dict[str, Any]
"""One row of a statement, by column. What sqlite3 has for it looks for a name in all of them, column by column."""

Value = TypeVar("Value")
_Fetched = tuple[sqlite3.Cursor, list[tuple[Any, ...]]]

INSTANT_MAX: Instant = 1 << 56
"""The year 4253: an instant beyond it is a mistake, and sums with it would leave 64 bits."""

_INSTALLATION = statements("installation")
_AUDIT = statements("audit")
_HINT = statements("hint")
_ALIVE: weakref.WeakSet[Ledger] = weakref.WeakSet()
_ABANDONED: list[sqlite3.Connection] = []


class Tx:
    """One open transaction of one verb: where it stands in time, who asks, and what it has to say to the audit."""

    def __init__(self, connection: sqlite3.Connection, ledger: Ledger, row: Row, facts: Known) -> None:
        self._connection = connection
        self._known_now: Instant = row["now"]
        self._entries: list[audit.Entry] = []
        self._fence: int = row["fence"]
        self._seq: int = row["seq"]
        self.now: Instant = max(ledger.place.clock(), row["now"])
        self.environment: str = row["environment"]
        self.audit_key: bytes = row["audit_key"]
        self.origin = ledger.origin
        self.facet = ledger.facet
        self.memo: dict[tuple[str, ...], Any] = {}
        self.facts = facts

    @property
    def fence(self) -> int:
        """The last fence that was given out."""
        return self._fence

    def after(self, seconds: float) -> Instant:
        """Return the instant that lies so many seconds ahead; at most INSTANT_MAX, so that no sum leaves 64 bits."""
        return min(self.now + microseconds(min(seconds, INSTANT_MAX / SECOND)), INSTANT_MAX)

    def draw_fence(self) -> int:
        """Return the next fence of the installation. To be called after the resources of the attempt are decided."""
        self._fence += 1
        return self._fence

    @property
    def seq(self) -> int:
        """The last number in line that was given out."""
        return self._seq

    def draw_seq(self) -> int:
        """Return the next number in line of the installation: no two jobs ever have one, also when one is forgotten."""
        self._seq += 1
        return self._seq

    def all(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Return all rows of a statement that only reads."""
        return _named(_fetched(self._connection, sql, parameters or {}))

    def values(self, kind: Callable[..., Value], sql: str, parameters: Mapping[str, Any]) -> list[Value]:
        """Return all rows of a statement that only reads, each as a value of a kind whose fields are its columns."""
        return [kind(*row) for row in self.tuples(sql, parameters)]

    def tuples(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return all rows of a statement that only reads, each as its columns."""
        return _fetched(self._connection, sql, parameters)[1]

    def one(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Row | None:
        """Return the first row of a statement that only reads, or None."""
        rows = self.all(sql, parameters)
        return rows[0] if rows else None

    def changed(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Execute a statement that changes rows, and return what it gives back of them."""
        return _named(_fetched_any_text(self._connection, sql, parameters))

    def run(self, sql: str, parameters: Mapping[str, Any]) -> int:
        """Execute a statement and return how many rows it changed."""
        return self._connection.execute(sql, parameters).rowcount

    def many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> int:
        """Execute a statement once for each set of parameters, by place, and return how many rows that changed."""
        return self._connection.executemany(sql, parameters).rowcount

    def many_named(self, sql: str, parameters: Iterable[Mapping[str, Any]]) -> int:
        """Execute a statement once for each set of parameters, by name, and return how many rows that changed."""
        anonymous, placed = by_place(sql)
        return self.many(anonymous, map(placed, parameters))

    def note(self, event: Event, row: Row, **said: Any) -> None:
        """Say to the audit what happened to a job; `row` is the job's row as it was found."""
        job = audit.subject_of(row)
        self.note_of(event, job, tuple(said.items()), attempt=job.attempts, fence=job.fence)

    def note_of(self, event: Event, job: audit.Subject, said: audit.Said, *, attempt: int, fence: int) -> None:
        """Say to the audit what happened to a job, which is known by more than a row."""
        kind = audit.kind_of(event, self.origin, job.type, job.policy_sha256, job.origin, job.actor, said)
        self._entries.append(audit.entry_about(kind, job, self.audit_key, self.now, attempt, fence))

    def say(self, event: Event, **said: Any) -> None:
        """Say to the audit what happened to no job of the ledger, or to one that is only known by its id."""
        self._entries.append(audit.entry_of(AuditRecord(at_us=self.now, event=event, login=self.origin, **said)))

    def savepoint(self) -> Savepoint:
        """Undo what happens inside, and what it said to the audit, when it raises."""
        return Savepoint(self, self._connection, self._entries)

    @property
    def alive(self) -> bool:
        """False when SQLite has rolled the transaction back by itself (full disk, I/O error)."""
        return self._connection.in_transaction

    def finish(self, changes_before: int) -> set[str]:
        """Append the records, write clock and fence down if the verb has changed anything; return who is to be told."""
        if self._entries:
            self.many(_AUDIT["append"], audit.parameters(self._entries))
        if self._connection.total_changes != changes_before:
            self.run(_INSTALLATION["finish"], {"now": self.now, "fence": self._fence, "seq": self._seq})
        made = Counter([entry.ready for entry in self._entries if entry.ready])
        quiet = (self.one(_HINT["quiet"], {"type": name, "made": count}) for name, count in made.items())
        return {row["pool"] for row in quiet if row is not None}


class Savepoint:
    """A part of a transaction that is undone alone. A class: a turn has three, and a generator takes twice as long."""

    def __init__(self, tx: Tx, connection: sqlite3.Connection, entries: list[audit.Entry]) -> None:
        self._tx = tx
        self._connection = connection
        self._entries = entries
        self._said = len(entries)

    def __enter__(self) -> None:
        self._connection.execute("savepoint inner_part")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None and not self._connection.in_transaction:
            return  # SQLite itself has rolled everything back
        if kind is not None:
            self._connection.execute("rollback to inner_part")
            del self._entries[self._said :]
            self._tx.memo.clear()
            self._tx.facts.clear()
        self._connection.execute("release inner_part")


class Ledger:
    """The embedded store as one facet sees it. The facets' verbs are in the classes derived from this one."""

    facet: Facet

    def __init__(self, place: Place) -> None:
        self.place = place
        self.origin_name = own_origin()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._facts = Facts(self.facet)
        self._file: file.Identity = (0, 0)
        self._id = ""
        self._fence_seen = 0
        self._closed = False
        with self._lock:
            self._open(create=True)
        _ALIVE.add(self)

    @property
    def origin(self) -> str:
        """`os:<uid>` of this process: what the operating system has authenticated."""
        return self.origin_name

    @property
    def durability(self) -> Durability:
        """What the connection really has: D1 when each commit is synced to this disk."""
        from benteng.store.sqlite.health import durability

        with self.reading() as tx:
            return durability(tx)

    @property
    def is_own(self) -> bool:
        """Whether this process opened it; a forked child did not."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """Close the connection. Safe to call twice, and in a forked child."""
        if not self.is_own:
            self.abandon()
            return
        with self._lock:
            self._closed = True
            self._drop()

    def abandon(self) -> None:
        """Forget an inherited connection without closing it: closing here could take the parent's log away."""
        if self._connection is not None:
            _ABANDONED.append(self._connection)
            self._connection = None

    @contextmanager
    def writing(self) -> Generator[Tx]:
        """Run one verb: all of it is committed, or nothing."""
        with self._turn() as connection, self._transaction(connection, "begin immediate") as tx:
            changes = connection.total_changes
            yield tx
            pools = tx.finish(changes)
            self._check_file()
            connection.execute("commit")
            self._fence_seen = tx.fence
            hints.ring(self.place.path, pools)

    @contextmanager
    def reading(self) -> Generator[Tx]:
        """Read one consistent state."""
        with self._turn() as connection, self._transaction(connection, "begin") as tx:
            yield tx
            connection.execute("commit")

    @contextmanager
    def _turn(self) -> Generator[sqlite3.Connection]:
        if not self.is_own:
            raise StoreError("this ledger was opened before a fork. Open it again in the child")
        with self._lock:
            if self._closed:
                raise StoreError("this ledger is closed. Open it again")
            self._heal()
            if self._connection is None:
                raise StoreUnavailable(f"the ledger {self.place.path} is not open. Try again")
            yield self._connection

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection, begin: str) -> Generator[Tx]:
        try:
            row = _begin(connection, begin)
            self._recognise(row)
            yield Tx(connection, self, row, self._facts.known(connection))
        except sqlite3.Error as error:
            self._undo(connection, gone=faults.code(error) in faults.AWAY)
            raise faults.translated(error, self.place.path) from error
        except BaseException:
            self._undo(connection, gone=False)
            raise

    def _undo(self, connection: sqlite3.Connection, *, gone: bool) -> None:
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except sqlite3.Error:
            gone = True
        if gone:
            self._drop()

    def _heal(self) -> None:
        """Open the file again when the connection was given up, or when another file lies there."""
        if self._connection is not None and file.identity(self.place.path) != self._file:
            self._drop()
        if self._connection is None:
            self._open(create=False)

    def _open(self, *, create: bool) -> None:
        connection, self._file = connect(self.place, self.facet, create=create)
        try:
            row = _begin(connection, "begin")
            connection.execute("commit")
            self._recognise(row)
        except sqlite3.Error as error:
            connection.close()
            raise faults.translated(error, self.place.path) from error
        except BaseException:
            connection.close()
            raise
        self._connection, self._facts = connection, Facts(self.facet)

    def _recognise(self, row: Row) -> None:
        """Refuse another ledger, an older copy, or a fence set back by hand: numbers would be given out twice."""
        if self._id and self._id != row["id"]:
            raise StoreDamaged(f"another ledger lies at {self.place.path} now. Stop and look")
        if row["fence"] < self._fence_seen:
            raise StoreDamaged(f"the fence of {self.place.path} has gone back: an older copy? Raise its epoch first")
        self._id = row["id"]
        self._fence_seen = row["fence"]

    def _check_file(self) -> None:
        if file.identity(self.place.path) != self._file:
            raise StoreUnavailable(f"the ledger {self.place.path} was moved or deleted. Put it back, then try again")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _begin(connection: sqlite3.Connection, begin: str) -> Row:
    """Open a transaction and read the installation; the read is what takes the snapshot of a deferred one."""

    def ask() -> Row | None:
        connection.execute(begin)
        try:
            return next(iter(_named(_fetched(connection, _INSTALLATION["begin"], {}))), None)
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("rollback")
            raise

    row = retried(ask)
    if row is None:
        raise StoreDamaged("the installation row is missing")
    return row


def _fetched(connection: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> _Fetched:
    """Return the rows of a statement that only reads. Asks again when a text in them is no UTF-8, which is rare."""
    try:
        cursor = connection.execute(sql, parameters)
        return cursor, cursor.fetchall()
    except sqlite3.OperationalError as error:
        if faults.code(error):
            raise
    return _fetched_any_text(connection, sql, parameters)


def _fetched_any_text(connection: sqlite3.Connection, sql: str, parameters: Mapping[str, Any]) -> _Fetched:
    connection.text_factory = any_text
    try:
        cursor = connection.execute(sql, parameters)
        return cursor, cursor.fetchall()
    finally:
        connection.text_factory = str


def _named(fetched: _Fetched) -> list[Row]:
    cursor, rows = fetched
    names = [column[0] for column in cursor.description] if rows else []
    return [dict(zip(names, row, strict=True)) for row in rows]


def _abandon_all() -> None:
    for ledger in list(_ALIVE):
        ledger.abandon()


os.register_at_fork(after_in_child=_abandon_all)
