"""A session with the server whose every answer is awaited for a bounded time.

A server that is alive but does not answer (no synchronous standby, a lock, a disk that hangs) and a network that is
silent without a FIN look alike from here: keepalives notice neither in time for a lease. The client gives up, and what
is true is found by asking again. It speaks with libpq itself, in its pipeline mode: a call costs a poll or two, and no
machinery. There what a statement says and its commit are two answers, and the first may be asked for early.
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
        self._said: PGresult | None = None
        self._rows: list[Any] | None = None
        self._loaders = Transformer(self.adapters)
        self._reading = _polling(pgconn, select.POLLIN)
        self._writing = _polling(pgconn, select.POLLIN | select.POLLOUT)
        pgconn.enter_pipeline_mode()

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

    def send(self, statement: bytes, parameters: Sequence[Param | None], *, early: bool = False) -> None:
        """Hand a statement to the server, which begins with it; `rows` waits for what it answers.

        early  have the rows sent before they are committed, for `foresee`: that is one more thing to be woken by
        """
        types = [each.oid if each else 0 for each in parameters]
        values, formats = [each and each.data for each in parameters], [Format.BINARY] * len(parameters)
        self._sent = name = self._plan(statement, types)
        if name:
            self.pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        else:
            self.pgconn.send_query_params(statement, values, types, formats, Format.BINARY)
        if early:
            self.pgconn.send_flush_request()
        self._end_transaction()

    def _plan(self, statement: bytes, types: Sequence[int]) -> bytes:
        """Return the name of the server's plan of a statement, which is made when it comes a second time; else b""."""
        name = self._plans.get(statement)
        if name is None and self._is_direct:
            self._plans[statement] = b""
        if name == b"":
            name = b"call_%d" % sum(map(bool, self._plans.values()))
            self.pgconn.send_prepare(name, statement, types)
            self._end_transaction()
            self._checked(ExecStatus.COMMAND_OK)
            self._plans[statement] = name
        return name or b""

    def has_come(self) -> bool:
        """Take in what has come, and return whether the next wait would be none: for `foresee`, then for `rows`."""
        if self.closed or time.monotonic() >= self.until:
            return True
        try:
            self.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return not self.pgconn.is_busy()

    def foresee(self, make: Callable[[Sequence[Any]], Any] | None = None) -> list[Any] | None:
        """Wait for what `rows` will return if it is committed; None: it will raise. See `rows`."""
        if self._said is None:
            self._said = self._patiently(self._first)
        if self._rows is None and self._said.status == ExecStatus.TUPLES_OK:
            self._loaders.set_pgresult(self._said)
            self._rows = self._loaders.load_rows(0, self._said.ntuples, make or self._by_name(self._said))
        return self._rows

    def rows(self, make: Callable[[Sequence[Any]], Any] | None = None) -> list[Any]:
        """Wait for the answer to the statement that was sent, and for its commit. Raises psycopg.Error.

        make  what becomes of the values of each row; None: a dict by the names of the columns
        """
        rows = self.foresee(make)
        self._checked(ExecStatus.TUPLES_OK)
        return rows or []

    def _by_name(self, result: PGresult) -> Callable[[Sequence[Any]], Row]:
        names = self._columns.get(self._sent) or self._named(result)
        return lambda values: dict(zip(names, values, strict=True))

    def _named(self, result: PGresult) -> list[str]:
        """Return the names of the columns; those of a plan never change."""
        names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
        if self._sent:
            self._columns[self._sent] = names
        return names

    def _checked(self, wanted: ExecStatus) -> None:
        """Wait until the server has committed what was sent. Raises psycopg.Error."""
        result = self._patiently(self._last)
        if result.status != wanted:
            error = psycopg.errors.error_from_result(result, encoding=self.info.encoding)
            raise error if error.sqlstate else psycopg.OperationalError("no answer")  # libpq's word, not the server's

    def _patiently(self, wait: Callable[[], PGresult]) -> PGresult:
        try:
            return wait()
        except KeyboardInterrupt:
            self._give_up()
            raise

    def _first(self) -> PGresult:
        """Wait for what the statement itself says."""
        said = None
        while (result := self._next_result()) is not None:
            said = result
            if said.status == ExecStatus.FATAL_ERROR:  # nothing may follow it but the end of the session
                break
        return self._something(said)

    def _last(self) -> PGresult:
        """Wait for all that the server says, and return its error, or the last. Why a session ends comes first."""
        said, self._said, self._rows = self._said, None, None
        try:
            while (result := self._next_result()) is None or result.status != ExecStatus.PIPELINE_SYNC:
                if result is None and not self.is_busy:
                    raise psycopg.OperationalError("no answer")
                if said is None or said.status != ExecStatus.FATAL_ERROR:
                    said = result or said
        except psycopg.OperationalError:
            if said is None or said.status != ExecStatus.FATAL_ERROR:
                raise
        return self._something(said)

    def _something(self, said: PGresult | None) -> PGresult:
        if said is None:
            raise psycopg.OperationalError("no answer")
        return said

    def _next_result(self) -> PGresult | None:
        while self.pgconn.is_busy():
            self._await(self._reading)
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def _end_transaction(self) -> None:
        """Have the server commit, and say so: PIPELINE_SYNC is what it says."""
        self.pgconn.pipeline_sync()
        self._flush()

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
            self._last()
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
