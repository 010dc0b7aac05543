"""A session with the server whose every answer is awaited for a bounded time.

A server that is alive but does not answer (no synchronous standby, a lock, a disk that hangs) and a network that is
silent without a FIN look alike from here: keepalives notice neither in time for a lease. The client gives up, and what
is true is found by asking again.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.adapt import Transformer
from psycopg.generators import fetch_many, send
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from benteng.store.postgres.wire import Param

Row = dict[str, Any]
V = TypeVar("V")


class Session(psycopg.Connection[Row]):
    """A connection. `until`: when the answer that is awaited now is given up, by time.monotonic()."""

    until = float("inf")
    listens = False
    _is_direct = False
    _plans: dict[bytes, bytes]
    _topic = ""
    _told = False

    def keep_plans(self, backend: int) -> None:
        """Have a call that comes again planned once, unless a pooler stands between: then this session is only lent.

        backend  the process that answers; a pooler gave us another number to cancel by
        """
        self._is_direct = backend == self.info.backend_pid
        self._plans = {}

    def send(self, statement: bytes, parameters: Sequence[Param | None]) -> None:
        """Hand a statement to the server, which begins with it; `rows` waits for what it answers."""
        types = [each.oid if each else 0 for each in parameters]
        values, formats = [each and each.data for each in parameters], [Format.BINARY] * len(parameters)
        if name := self._plan(statement, types):
            self.pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        else:
            self.pgconn.send_query_params(statement, values, types, formats, Format.BINARY)
        self.wait(send(self.pgconn))

    def _plan(self, statement: bytes, types: Sequence[int]) -> bytes:
        """Return the name of the server's plan of a statement, which is made when it comes a second time; else b""."""
        name = self._plans.get(statement)
        if name is None and self._is_direct:
            self._plans[statement] = b""
        if name == b"":
            name = b"call_%d" % sum(map(bool, self._plans.values()))
            self.pgconn.send_prepare(name, statement, types)
            self.wait(send(self.pgconn))
            self._checked(ExecStatus.COMMAND_OK)
            self._plans[statement] = name
        return name or b""

    @property
    def is_busy(self) -> bool:
        """Whether a statement has begun whose answer nobody took."""
        return self.pgconn.transaction_status == TransactionStatus.ACTIVE

    def has_come(self) -> bool:
        """Take in what has come, and return whether `rows` would wait no more: for the answer, or for what is over."""
        if self.closed or time.monotonic() >= self.until:
            return True
        try:
            self.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return not self.pgconn.is_busy()

    def rows(self) -> list[Row]:
        """Wait for the answer to the statement that was sent. Raises psycopg.Error."""
        result = self._checked(ExecStatus.TUPLES_OK)
        names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
        loaders = Transformer(self)
        loaders.set_pgresult(result)
        return loaders.load_rows(0, result.ntuples, lambda values: dict(zip(names, values, strict=True)))

    def _checked(self, wanted: ExecStatus) -> PGresult:
        result = self.wait(fetch_many(self.pgconn))[-1]
        if result.status != wanted:
            raise psycopg.errors.error_from_result(result, encoding=self.info.encoding)
        return result

    def listen(self, topic: str) -> None:
        """Hear what is told about a topic, unless a pooler stands between."""
        if not self._is_direct:
            return
        self._topic = topic
        self.add_notify_handler(self._note)  # for those that come with an answer
        self.execute("listen benteng")
        self.listens = True

    def _note(self, said: psycopg.Notify) -> None:
        self._told = self._told or said.payload == self._topic

    def heard(self) -> bool:
        """Take in what has come, and return whether the topic was named. A session that ended counts as a hint."""
        if self.closed:
            return False
        try:
            self.pgconn.consume_input()
        except psycopg.OperationalError:
            return True  # look at once: that opens another session
        told, self._told = self._told, False
        while (said := self.pgconn.notifies()) is not None:
            told = told or said.extra == self._topic.encode()
        return told

    def wait(self, gen: Generator[Any, Any, V], *arguments: Any, **options: Any) -> V:
        """As Connection.wait, but raise OperationalError when the answer does not come in time."""
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, V]) -> Generator[Any, Any, V]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= self.until:
                    self.pgconn.finish()  # whoever waits behind it is not kept either
                    raise psycopg.OperationalError("no answer in time")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value
