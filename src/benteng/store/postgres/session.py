"""A session with the server whose every answer is awaited for a bounded time.

A server that is alive but does not answer (no synchronous standby, a lock, a disk that hangs) and a network that is
silent without a FIN look alike from here: keepalives notice neither in time for a lease. The client gives up, and what
is true is found by asking again.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

Row = dict[str, Any]
V = TypeVar("V")


class Session(psycopg.Connection[Row]):
    """A connection. `until`: when the answer that is awaited now is given up, by time.monotonic()."""

    until = float("inf")

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
