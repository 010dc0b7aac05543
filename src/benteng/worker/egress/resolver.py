"""Look names up in the background, and keep what was found for a while: the broker's loop never waits for DNS.

Threads do the blocking; a pipe tells the loop that answers came. Old answers serve while new ones are asked for.
Trust: nothing that DNS says; rules.py looks at each address at each use.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benteng import clock
from benteng.worker.egress.rules import Address, address_of

THREADS: Final = 4
FRESH_SECONDS: Final = 30.0
KEPT_SECONDS: Final = 300.0
FAILED_SECONDS: Final = 2.0
NAMES_MAX: Final = 4_096

Lookup = Callable[[str], tuple[Address, ...]]


@dataclass(slots=True)
class Found:
    """What a name meant at a moment; no address: it could not be looked up. `turn`: which one is next."""

    addresses: tuple[Address, ...]
    at: float
    turn: int = 0


class Resolver:
    """Names and what they mean."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        self._lookup = look_up if lookup is None else lookup
        self._found: dict[str, Found] = {}
        self._asked: set[str] = set()
        self._questions: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[str, tuple[Address, ...]]] = queue.SimpleQueue()
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True).start()

    def fileno(self) -> int:
        """Return the descriptor that can be read when answers came."""
        return self._pipe[0]

    def addresses(self, name: str) -> tuple[Address, ...] | None:
        """Return what a name means, another one first each time; None: not known yet, `take` will have it."""
        now = clock.boot_seconds()
        found = self._found.get(name)
        if found is None or now - found.at > (FRESH_SECONDS if found.addresses else FAILED_SECONDS):
            self._ask(name)
        if found is None or now - found.at > (KEPT_SECONDS if found.addresses else FAILED_SECONDS):
            return None
        found.turn += 1
        start = found.turn % max(1, len(found.addresses))
        return (*found.addresses[start:], *found.addresses[:start])

    def take(self) -> frozenset[str]:
        """Take in the answers that came; return their names."""
        try:
            os.read(self._pipe[0], 4096)
        except BlockingIOError:
            return frozenset()
        names = set[str]()
        while not self._answers.empty():
            name, addresses = self._answers.get()
            self._asked.discard(name)
            self._keep(name, addresses)
            names.add(name)
        return frozenset(names)

    def _keep(self, name: str, addresses: tuple[Address, ...]) -> None:
        """A failure does not replace what is still good: it is only asked again sooner."""
        now = clock.boot_seconds()
        old = self._found.get(name)
        if not addresses and old is not None and old.addresses and now - old.at < KEPT_SECONDS:
            return
        self._found.pop(name, None)
        if len(self._found) >= NAMES_MAX:
            del self._found[next(iter(self._found))]
        self._found[name] = Found(addresses, now)

    def _ask(self, name: str) -> None:
        if name not in self._asked:
            self._asked.add(name)
            self._questions.put(name)

    def _safely(self, name: str) -> tuple[Address, ...]:
        try:
            return self._lookup(name)
        except Exception:  # noqa: BLE001 - a thread that ended would answer nobody any more
            return ()

    def _work(self) -> None:
        while True:
            name = self._questions.get()
            self._answers.put((name, self._safely(name)))
            with contextlib.suppress(BlockingIOError):  # full of bytes that say the same
                os.write(self._pipe[1], b"\0")


def look_up(name: str) -> tuple[Address, ...]:
    """Return the addresses of a name as this host sees it, IPv4 first; none when it has none or cannot be asked."""
    try:
        found = socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_STREAM)  # bytes: no codec is loaded
    except (OSError, UnicodeError):
        return ()
    addresses = {address_of(str(entry[4][0]).partition("%")[0]): None for entry in found}
    return tuple(sorted((each for each in addresses if each is not None), key=lambda each: each.version))
