"""The supervisor's side of a zygote: start it clean, compare what it imported with what was reviewed, ask it for cells.

The zygote gets a chosen environment, one descriptor and the name of the app; nothing of the store. A pidfd that it
hands over is believed only if it means a child of the zygote.
Trust: nothing that a zygote says; it has run the app's module code.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from benteng.policy import Tier, TypePolicy
from benteng.worker import framing, wire
from benteng.worker.blocked import Bounds
from benteng.worker.cells import Cell
from benteng.worker.egress.names import Names
from benteng.worker.framing import Inbox, Outbox
from benteng.worker.hatchery import Hatchery
from benteng.worker.pool import Pool
from benteng.worker.sandbox import roots
from benteng.worker.sandbox.programs import Programs
from benteng.worker.wire import Configure, Line

DESCRIPTORS_MAX = 16


class NurseryState(StrEnum):
    """down: no process; starting: it imports; ready: it makes cells."""

    DOWN = "down"
    STARTING = "starting"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Nest:
    """What a pool's zygote is started with.

    app    `module:attribute`;  paths: directories that are put first on sys.path;  cwd: where it is imported
    artifacts  directory of artifact files, or ""
    secrets  what no cell may read, also if it lies among the app's files
    programs  what its cells may start, and all that they may read then; of a pool without a list: nothing
    covers  what its LOW cells are not to see;  needs: layers that cells must have beside what their tier requires
    shut   no type of the pool is LOW: the zygote is shut in before it imports the app
    """

    pool: Pool
    app: str
    paths: tuple[str, ...]
    cwd: str
    artifacts: str
    programs: Programs = field(default_factory=Programs)
    covers: tuple[str, ...] = ()
    needs: Mapping[Tier, frozenset[str]] = field(default_factory=dict[Tier, frozenset[str]])
    shut: bool = False
    secrets: tuple[Path, ...] = ()

    def configure(self, *, apart: bool) -> Configure:
        """Return what the zygote is told. `apart`: its uid has no other files than the pool's."""
        pool, programs = self.pool, self.programs
        listed, readable = (programs.listed, programs.read) if programs.run else self._readable()
        return Configure(
            app=self.app,
            paths=self.paths,
            cwd=self.cwd,
            start=pool.start,
            artifacts=self.artifacts,
            uid=pool.uid,
            gid=pool.gid,
            read=(*readable, *((self.artifacts,) if self.artifacts else ())),
            listed=listed,
            write=pool.write,
            waive=pool.waive,
            shut=self.shut,
            own_uid=apart,
            programs=programs.run,
            covers=self.covers,
            names=tuple(Names(pool.rules).files().items()) if pool.egress else (),
        )

    def _readable(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        listed, readable = roots.application(self.paths, self.secrets)
        return listed, (*readable, *self.pool.read)

    def bounds(self, told: Configure) -> Bounds:
        """Return what cells made by that zygote may touch, by real paths and by those that were given."""
        read = (*roots.LIBRARIES, *roots.DATA, *roots.python(), *told.read, *roots.readable(told.read))
        return Bounds(
            pool=self.pool.name,
            read=told.read if told.programs else read,
            write=(*told.write, *roots.outermost(told.write), *roots.DEVICES),
            secrets=tuple(str(path) for each in self.secrets for path in (each, each.resolve())),
            programs=(*self.pool.exec, *told.programs),
            own_uid=told.own_uid,
        )


class Nursery:
    """One zygote at a time. `bounds`: what its cells may touch."""

    def __init__(self, nest: Nest, hatchery: Hatchery) -> None:
        self.state = NurseryState.DOWN
        self.line: socket.socket | None = None
        self.outbox = Outbox()
        self.bounds = Bounds(nest.pool.name)
        self._nest = nest
        self._hatchery = hatchery
        self._inbox = Inbox(self._first_state, wire.ZYGOTE_BYTES_MAX)
        self._descriptors: list[int] = []

    @property
    def _first_state(self) -> Line:
        """A zygote whose pool has `egress` hands over its listener before it may say anything else."""
        return Line.ZYGOTE_SHUTTING if self._nest.pool.egress else Line.ZYGOTE_STARTING

    def start(self) -> socket.socket:
        """Start a zygote and return its line. Raises OSError when there can be none now."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                there = self._hatchery.hatch(theirs)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self.line, self.outbox = ours, Outbox()
        self._inbox = Inbox(self._first_state, wire.ZYGOTE_BYTES_MAX)
        self.state = NurseryState.STARTING
        if there:
            self.configure()
        return ours

    def configure(self) -> None:
        """Tell the zygote what it is to be."""
        told = self._nest.configure(apart=self._hatchery.apart)
        self.bounds = self._nest.bounds(told)
        self.say(told)

    def ready(self, report: bytes) -> dict[str, TypePolicy]:
        """Take its report and return the policies of its registry. Raises ProtocolError."""
        try:
            policies = msgspec.json.decode(report, type=dict[str, TypePolicy])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise wire.ProtocolError("the zygote's report cannot be read") from None
        self.state = NurseryState.READY
        self._inbox.line = Line.ZYGOTE_READY
        return policies

    def listener(self) -> int:
        """Take the listener that it handed over. Raises ProtocolError."""
        if not self._descriptors:
            raise wire.ProtocolError("a listener without its descriptor")
        return self._descriptors.pop(0)

    def brokered(self) -> None:
        """Let it import: its sockets have a broker."""
        self._inbox.line = Line.ZYGOTE_STARTING
        self.say(wire.Brokered())

    def spawn(self, theirs: socket.socket, message: wire.Spawn) -> None:
        """Ask for a cell. Its end of the line is sent along and closed here."""
        self.outbox.put(framing.frame(message), (theirs.detach(),))
        self.flush()

    def say(self, message: Configure | wire.Brokered | wire.Guard | wire.End) -> None:
        """Send one message."""
        self.outbox.put(framing.frame(message))
        self.flush()

    def flush(self) -> None:
        """Send what the line takes."""
        if self.line is None:
            return
        with contextlib.suppress(ConnectionError):
            for number in self.outbox.flush(self.line):
                os.close(number)

    def receive(self) -> Iterator[Any]:
        """Yield (message, tail) of what it says. Raises EOFError, ProtocolError, BlockingIOError, ConnectionError."""
        if self.line is None:
            raise EOFError
        size = array.array("i").itemsize
        room = min(self._inbox.room, 65_536)
        data, ancillary, _, _ = self.line.recvmsg(
            room, socket.CMSG_LEN(DESCRIPTORS_MAX * size), socket.MSG_CMSG_CLOEXEC
        )
        self._keep(ancillary)
        if not data:
            raise EOFError
        self._inbox.accept(data)
        yield from self._inbox.messages()
        if len(self._descriptors) > DESCRIPTORS_MAX:
            raise wire.ProtocolError("more descriptors than messages")

    def adopt(self, cell: Cell, message: wire.Spawned) -> None:
        """Take the pidfd of a new cell. Raises ProtocolError, or EOFError, unless it means that child of the zygote."""
        if not self._descriptors:
            raise wire.ProtocolError("a cell without its pidfd")
        pidfd = self._descriptors.pop(0)
        try:
            self._hatchery.check(pidfd, message.pid)
        except (EOFError, wire.ProtocolError):
            os.close(pidfd)
            raise
        cell.pid, cell.pidfd = message.pid, pidfd

    def stop(self, patience_seconds: float) -> bool:
        """End the zygote, and with it every cell: by hanging up, so that it kills what they started; then by force.

        Tell whether all of them are surely dead.
        """
        if self.line is not None:
            self.line.close()
            self.line = None
        for number in (*self._descriptors, *self.outbox.abandon()):
            os.close(number)
        self._descriptors.clear()
        self.state = NurseryState.DOWN
        return self._hatchery.stop(patience_seconds)

    def _keep(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self._descriptors.extend(numbers)
