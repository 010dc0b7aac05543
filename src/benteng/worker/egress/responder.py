"""DNS over TCP for cells, out of the list of names: it asks nobody, and knows no real address.

A cell reaches it only through the broker, which says which job each connection is of; any other is closed.
Trust: nothing that is asked.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benteng import clock
from benteng.worker.egress.loop import Loop
from benteng.worker.egress.names import QUESTION_BYTES_MAX, Names, answer

IDLE_SECONDS: Final = 10.0
CONNECTIONS_MAX: Final = 128
QUESTIONS_MAX: Final = 16
"""Questions on one connection; a client that has more makes another."""


@dataclass(slots=True, eq=False)
class Talk:
    """One connection of a job, known by its handle."""

    sock: socket.socket
    handle: int
    until: float
    questions: int = 0
    buffer: bytes = b""


class Responder:
    """The server behind the virtual address. `refused` hears of a name that is not listed, with the job's handle."""

    def __init__(self, names: Names, refused: Callable[[int, str], None], loop: Loop) -> None:
        self._names = names
        self._refused = refused
        self._loop = loop
        self._expected: dict[tuple[str, int], int] = {}
        self._talks: dict[int, Talk] = {}
        self._server = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS_MAX)
        self._server.setblocking(False)
        loop.watch(self._server.fileno(), self._accept)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.getsockname()[:2]
        return str(host), int(port)

    def expect(self, sock: socket.socket, handle: int) -> None:
        """Note that a connection from there is of this job."""
        if len(self._expected) >= CONNECTIONS_MAX:
            del self._expected[next(iter(self._expected))]
        host, port = sock.getsockname()[:2]
        self._expected[str(host), int(port)] = handle

    def sweep(self, now: float) -> None:
        """Close what says nothing."""
        for number, talk in tuple(self._talks.items()):
            if talk.until <= now:
                self._close(number)

    @property
    def talks(self) -> bool:
        """Whether there are connections."""
        return bool(self._talks)

    def _accept(self, events: int) -> None:
        """Take a connection if it is one that was expected."""
        del events
        try:
            sock, peer = self._server.accept()
        except OSError:
            return
        handle = self._expected.pop((str(peer[0]), int(peer[1])), None)
        if handle is None or len(self._talks) >= CONNECTIONS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        number = sock.fileno()
        self._talks[number] = Talk(sock, handle, clock.boot_seconds() + IDLE_SECONDS)
        self._loop.watch(number, lambda _: self._hear(number))

    def _hear(self, number: int) -> None:
        """Answer what can be read; a connection that says anything else is over."""
        talk = self._talks[number]
        try:
            data = talk.sock.recv(4096)
            talk.buffer += data
            over = not data
            while not over and (question := _cut(talk)) is not None:
                over = not self._answer(talk, question)
        except (OSError, ValueError):
            over = True
        if over:
            self._close(number)

    def _answer(self, talk: Talk, question: bytes) -> bool:
        found = answer(question, self._names)
        if found.refused:
            self._refused(talk.handle, found.refused)
        frame = len(found.data).to_bytes(2, "big") + found.data
        talk.questions += 1
        talk.until = clock.boot_seconds() + IDLE_SECONDS
        return talk.sock.send(frame) == len(frame) and talk.questions < QUESTIONS_MAX

    def _close(self, number: int) -> None:
        self._loop.unwatch(number)
        self._talks.pop(number).sock.close()


def _cut(talk: Talk) -> bytes | None:
    """Return the next whole question. Raises ValueError for one that is too long."""
    if len(talk.buffer) < 2:  # noqa: PLR2004 - RFC 1035 4.2.2: two bytes of length first
        return None
    size = int.from_bytes(talk.buffer[:2], "big")
    if size > QUESTION_BYTES_MAX:
        raise ValueError("the question is too long")
    if len(talk.buffer) < 2 + size:
        return None
    question, talk.buffer = talk.buffer[2 : 2 + size], talk.buffer[2 + size :]
    return question
