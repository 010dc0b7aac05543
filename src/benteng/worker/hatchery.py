"""Where a pool's zygotes come from, and who may touch what they make: this process, or a warden that it asks.

The supervisor of `benteng worker` is the parent of its zygote and does everything itself (`Own`). One that is another
user, or lives in another container, asks a warden over a line (asked.py). The yard knows no difference but this: the
answer of a warden comes later, and one that is gone leaves its jobs to their leases.
Trust: nothing that a zygote or a cell says.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from benteng.worker import wire
from benteng.worker.framing import Outbox
from benteng.worker.program import program
from benteng.worker.sandbox import observe, system
from benteng.worker.scratch import Scratch, is_over


@dataclass(frozen=True, slots=True)
class Sight:
    """What somebody who is not the cell sees of it: layers in force, if that was asked; processes below it; threads."""

    layers: frozenset[str]
    below: int
    threads: int


class Hatchery(Protocol):
    """Makes zygotes, one at a time, and does to cells what needs their uid and their host."""

    @property
    def pid(self) -> int:
        """The zygote's pid as its host knows it; 0 when there is none."""
        ...

    @property
    def children(self) -> frozenset[int]:
        """The pids of zygote and broker, if this process is their parent."""
        ...

    @property
    def line(self) -> socket.socket | None:
        """The line to watch for answers; None when everything is answered at once."""
        ...

    @property
    def outbox(self) -> Outbox:
        """What waits to be sent on that line."""
        ...

    def flush(self) -> None:
        """Send what that line takes."""
        ...

    def hear(self) -> Iterator[Any]:
        """Yield what was answered. Raises EOFError, ProtocolError, BlockingIOError, ConnectionError."""
        ...

    @property
    def apart(self) -> bool:
        """Whether cells have a uid that neither root nor this process has."""
        ...

    def hatch(self, theirs: socket.socket) -> bool:
        """Make a zygote with that end of its line; tell whether it is there. Raises OSError: not now."""
        ...

    def employ(self, theirs: socket.socket) -> None:
        """Start an egress broker beside the zygote, with that end of its line. Raises OSError."""
        ...

    def check(self, pidfd: int, pid: int) -> None:
        """Raise ProtocolError for a handle that means no child of the zygote; EOFError when the zygote is gone."""
        ...

    def look(self, cell: int, pidfd: int, *, layers: bool) -> Sight | None:
        """Return what the kernel shows of a cell, its layers if they are asked for; None: the answer comes later."""
        ...

    def signal(self, pidfd: int, number: int) -> None:
        """Signal a cell and its group; what is gone is no matter."""
        ...

    def measure(self, cells: Mapping[int, tuple[int, int]]) -> Collection[int]:
        """Return which cells hold more on the disk than they may, as far as is known. Cell -> (pid, bytes_max)."""
        ...

    def drop(self, cell: int, attempt: int | None = None) -> None:
        """Delete the scratch directory of a cell, or of one attempt in it, bit by bit."""
        ...

    def sweep(self) -> bool:
        """Delete a bounded piece of what was dropped; tell whether something is left."""
        ...

    def stop(self, patience_seconds: float) -> bool:
        """End the zygote, by force after so long, and its broker; tell whether it is surely dead, and its cells too."""
        ...

    def close(self) -> None:
        """End everything and delete the scratch directories."""
        ...


class Own:
    """This process is the parent of its zygotes. `environment`: the zygote's, but for HOME and TMPDIR."""

    def __init__(self, environment: Mapping[str, str], scratch: Scratch, *, apart: bool = False) -> None:
        self.line = None
        self.outbox = Outbox()
        self.apart = apart
        self._home = {"HOME": str(scratch.root), "TMPDIR": str(scratch.root)}
        self._environment = dict(environment)
        self._scratch = scratch
        self._process: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The zygote's pid; 0 when there is none."""
        return 0 if self._process is None else self._process.pid

    @property
    def children(self) -> frozenset[int]:
        """The pids of zygote and broker."""
        return frozenset(each.pid for each in (self._process, self._broker) if each is not None)

    def flush(self) -> None:
        """Nothing waits."""

    def hear(self) -> Iterator[Any]:
        """Nobody answers: everything was done at once."""
        return iter(())

    def hatch(self, theirs: socket.socket) -> bool:
        """Start a zygote: exec'd clean, its line is all that it gets."""
        self._process = _start("benteng.worker.zygote:main", theirs, self._environment | self._home)
        return True

    def employ(self, theirs: socket.socket) -> None:
        """Start a broker: exec'd clean, its line is all that it gets."""
        self._broker = _start("benteng.worker.egress.program:main", theirs, {})

    def check(self, pidfd: int, pid: int) -> None:
        """Raise ProtocolError for a handle that means no child of the zygote; EOFError when the zygote is gone."""
        found = system.pid_behind(pidfd)
        if found == -1 or (found == pid and self.is_cell(pidfd)):  # -1: dead and reaped, and so it was one
            return
        if self._process is None or self._process.poll() is not None:
            raise EOFError  # it died meanwhile, and its cells have another parent
        raise wire.ProtocolError("a pidfd that is no cell of this zygote")

    def is_cell(self, pidfd: int) -> bool:
        """Whether a pidfd means a child of the zygote."""
        pid = system.pid_behind(pidfd)
        return pid > 1 and self.pid > 1 and system.parent_of(pid) == self.pid

    def look(self, cell: int, pidfd: int, *, layers: bool) -> Sight:
        """Return what /proc shows of a cell."""
        del cell
        pid = system.pid_behind(pidfd)
        seen = observe.seen(pid) if layers else frozenset[str]()
        return Sight(seen, *system.company_of(pid))

    def signal(self, pidfd: int, number: int) -> None:
        """Signal its group if the pidfd means the group's leader, else the process."""
        pid = system.pid_behind(pidfd)
        try:
            if pid > 1 and os.getpgid(pid) == pid:
                os.killpg(pid, number)
            signal.pidfd_send_signal(pidfd, number)
        except (ProcessLookupError, PermissionError):
            return

    def measure(self, cells: Mapping[int, tuple[int, int]]) -> Collection[int]:
        """Return which cells hold more on the disk than they may."""
        scratch = self._scratch
        return [cell for cell, (pid, bytes_max) in cells.items() if is_over(scratch.path(cell), pid, bytes_max)]

    def drop(self, cell: int, attempt: int | None = None) -> None:
        """Take the directory away; it is deleted piece by piece."""
        self._scratch.drop(cell, attempt)

    def sweep(self) -> bool:
        """Delete a bounded piece of what was dropped; tell whether something is left."""
        self._scratch.sweep()
        return self._scratch.dirty

    def stop(self, patience_seconds: float) -> bool:
        """Wait for the zygote, whose line was hung up, and kill it when that takes too long. Its cells die with it.

        The broker goes last: whatever still asks it finds that there is no such call.
        """
        zygote, self._process = self._process, None
        broker, self._broker = self._broker, None
        if zygote is not None:
            _end(zygote, patience_seconds)
        if broker is not None:
            _end(broker, 0.0)
        return True

    def close(self) -> None:
        """End the zygote and delete the scratch directories."""
        self.stop(0.0)
        self._scratch.close()


def _start(entry: str, theirs: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Run a program of ours that ends with this process; its line is descriptor 0, and it has no other."""
    return subprocess.Popen(
        [*program(entry), str(os.getpid())],
        stdin=theirs.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        close_fds=True,
    )


def _end(process: subprocess.Popen[bytes], patience_seconds: float) -> None:
    try:
        process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
