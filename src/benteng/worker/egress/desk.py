"""The supervisor's side of a pool's broker: hand it the listener and the jobs, hear what they did.

A broker lives as long as the zygote whose filter asks it. One that dies, breaks the protocol or does not answer a ping
is told as lost; then nothing of the pool may go on without it.
Trust: nothing that it says, but that it is bounded: it has looked at what cells sent it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benteng.worker import framing, wire
from benteng.worker.asked import Connect
from benteng.worker.framing import Inbox, Outbox
from benteng.worker.pool import Pool
from benteng.worker.watched import Heard, Watched
from benteng.worker.wire import Line

PING_SECONDS: Final = 1.0
SILENT_SECONDS_MAX: Final = 10.0
NOBODY: Final = 65_534
"""Who a broker becomes when the worker is root and its pool does not say."""


@dataclass(frozen=True, slots=True)
class Ears:
    """Who hears what a broker says.

    listening   it answers what the zygote's filter asks
    registered  a job may connect, from this time on;  used: what a dropped job did
    lost        it is gone, why and when
    """

    listening: Callable[[], None]
    registered: Callable[[int, float], None]
    used: Callable[[wire.Used], None]
    lost: Callable[[str, float], None]


class Desk:
    """One broker at a time."""

    def __init__(self, pool: Pool, selector: selectors.BaseSelector, ears: Ears, connect: Connect) -> None:
        self._pool = pool
        self._connect = connect
        self._selector = selector
        self._ears = ears
        self._watched: Watched | None = None
        self._inbox = Inbox(Line.BROKER_READY)
        self.outbox = Outbox()
        self._ping_at = self._silent_since = 0.0

    @property
    def up(self) -> bool:
        """Whether there is a broker."""
        return self._watched is not None

    def start(self, now: float) -> None:
        """Have a broker. Raises OSError when there can be none now, and DesertedError when there will be none."""
        ours = self._connect()
        ours.setblocking(False)
        self._inbox, self.outbox = Inbox(Line.BROKER_READY), Outbox()
        self._ping_at, self._silent_since = now + PING_SECONDS, now
        self._watched = Watched(self._selector, ours, self, Heard(self._hear, self._lost))
        self._say(self._terms())

    def _terms(self) -> wire.Open:
        pool = self._pool
        uid, gid = (NOBODY, NOBODY) if pool.broker_uid is None else (pool.broker_uid, pool.broker_gid)
        return wire.Open(pool.egress, pool.egress_connects_per_job, uid, gid)

    def stop(self) -> None:
        """Hang up: a broker ends with its line."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.leave()
            watched.line.close()
        for number in self.outbox.abandon():
            os.close(number)

    def forward(self, listener: int) -> None:
        """Give the broker the zygote's listener, which is closed here."""
        self._say(wire.Listen(), listener)

    def register(self, handle: int, pidfd: int) -> None:
        """Let a cell connect for a job, once the broker says so."""
        self._say(wire.Register(handle), os.dup(pidfd))

    def drop(self, handle: int) -> None:
        """Let nothing connect for a job any more, and ask what it did."""
        self._say(wire.Forget(handle))

    def tick(self, now: float) -> None:
        """Ask whether it is there."""
        if self._watched is None:
            return
        if now - self._silent_since > SILENT_SECONDS_MAX:
            self._ears.lost("does not answer", now)
        elif now >= self._ping_at:
            self._ping_at = now + PING_SECONDS
            self._say(wire.Ping())

    def _say(self, message: wire.Open | wire.Listen | wire.Register | wire.Forget | wire.Ping, *numbers: int) -> None:
        self.outbox.put(framing.frame(message), numbers)
        self.flush()
        if self._watched is not None:
            self._watched.refresh()

    def flush(self) -> None:
        """Send what the line takes."""
        if self._watched is None:
            return
        with contextlib.suppress(ConnectionError):  # noticed when the line is read
            for number in self.outbox.flush(self._watched.line):
                os.close(number)

    def _hear(self, now: float) -> None:
        if self._watched is None or not self._inbox.fill(self._watched.line):
            raise EOFError
        self._silent_since = now
        for message, _ in self._inbox.messages():
            self._take(message, now)

    def _lost(self, error: wire.ProtocolError | None, now: float) -> None:
        self._ears.lost("ended" if error is None else "broke the protocol", now)

    def _take(self, message: object, now: float) -> None:
        match message:
            case wire.Listening():
                self._ears.listening()
            case wire.Registered(handle):
                self._ears.registered(handle, now)
            case wire.Used():
                self._ears.used(message)
            case wire.Pong():
                return
            case _:
                raise wire.ProtocolError("not for a supervisor")
