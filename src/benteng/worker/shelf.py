"""Attempts that lie before a serial cell: it takes one whenever one has ended, and we take back what it has not taken.

Waking a process costs more than a quick job does, so a cell that is woken may make several. A socket of packets holds
them, and we keep the cell's end as well: the kernel gives each packet to one reader, the cell or us, never to both.
What the cell says in between comes back the same way and wakes nobody; its last word comes on its line.
Trust: nothing that the cell says. It shares the flags of its end with us, so no call of ours waits for what they say.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final

from benteng.worker import framing
from benteng.worker.flights import Flight
from benteng.worker.framing import INBOX_BYTES, Inbox
from benteng.worker.wire import Line

PIECES_MAX: Final = 9
"""So many may lie there, beside the one that the cell has: the kernel keeps ten packets unless it is told otherwise."""

SHELF_SECONDS: Final = 0.003
"""So long an attempt may lie before a busy cell, and again while half of them end in it; then others get it."""

WORDS_MAX: Final = 2 * (PIECES_MAX + 1)
PACKET_BYTES_MAX: Final = INBOX_BYTES
"""What is larger comes on the line alone, in either direction."""


class Shelf:
    """The shelf of one cell.

    theirs  the end that the cell gets a duplicate of
    type    what was put there last;  late: some of it lay there for too long
    """

    def __init__(self) -> None:
        self.type = ""
        self.late = False
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._inbox = Inbox(Line.CELL_READY)
        self._packets: dict[bytes, Flight] = {}

    @property
    def taken(self) -> list[Flight]:
        """What was put there and not taken back: the cell has it, once `take_back` has said that nothing is left."""
        return list(self._packets.values())

    @property
    def flowed(self) -> bool:
        """Whether what lay there was made without delay; False when nothing did."""
        return bool(self._packets) and not self.late

    def put(self, flights: Iterable[Flight]) -> list[Flight]:
        """Put flights there, and return those for which there was no room."""
        refused: list[Flight] = []
        for flight in flights:
            packet = b"".join(framing.grant_frames([flight.work()]))
            if refused or not self._send(packet):
                refused.append(flight)
            else:
                self.type = flight.grant.job.type
                self._packets[packet] = flight
        return refused

    def _send(self, packet: bytes) -> bool:
        if len(packet) > PACKET_BYTES_MAX:
            return False
        try:
            self._ours.send(packet, socket.MSG_DONTWAIT)
        except OSError:  # it is full, or the cell has shut it
            return False
        return True

    def take_back(self) -> list[Flight]:
        """Return the flights that still lay there: from now on the cell cannot have them.

        One of which the cell has spoken it has, whatever lies here: it may have read without taking.
        """
        flights: list[Flight] = []
        while self._packets and (packet := self._next()):
            flight = self._packets.get(packet)
            if flight is not None and not flight.started and flight.outcome is None:
                del self._packets[packet]
                flights.append(flight)
        return flights

    def _next(self) -> bytes:
        try:
            return self.theirs.recv(PACKET_BYTES_MAX, socket.MSG_DONTWAIT)
        except OSError:
            return b""

    def clear(self) -> None:
        """Note that everything that lay there has ended."""
        self._packets.clear()
        self.late = False

    def receive(self) -> Iterator[tuple[Any, bytes]]:
        """Yield what the cell has said here. Raises ProtocolError."""
        for _ in range(WORDS_MAX):  # whoever says more at a time is heard again later
            if not self._fill():
                return
            yield from self._inbox.messages()

    def _fill(self) -> bool:
        try:
            return self._inbox.fill(self._ours)
        except OSError:
            return False

    def close(self) -> None:
        """Give back its descriptors."""
        self._ours.close()
        self.theirs.close()
