"""What comes on a line that brings descriptors along: messages in their order, and descriptors apart, in theirs.

Messages may come before they are asked for, several in one piece: what has come is looked at before more is awaited.
Trust: the peer, as far as wire.PERMITTED lets it speak.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Final

from benteng.worker.framing import Inbox
from benteng.worker.wire import Line

PIECE_BYTES_MAX: Final = 65_536


class Intake:
    """The receiving end. `line`: what may be said now;  `descriptors_max`: how many may come with one piece."""

    def __init__(self, sock: socket.socket, line: Line, descriptors_max: int) -> None:
        self.descriptors: list[int] = []
        self._sock = sock
        self._inbox = Inbox(line)
        self._descriptors_max = descriptors_max

    def permit(self, line: Line) -> None:
        """Let the peer say what this state of the line permits, from the next message on."""
        self._inbox.line = line

    def receive(self) -> bool:
        """Receive once; False at the end of the stream. Raises OSError."""
        room = min(self._inbox.room, PIECE_BYTES_MAX)
        data, descriptors, _, _ = socket.recv_fds(self._sock, room, self._descriptors_max)
        self.descriptors.extend(descriptors)
        self._inbox.accept(data)
        return bool(data)

    def messages(self) -> Iterator[Any]:
        """Yield what has come whole. Raises ProtocolError."""
        for message, _ in self._inbox.messages():
            yield message

    def next(self) -> Any | None:
        """Return the next message, and wait for it; None at the end of the stream. Raises OSError, ProtocolError."""
        while True:
            for message in self.messages():
                return message
            if not self.receive():
                return None
