"""A line on the supervisor's selector: heard when something comes, flushed when it takes what waits, lost when it ends.

Trust: nothing that is heard on it; who breaks its protocol is told as lost, with what was wrong.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from benteng.worker import wire
from benteng.worker.framing import Outbox


class Sender(Protocol):
    """Who has something to send on a line."""

    @property
    def outbox(self) -> Outbox:
        """What waits to be sent."""
        ...

    def flush(self) -> None:
        """Send what the line takes."""
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """What is done with a line: the time comes along.

    hear  take what has come. It raises EOFError or ConnectionError at the end, ProtocolError for what may not be said
    lost  the line is of no use any more: it ended, or that is what was wrong
    """

    hear: Callable[[float], None]
    lost: Callable[[wire.ProtocolError | None, float], None]


class Watched:
    """One line, until it is left."""

    __slots__ = ("_events", "_heard", "_left", "_selector", "_sender", "line")

    def __init__(self, selector: selectors.BaseSelector, line: socket.socket, sender: Sender, heard: Heard) -> None:
        self.line = line
        self._selector = selector
        self._sender = sender
        self._heard = heard
        self._left = False
        self._events = selectors.EVENT_READ
        selector.register(line, self._events, self._ready)
        self.refresh()

    def refresh(self) -> None:
        """Wait for room in the line as long as something waits to be sent; of one that was left for nothing."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._sender.outbox else 0)
        if events != self._events and not self._left:
            self._selector.modify(self.line, events, self._ready)
            self._events = events

    def leave(self) -> None:
        """Watch it no more; to be called before it is closed."""
        if not self._left:
            self._left = True
            self._selector.unregister(self.line)

    def _ready(self, mask: int, now: float) -> None:
        if self._left:  # by what was heard elsewhere a moment ago in the same round
            return
        if mask & selectors.EVENT_WRITE:
            self._sender.flush()
            self.refresh()
        if mask & selectors.EVENT_READ:
            self._hear(now)

    def _hear(self, now: float) -> None:
        try:
            self._heard.hear(now)
        except BlockingIOError:
            return
        except (EOFError, ConnectionError):
            self._heard.lost(None, now)
        except wire.ProtocolError as error:
            self._heard.lost(error, now)
