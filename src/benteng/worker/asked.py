"""The supervisor's side of a warden: ask it for zygotes, looks and signals, and believe what its kernel stamps.

The line is a socketpair from `benteng supervise`, or a connection to the socket of `benteng cell`. The kernel tells
with each message who speaks (SCM_CREDENTIALS), also from another container. When the line ends, nobody can say any more
whether the cells are dead.
Trust: a warden runs no user code, but shares a uid with some; see wire.PERMITTED.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from benteng import clock
from benteng.errors import BentengError, PolicyError
from benteng.worker import framing, wire
from benteng.worker.framing import Inbox, Outbox
from benteng.worker.wire import Line

CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: pid, uid, gid (unix(7))."""

ANSWER_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.1
Connect = Callable[[], socket.socket]


class Asked:
    """A hatchery behind a line.

    connect  opens the line; raises OSError when there is none now
    env      names of variables that the zygote is to have, out of the warden's
    uid      whom warden, zygote and cells must be; None: anybody
    """

    def __init__(self, connect: Connect, env: tuple[str, ...], uid: int | None = None) -> None:
        self.line: socket.socket | None = None
        self.outbox = Outbox()
        self.apart = False
        self.pid = 0
        self.children = frozenset[int]()
        self._connect = connect
        self._env = env
        self._uid = uid
        self._inbox = Inbox(Line.FROM_WARDEN)
        self._held: frozenset[str] | None = None
        self._full: set[int] = set()

    def holds(self, patience_seconds: float) -> frozenset[str]:
        """Wait for the warden, and return the layers that hold on its host. Raises WardenAwayError, PolicyError."""
        until = clock.boot_seconds() + patience_seconds
        why = "nobody answers"
        while (left := until - clock.boot_seconds()) > 0:
            try:
                self._open()
                if self._wait_for(wire.Holds, until) and self._held is not None:
                    return self._held
            except wire.ProtocolError as error:
                raise PolicyError("W-peer", str(error), field="cell", fix="start both sides as their users") from None
            except DesertedError:
                break
            except OSError as error:
                why = os.strerror(error.errno or 0)
            self.close()
            select.select([], [], [], min(left, RETRY_SECONDS))
        raise WardenAwayError(f"no warden of the pool's cells: {why}")

    def hatch(self, theirs: socket.socket) -> bool:
        """Ask for a zygote; the answer is Hatched. Raises OSError: nobody is there."""
        self._open()
        self._say(wire.Hatch(self._env), os.dup(theirs.fileno()))
        return False

    def employ(self, theirs: socket.socket) -> None:
        """Ask for a broker. Whether it is there its own line tells."""
        self._say(wire.Employ(), os.dup(theirs.fileno()))

    def _open(self) -> None:
        if self.line is None:
            self.line = self._connect()
            self.line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.line.setblocking(False)
            self._inbox, self.outbox = Inbox(Line.FROM_WARDEN), Outbox()
            self._say(wire.Examine())

    def check(self, pidfd: int, pid: int) -> None:
        """Believe nothing yet: the warden looks at what the handle means before it does anything with it."""

    def look(self, cell: int, pidfd: int, *, layers: bool) -> None:
        """Ask what is seen of a cell; the answer is Seen."""
        self._say(wire.Look(cell, layers), os.dup(pidfd))

    def signal(self, pidfd: int, number: int) -> None:
        """Ask to signal a cell and its group."""
        self._say(wire.Signal(number), os.dup(pidfd))

    def measure(self, cells: Mapping[int, tuple[int, int]]) -> Collection[int]:
        """Ask for a measurement, and return the cells that the last one found."""
        if cells:
            self._say(wire.Measure(tuple((cell, *bounds) for cell, bounds in cells.items())))
        found, self._full = self._full, set()
        return found & cells.keys()

    def drop(self, cell: int, attempt: int | None = None) -> None:
        """Ask to delete a directory."""
        self._say(wire.Drop(cell, attempt))

    def sweep(self) -> bool:
        """Nothing: the warden sweeps by itself."""
        return False

    def hear(self) -> Iterator[Any]:
        """Yield what was answered. Raises EOFError, ProtocolError, BlockingIOError, ConnectionError."""
        if self.line is None:
            raise EOFError
        self._receive(self.line)
        for message, _ in self._inbox.messages():
            match message:
                case wire.Holds(layers):
                    self._compare(self._with_uid(layers))
                case wire.Full(cells):
                    self._full.update(cells)
                    continue
                case wire.Hatched(pid):
                    self.pid = pid
                case wire.Seen(cell, layers, below, threads):
                    yield wire.Seen(cell, tuple(self._with_uid(layers)), below, threads)
                    continue
                case _:
                    pass
            yield message

    def _compare(self, layers: frozenset[str]) -> None:
        """Take note of what holds there. A host that holds less than the one that was examined is another one."""
        if self._held is not None and not self._held <= layers:
            raise wire.ProtocolError("the host of the cells holds less than the one that was examined")
        self._held = self._held or layers

    def _with_uid(self, layers: Iterable[str]) -> frozenset[str]:
        """Return layers as a warden sees them, but for the uid: that is what the kernel says of the warden's own."""
        return frozenset(layers) - {"own_uid"} | ({"own_uid"} if self.apart else set[str]())

    def flush(self) -> None:
        """Send what the line takes. One that broke is noticed when it is read."""
        if self.line is not None:
            with contextlib.suppress(ConnectionError):
                for number in self.outbox.flush(self.line):
                    os.close(number)

    def stop(self, patience_seconds: float) -> bool:
        """Ask for the end of the zygote, and wait for the answer for a bounded time; without one, hang up."""
        self.pid = 0
        self._say(wire.Cull(patience_seconds))
        try:
            gone = self._wait_for(wire.Gone, clock.boot_seconds() + patience_seconds + ANSWER_SECONDS)
        except wire.ProtocolError:
            gone = False
        if not gone:
            self.close()
        return gone

    def close(self) -> None:
        """Hang up: the warden ends everything then."""
        for number in self.outbox.abandon():
            os.close(number)
        if self.line is not None:
            self.line.close()
            self.line = None

    def _wait_for(self, kind: type[wire.Gone | wire.Holds], until: float) -> bool:
        """Tell whether such an answer came in time. Raises ProtocolError."""
        while self.line is not None and (left := until - clock.boot_seconds()) > 0:
            self.flush()
            poll = select.poll()
            poll.register(self.line, select.POLLIN | (select.POLLOUT if self.outbox else 0))
            try:
                if poll.poll(int(1000 * left) + 1) and any(isinstance(each, kind) for each in self.hear()):
                    return True
            except BlockingIOError:
                continue
            except (EOFError, OSError):
                return False
        return False

    def _say(self, message: Any, *descriptors: int) -> None:
        if self.line is None:
            for number in descriptors:
                os.close(number)
            return
        self.outbox.put(framing.frame(message), descriptors)
        self.flush()

    def _receive(self, line: socket.socket) -> None:
        data, ancillary, _, _ = line.recvmsg(self._inbox.room, socket.CMSG_SPACE(CREDENTIALS.size))
        if not data:
            raise EOFError
        uids = [
            CREDENTIALS.unpack(value)[1]
            for level, kind, value in ancillary
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(value) == CREDENTIALS.size
        ]
        if not uids or (self._uid is not None and uids != [self._uid]):
            raise wire.ProtocolError("the warden is not the pool's user")
        self.apart = uids[0] not in {0, os.getuid()}
        self._inbox.accept(data)


def connecting(address: str) -> Connect:
    """Return what opens the line to a warden: `unix:/path`, or `fd:3` for one that was inherited.

    An inherited line is there once. Raises PolicyError for another address.
    """
    kind, _, place = address.partition(":")
    if kind == "unix" and place.startswith("/"):
        return lambda: _connected(place)
    if kind == "fd":
        once = [inherited(address)]
        return lambda: _taken(once)
    raise PolicyError("W-cell", "this is no address of a warden", field="cell", fix='write it as "unix:/full/path"')


def inherited(address: str) -> socket.socket:
    """Return the socket that `fd:N` names. Raises PolicyError."""
    number = address.removeprefix("fd:")
    try:
        return socket.socket(fileno=int(number))
    except (ValueError, OSError):
        raise PolicyError("W-cell", "no such line was inherited", fix="start it by `benteng supervise`") from None


class WardenAwayError(BentengError):
    """The warden of a pool's cells did not come in time."""


class DesertedError(OSError):
    """The warden that came with this process is gone, and no other will come."""


def _taken(once: list[socket.socket]) -> socket.socket:
    if not once:
        raise DesertedError
    return once.pop()


def _connected(path: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.settimeout(CONNECT_SECONDS)
        line.connect(path)
    except OSError:
        line.close()
        raise
    return line
