"""Make zygotes and brokers for a supervisor that is another user or lives elsewhere, and watch them. No user code.

It has the pool's uid and no capability. It does what it is asked on one line, and what nobody asks: it kills what was
left behind, deletes scratch, and ends everything when the line ends. Other processes of its uid, which do run user
code, cannot look into it.
Trust: the supervisor, as far as wire.PERMITTED lets it speak; nothing of zygote and cells.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Self

from benteng.errors import PolicyError
from benteng.worker import framing, wire
from benteng.worker.hatchery import Own, Sight
from benteng.worker.intake import Intake
from benteng.worker.pool import Pool
from benteng.worker.sandbox import capabilities, probe, system
from benteng.worker.scratch import Scratch
from benteng.worker.wire import Line

DESCRIPTORS_MAX: Final = 16
LOOK_MILLISECONDS: Final = 1000
ROUNDS_MAX: Final = 250
ROUND_SECONDS: Final = 0.02
SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGKILL})
NOBODY: Final = Sight(frozenset(), 0, 0)


def main() -> NoReturn:
    """Be the warden of one line, which is descriptor 0, and end with it."""
    line = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the supervisor drains; its hanging up ends us
    held = probe.probe()  # before it is closed to others: the trials look into each other
    shut_in()
    with Bell() as bell:
        Warden(line, held).run(bell)
    sys.exit(0)


def shut_in() -> None:
    """Be nobody special, for good: no capability, no new ones, closed to others. Raises PolicyError for root."""
    if 0 in os.getresuid():
        fix = "give the pool a uid and gid of its own"
        raise PolicyError("W-cell", "zygotes and cells of a warden have its user, and that must not be root", fix=fix)
    system.hide()
    system.no_new_privileges()
    capabilities.drop()
    system.adopt_orphans()
    os.umask(0o077)


class Warden:
    """One line to a supervisor, with one zygote at a time. `held`: the layers that this host can put in force."""

    def __init__(self, line: socket.socket, held: Iterable[str], scratch_parent: Path | None = None) -> None:
        line.setblocking(True)
        self._line = line
        self._held = tuple(held)
        self._intake = Intake(line, Line.TO_WARDEN, DESCRIPTORS_MAX)
        self._scratch = Scratch(scratch_parent)
        self._own = Own({}, self._scratch)

    def run(self, bell: Bell, also: Mapping[int, Callable[[], None]] | None = None) -> None:
        """Serve until the line ends or breaks the rules, or the bell says so; then end everything.

        `also`: other descriptors to watch meanwhile, and what to do when they can be read.
        """
        others = also or {}
        poll = select.poll()
        for number in (self._line.fileno(), bell.descriptor, *others):
            poll.register(number, select.POLLIN)
        try:
            while not bell.ended:
                ready = {number for number, _ in poll.poll(self._pause_milliseconds())}
                bell.silence()
                for number in ready & others.keys():
                    others[number]()
                if self._line.fileno() in ready and not self._listen():
                    return
                self._keep_house()
        finally:
            self._end()

    def _pause_milliseconds(self) -> int:
        return 0 if self._scratch.dirty else LOOK_MILLISECONDS

    def _listen(self) -> bool:
        try:
            more = self._intake.receive()
            for message in self._intake.messages():
                self._obey(message)
        except (OSError, IndexError, PolicyError, wire.ProtocolError):
            return False
        return more and len(self._intake.descriptors) <= DESCRIPTORS_MAX

    def _obey(self, message: Any) -> None:
        match message:
            case wire.Examine():
                self._say(wire.Holds(self._held))
            case wire.Hatch(env):
                self._hatch(env, self._intake.descriptors.pop(0))
            case wire.Employ():
                self._employ(self._intake.descriptors.pop(0))
            case wire.Look(cell, layers):
                self._say(_seen(cell, self._look(cell, self._intake.descriptors.pop(0), layers=layers)))
            case wire.Signal(number):
                self._signal(number, self._intake.descriptors.pop(0))
            case wire.Measure(cells):
                self._say(wire.Full(tuple(self._own.measure({cell: (pid, size) for cell, pid, size in cells}))))
            case wire.Drop(cell, attempt):
                self._own.drop(cell, attempt)
            case wire.Cull(patience_seconds):
                self._cull(min(patience_seconds, 60.0))
                self._say(wire.Gone())
            case _:
                raise wire.ProtocolError("not for a warden")

    def _hatch(self, env: tuple[str, ...], theirs: int) -> None:
        self._cull(0.0)
        self._own = Own(Pool(env=env).environment(os.environ), self._scratch)
        with socket.socket(fileno=theirs) as line:
            self._own.hatch(line)
        self._say(wire.Hatched(self._own.pid))

    def _employ(self, theirs: int) -> None:
        """Start a broker where the cells are: it reaches into their sockets by being the same user outside of them."""
        with socket.socket(fileno=theirs) as line:
            self._own.employ(line)

    def _look(self, cell: int, pidfd: int, *, layers: bool) -> Sight:
        try:
            if not self._own.is_cell(pidfd):
                return NOBODY
            return self._own.look(cell, pidfd, layers=layers)
        finally:
            os.close(pidfd)

    def _signal(self, number: int, pidfd: int) -> None:
        try:
            if number in SIGNALS and self._own.is_cell(pidfd):
                self._own.signal(pidfd, number)
        finally:
            os.close(pidfd)

    def _cull(self, patience_seconds: float) -> None:
        """End zygote and broker, and all that cells started: what is orphaned falls to this process."""
        self._own.stop(patience_seconds)
        for _ in range(ROUNDS_MAX):
            self._kill_others()
            if not system.children_of(os.getpid()):
                return
            select.select([], [], [], ROUND_SECONDS)

    def _keep_house(self) -> None:
        self._own.sweep()
        self._kill_others()

    def _kill_others(self) -> None:
        """Kill and reap every child that is neither zygote nor broker: jobs start no daemons."""
        system.kill_strays(self._own.children)

    def _end(self) -> None:
        self._line.close()
        for number in self._intake.descriptors:
            os.close(number)
        self._cull(0.0)
        self._own.close()

    def _say(self, message: wire.Holds | wire.Hatched | wire.Seen | wire.Full | wire.Gone) -> None:
        self._line.sendall(framing.frame(message))


class Bell:
    """Wakes a poll when a child ends, or when one of these signals comes: then it says that it is to end."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.ended = False
        self.descriptor, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        for number in numbers:
            signal.signal(number, self._end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._writer)
        os.close(self.descriptor)

    def silence(self) -> None:
        """Be ready to ring again."""
        try:
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            return

    def _end(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.ended = True


def _seen(cell: int, sight: Sight) -> wire.Seen:
    return wire.Seen(cell, tuple(sorted(sight.layers)), sight.below, sight.threads)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Only wake the loop: the wake-up descriptor has it."""
