"""A session with the server whose every answer is awaited for a bounded time.

A server that is alive but does not answer (no synchronous standby, a lock, a disk that hangs) and a network that is
silent without a FIN look alike from here: keepalives notice neither in time for a lease. The client gives up, and what
is true is found by asking again. It speaks with libpq itself: a call costs a poll or two, and no machinery.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row

from benteng.store.postgres.wire import Param

Row = dict[str, Any]

CANCEL_SECONDS = 5.0
"""How long an interrupted caller waits for the server to stop what it was asked."""

READS = 4


class Session(psycopg.Connection[tuple[Any, ...]]):
    """A connection. `until`: when the answer that is awaited now is given up, by time.monotonic()."""

    until = 0.0
    listens = False
    _is_direct = False
    _topic = b""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn, tuple_row)
        self._plans: dict[bytes, bytes] = {}
        self._columns: dict[bytes, list[str]] = {}
        self._sent = b""
        self._loaders = Transformer(self.adapters)
        self._reading = _polling(pgconn, select.POLLIN)
        self._writing = _polling(pgconn, select.POLLIN | select.POLLOUT)

    def keep_plans(self, backend: int) -> None:
        """Have a call that comes again planned once, unless a pooler stands between: then this session is only lent.

        backend  the process that answers; a pooler gave us another number to cancel by
        """
        self._is_direct = backend == self.info.backend_pid

    @property
    def is_busy(self) -> bool:
        """Whether a statement has begun whose answer nobody took."""
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE

    @property
    def is_over(self) -> bool:
        """Whether the server has ended a session that was idle: then nothing was asked, and nothing is unknown."""
        if self.closed:
            return True
        for _ in range(READS):  # its last words first, then the end of the stream
            if not self._reading.poll(0):
                return False
            try:
                self.pgconn.consume_input()
            except psycopg.OperationalError:
                return True
        return True

    def ask(self, statement: bytes, *parameters: Param | None) -> list[Row]:
        """Send a statement and wait for its rows. Raises psycopg.Error."""
        self.send(statement, parameters)
        return self.rows()

    def send(self, statement: bytes, parameters: Sequence[Param | None]) -> None:
        """Hand a statement to the server, which begins with it; `rows` waits for what it answers."""
        types = [each.oid if each else 0 for each in parameters]
        values, formats = [each and each.data for each in parameters], [Format.BINARY] * len(parameters)
        self._sent = name = self._plan(statement, types)
        if name:
            self.pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        else:
            self.pgconn.send_query_params(statement, values, types, formats, Format.BINARY)
        self._flush()

    def _plan(self, statement: bytes, types: Sequence[int]) -> bytes:
        """Return the name of the server's plan of a statement, which is made when it comes a second time; else b""."""
        name = self._plans.get(statement)
        if name is None and self._is_direct:
            self._plans[statement] = b""
        if name == b"":
            name = b"call_%d" % sum(map(bool, self._plans.values()))
            self.pgconn.send_prepare(name, statement, types)
            self._flush()
            self._checked(ExecStatus.COMMAND_OK)
            self._plans[statement] = name
        return name or b""

    def has_come(self) -> bool:
        """Take in what has come, and return whether `rows` would wait no more: for the answer, or for what is over."""
        if self.closed or time.monotonic() >= self.until:
            return True
        try:
            self.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return not self.pgconn.is_busy()

    def rows(self, make: Callable[[Sequence[Any]], Any] | None = None) -> list[Any]:
        """Wait for the answer to the statement that was sent. Raises psycopg.Error.

        make  what becomes of the values of each row; None: a dict by the names of the columns
        """
        result = self._checked(ExecStatus.TUPLES_OK)
        self._loaders.set_pgresult(result)
        return self._loaders.load_rows(0, result.ntuples, make or self._by_name(result))

    def _by_name(self, result: PGresult) -> Callable[[Sequence[Any]], Row]:
        names = self._columns.get(self._sent) or self._named(result)
        return lambda values: dict(zip(names, values, strict=True))

    def _named(self, result: PGresult) -> list[str]:
        """Return the names of the columns; those of a plan never change."""
        names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
        if self._sent:
            self._columns[self._sent] = names
        return names

    def _checked(self, wanted: ExecStatus) -> PGresult:
        try:
            result = self._result()
        except KeyboardInterrupt:
            self._give_up()
            raise
        if result.status != wanted:
            raise psycopg.errors.error_from_result(result, encoding=self.info.encoding)
        return result

    def _result(self) -> PGresult:
        """Wait for all that the server says, and return the last of it. Why it ends a session comes before the end."""
        last = None
        try:
            while (result := self._next_result()) is not None:
                last = result
        except psycopg.OperationalError:
            if last is None or last.status != ExecStatus.FATAL_ERROR:
                raise
        if last is None:
            raise psycopg.OperationalError("no answer")
        return last

    def _next_result(self) -> PGresult | None:
        while self.pgconn.is_busy():
            self._await(self._reading)
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def _flush(self) -> None:
        while self.pgconn.flush():
            if self._await(self._writing) & select.POLLIN:
                self.pgconn.consume_input()

    def _await(self, ready: select.poll) -> int:
        """Wait until the server says or takes something. Raises OperationalError when it does not in time."""
        for _, events in ready.poll(max(0.0, self.until - time.monotonic()) * 1_000):
            return events
        raise psycopg.OperationalError("no answer in time")

    def _give_up(self) -> None:
        """Have the server stop what it was asked, for whoever waits was interrupted; end the session if it does not."""
        self.until = min(self.until, time.monotonic() + CANCEL_SECONDS)
        try:
            self.cancel_safe(timeout=CANCEL_SECONDS)
            self._result()
        except psycopg.Error:
            self.pgconn.finish()
        except KeyboardInterrupt:
            self.pgconn.finish()
            raise

    def listen(self, topic: str) -> None:
        """Hear what is told about a topic, unless a pooler stands between."""
        if not self._is_direct:
            return
        self._topic = topic.encode()
        self.send(b"listen benteng", ())
        self._checked(ExecStatus.COMMAND_OK)
        self.listens = True

    def heard(self) -> bool:
        """Take in what has come, and return whether the topic was named. A session that ended counts as a hint."""
        if self.closed:
            return False
        try:
            self.pgconn.consume_input()
        except psycopg.OperationalError:
            return True  # look at once: that opens another session
        told = False
        while (said := self.pgconn.notifies()) is not None:
            told = told or said.extra == self._topic
        return told


def _polling(pgconn: PGconn, events: int) -> select.poll:
    ready = select.poll()
    ready.register(pgconn.socket, events)
    return ready
