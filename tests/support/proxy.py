"""A TCP proxy that fails on command: delay, silence without FIN, reset, an answer that is lost.

Silence keeps the bytes, as a network does whose packets are sent again: after `heal` they arrive. Each fault counts for
open and for new connections, until the next one. Threads, because the clients under test block.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65536
UP, DOWN = "up", "down"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close sends RST


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the way: seconds each chunk takes, directions that are silent, answers that are lost.

    one_alone  after one lost answer all is well again
    """

    delay_seconds: float = 0.0
    silent: frozenset[str] = frozenset()
    answers_lost: bool = False
    one_alone: bool = False


class Proxy:
    """A way to one server. `upstream`: (host, port), or the path of a unix socket. Use as a context manager."""

    def __init__(self, upstream: tuple[str, int] | Path) -> None:
        self._upstream = upstream
        self._fault = Fault()
        self._changed = threading.Condition()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._closed = False
        self.lost = threading.Event()
        """Set when an answer was lost."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- faults -------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Pass everything on, also what was kept back."""
        self._set(Fault())

    def delay(self, seconds: float) -> None:
        """Let each chunk take so long, in each direction."""
        self._set(replace(self._fault, delay_seconds=seconds))

    def silence(self, *directions: str) -> None:
        """Let nothing through in these directions (UP to the server, DOWN from it; none named: both), nor any FIN."""
        self._set(replace(self._fault, silent=frozenset(directions or (UP, DOWN))))

    def lose_answers(self, *, one: bool = False) -> None:
        """Let requests through; whoever is sent an answer (`one`: the first) gets a RST instead, and sets `lost`."""
        self.lost.clear()
        self._set(replace(self._fault, answers_lost=True, one_alone=one))

    def reset(self) -> None:
        """End every open connection with a RST to both sides. New ones are served."""
        for pair in self._open():
            self._end(pair, reset=True)

    def close(self) -> None:
        """Stop listening and end every connection. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        self.reset()

    def _set(self, fault: Fault) -> None:
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    # --- the way ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._join(client)

    def _join(self, client: socket.socket) -> None:
        try:
            server = self._connect()
        except OSError:
            client.close()
            return
        pair = (client, server)
        with self._changed:
            self._pairs.add(pair)
        for source, target, direction in ((client, server, UP), (server, client, DOWN)):
            threading.Thread(target=self._pump, args=(pair, source, target, direction), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._upstream, tuple):
            return socket.create_connection(self._upstream)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(str(self._upstream))
        except OSError:
            server.close()
            raise
        return server

    def _pump(
        self, pair: tuple[socket.socket, socket.socket], source: socket.socket, target: socket.socket, direction: str
    ) -> None:
        reset = False
        with contextlib.suppress(OSError):  # the other pump, or a reset, ended the pair
            while not reset:
                chunk = source.recv(CHUNK_BYTES)
                fault = self._passage(direction)
                if not chunk:
                    break
                reset = fault.answers_lost and direction == DOWN
                if not reset:
                    target.sendall(chunk)
                elif fault.one_alone:
                    self.heal()  # before anybody can come again
        self._end(pair, reset=reset)
        if reset:
            self.lost.set()

    def _passage(self, direction: str) -> Fault:
        """Wait until this direction is open, and return what is wrong with it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or direction not in self._fault.silent)
            fault = self._fault
        if fault.delay_seconds:
            time.sleep(fault.delay_seconds)  # this is the fault itself
        return fault

    def _open(self) -> list[tuple[socket.socket, socket.socket]]:
        with self._changed:
            return list(self._pairs)

    def _end(self, pair: tuple[socket.socket, socket.socket], *, reset: bool) -> None:
        with self._changed:
            if pair not in self._pairs:  # the first to end it decides how: a FIN must not overtake a RST
                return
            self._pairs.discard(pair)
        for side in pair:
            with contextlib.suppress(OSError):
                quietly = reset and side.family != socket.AF_UNIX
                if quietly:
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                # Wakes the pump that reads here: while it reads, close would send nothing. Reading ends without a FIN.
                side.shutdown(socket.SHUT_RD if quietly else socket.SHUT_RDWR)
            side.close()
