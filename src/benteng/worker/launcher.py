"""What `benteng supervise` becomes: start the processes of pools, each as its own user, join them, restart what ends.

For each pool a supervisor, which holds the credential, and a warden, which makes zygote and cells, joined by a
socketpair; where a pool has egress, its broker beside them. It opens no store and no network, imports no user code, and
keeps four capabilities: to become others, to take the right to capabilities from what it starts, and to end it.
Trust: its arguments; of its children nothing but that they live and that a supervisor says it is ready.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import SystemRandom
from typing import Any, Final, NoReturn

from benteng import clock
from benteng.worker.notify import notify
from benteng.worker.program import program
from benteng.worker.sandbox import capabilities, system
from benteng.worker.sandbox.capabilities import Capability

KEPT: Final = frozenset({Capability.KILL, Capability.SETGID, Capability.SETUID, Capability.SETPCAP})
"""What the launcher needs while it runs; nothing that it starts has any of it."""

HANDED_ON: Final = Capability.SYS_PTRACE
"""What an egress broker needs, to reach into the sockets of cells; the launcher has it where a pool has egress."""

RESTART_SECONDS: Final = 0.5
RESTART_SECONDS_MAX: Final = 30.0
REFUSED_SECONDS: Final = 30.0
REFUSED_SECONDS_MAX: Final = 3600.0
"""What is refused stays refused until somebody mends it, and each start of such a pool is written into the log."""

SETTLED_SECONDS: Final = 60.0
"""A pool that was ready for so long has no failures any more."""

LEAVE_SECONDS: Final = 8.0
"""What a supervisor may take beyond its drain, and a warden after its supervisor."""

REFUSED: Final = 78
SUPERVISOR_READY: Final = 4
"""The pipe on which a supervisor says that it is ready; 3 is its line to the warden, 5 that to a broker."""


@dataclass(frozen=True, slots=True)
class User:
    """A user and group by number; neither is root."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool to start.

    supervisor, cells       whom the two sides become;  broker: whom its egress broker, None: it has no egress
    supervisor_environment  variables of the supervisor;  cell_environment: of the warden, and so of zygote and cells
    cwd                     where the supervisor finds its configuration
    """

    name: str
    supervisor: User
    cells: User
    supervisor_environment: Mapping[str, str]
    cell_environment: Mapping[str, str]
    cwd: str
    drain_seconds: float
    broker: User | None = None


def main() -> NoReturn:
    """Be the launcher. The plans are read from descriptor 0."""
    with os.fdopen(os.dup(0), "rb") as stream:
        plans = [_plan(each) for each in json.load(stream)]
    kept = KEPT | {HANDED_ON} if any(plan.broker for plan in plans) else KEPT
    capabilities.limit(kept)
    capabilities.hold(kept)
    system.no_new_privileges()
    system.hide()
    system.adopt_orphans()
    sys.exit(Launcher(plans, _say).run())


@dataclass(frozen=True, slots=True)
class Side:
    """A process to start. `lines`: what becomes its descriptors 0, 1, 2 and on; of these three, else /dev/null."""

    user: User
    command: list[str]
    environment: Mapping[str, str]
    cwd: str
    lines: Sequence[int]
    capability: Capability | None = None


@dataclass(slots=True, eq=False)
class Process:
    """One process that we started."""

    pid: int
    pidfd: int
    status: int | None = None


@dataclass(slots=True, eq=False)
class Pair:
    """The processes of one pool as they are now. Times are seconds of CLOCK_BOOTTIME."""

    plan: PoolPlan
    supervisor: Process | None = None
    warden: Process | None = None
    broker: Process | None = None
    ready: bool = False
    was_ready: bool = False
    since: float = 0.0
    kill_at: float = float("inf")
    again_at: float = 0.0
    failures: int = 0

    @property
    def processes(self) -> list[Process]:
        """Those that live."""
        return [
            each for each in (self.supervisor, self.warden, self.broker) if each is not None and each.status is None
        ]


@dataclass(slots=True, eq=False)
class Launcher:
    """All pools of this host, until it is told to stop."""

    plans: Sequence[PoolPlan]
    say: Callable[..., None]
    _pairs: list[Pair] = field(init=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _signals: int = 0
    _obeyed: int = 0
    _code: int = 0
    _told: bool = False

    def __post_init__(self) -> None:
        self._pairs = [Pair(plan) for plan in self.plans]

    def run(self) -> int:
        """Work until SIGTERM or SIGINT; return 0, or the first code with which a supervisor failed then."""
        self._listen_to_signals()
        while self._obeyed == 0 or any(pair.processes for pair in self._pairs):
            now = clock.boot_seconds()
            self._obey_signals(now)
            for pair in self._pairs:
                self._tend(pair, now)
            self._tell()
            self._kill_orphans()
            for key, _ in self._selector.select(self._pause_seconds(clock.boot_seconds())):
                key.data()
        return self._code

    # ------------------------------------------------------------------------------------------------------------ pools

    def _tend(self, pair: Pair, now: float) -> None:
        if pair.processes:
            if now >= pair.kill_at:
                self._end(pair, signal.SIGKILL)
        elif pair.since:
            self._bury(pair, now)
        elif now >= pair.again_at and not self._obeyed:
            self._start(pair, now)

    def _start(self, pair: Pair, now: float) -> None:
        plan = pair.plan
        ours, theirs = socket.socketpair()
        egress, asked = socket.socketpair()
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with ours, theirs, egress, asked, os.fdopen(writer, "wb"):
            warden = program("benteng.worker.warden:main")
            side = Side(plan.cells, warden, plan.cell_environment, "/", (theirs.fileno(),))
            pair.warden = self._fork(pair, side)
            supervisor = program("benteng.ops.cli.worker:supervised")
            supervisor += ["--pool", plan.name]
            lines = [0, 1, 2, ours.fileno(), writer]
            if plan.broker is not None:
                broker = [*program("benteng.worker.egress.program:main"), str(os.getpid())]
                side = Side(plan.broker, broker, {}, "/", (asked.fileno(),), HANDED_ON)
                pair.broker = self._fork(pair, side)
                lines.append(egress.fileno())
            side = Side(plan.supervisor, supervisor, plan.supervisor_environment, plan.cwd, lines)
            pair.supervisor = self._fork(pair, side)
        self._selector.register(reader, selectors.EVENT_READ, partial(self._heard, pair, reader))
        pair.since, pair.ready, pair.kill_at = now, False, float("inf")
        broker = 0 if pair.broker is None else pair.broker.pid
        self.say("started", pool=plan.name, supervisor=pair.supervisor.pid, warden=pair.warden.pid, broker=broker)

    def _fork(self, pair: Pair, side: Side) -> Process:
        pid = os.fork()
        if pid == 0:
            _become(side)
        process = Process(pid, os.pidfd_open(pid))
        self._selector.register(process.pidfd, selectors.EVENT_READ, partial(self._ended, pair, process))
        return process

    def _ended(self, pair: Pair, process: Process) -> None:
        """One of a pair is gone: the other one ends by itself when their line does, or else by force."""
        self._selector.unregister(process.pidfd)
        os.close(process.pidfd)
        process.status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        sides = {"supervisor": pair.supervisor, "warden": pair.warden, "broker": pair.broker}
        who = next((name for name, each in sides.items() if each is process), "")
        self.say("ended", pool=pair.plan.name, who=who, pid=process.pid, status=process.status)
        patience = LEAVE_SECONDS + (pair.plan.drain_seconds if who != "supervisor" else 0.0)
        pair.kill_at = min(pair.kill_at, clock.boot_seconds() + patience)

    def _heard(self, pair: Pair, reader: int) -> None:
        """A supervisor says that it is ready, or has gone without a word."""
        self._selector.unregister(reader)
        said = os.read(reader, 64)
        os.close(reader)
        if said and not pair.ready:
            pair.ready = pair.was_ready = True
            self.say("ready", pool=pair.plan.name)

    def _bury(self, pair: Pair, now: float) -> None:
        """All of a pool is gone: start it again, later each time; one that is refused at the very start ends us."""
        status = pair.supervisor.status if pair.supervisor is not None else None
        pair.failures = 0 if pair.ready and now - pair.since > SETTLED_SECONDS else pair.failures + 1
        pair.again_at = now + pause_seconds(pair.failures, refused=status == REFUSED) * (0.5 + SystemRandom().random())
        pair.since, pair.ready = 0.0, False
        if self._obeyed:
            self._code = self._code or max(status or 0, 0)
        elif status == REFUSED and not pair.was_ready:
            self._code = REFUSED
            self._signals = max(self._signals, 1)
        else:
            self.say("again", pool=pair.plan.name, seconds=round(pair.again_at - now, 1))

    def _end(self, pair: Pair, number: int) -> None:
        for process in pair.processes:
            signal.pidfd_send_signal(process.pidfd, number)

    def _tell(self) -> None:
        """Say once to who started us that every pool is ready."""
        if not self._told and not self._obeyed and all(pair.was_ready for pair in self._pairs):
            self._told = True
            notify("READY=1", os.environ)

    def _kill_orphans(self) -> None:
        """Kill what fell to us: a zygote or a job whose warden ended. Nothing of a pool outlives its pair."""
        system.kill_strays({process.pid for pair in self._pairs for process in pair.processes})

    # ---------------------------------------------------------------------------------------------------------- signals

    def _listen_to_signals(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(reader, selectors.EVENT_READ, partial(os.read, reader, 4096))
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count)
        signal.signal(signal.SIGCHLD, _nothing)

    def _count(self, *_: object) -> None:
        self._signals += 1

    def _obey_signals(self, now: float) -> None:
        """Pass each signal on: the first drains, the second ends at once. What stays too long is ended by force."""
        while self._obeyed < self._signals:
            self._obeyed += 1
            notify("STOPPING=1", os.environ)
            for pair in self._pairs:
                pair.kill_at = min(pair.kill_at, now + pair.plan.drain_seconds + LEAVE_SECONDS)
                if pair.supervisor is not None and pair.supervisor.status is None:
                    signal.pidfd_send_signal(pair.supervisor.pidfd, signal.SIGTERM)

    def _pause_seconds(self, now: float) -> float:
        due = [pair.kill_at if pair.processes else pair.again_at for pair in self._pairs]
        return min(max(0.0, min(due) - now), 1.0)


def pause_seconds(failures: int, *, refused: bool) -> float:
    """Return how long a pool waits, about, before it is started again after so many failures in a row."""
    first, most = (REFUSED_SECONDS, REFUSED_SECONDS_MAX) if refused else (RESTART_SECONDS, RESTART_SECONDS_MAX)
    return min(first * 2 ** min(failures - 1, 16), most) if failures else 0.0


def _become(side: Side) -> NoReturn:
    """Be that user for ever, with these descriptors as 0, 1, 2 and on, and nothing else; run the program."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        parent = os.getppid()
        if side.capability is None:
            os.setsid()  # a broker makes its session itself
            capabilities.limit()
            capabilities.become(side.user.uid, side.user.gid)
        else:
            capabilities.limit({side.capability})
            capabilities.become_keeping(side.user.uid, side.user.gid, side.capability)
            capabilities.hand_on(side.capability)
        system.die_with_parent(parent, signal.SIGTERM)
        _arrange(side.lines)
        os.chdir(side.cwd)
        os.execve(side.command[0], side.command, dict(side.environment))  # noqa: S606 - our interpreter, a fixed program
    finally:
        os._exit(REFUSED)


def _arrange(lines: Sequence[int]) -> None:
    above = [os.dup(number) for number in lines]
    top = max(above) + len(above)
    moved = [os.dup2(number, top + index, inheritable=False) for index, number in enumerate(above)]
    for index, number in enumerate(moved):
        os.dup2(number, index)
    for index in range(len(moved), 3):
        os.dup2(os.open(os.devnull, os.O_RDWR), index)
    os.closerange(max(len(moved), 3), os.sysconf("SC_OPEN_MAX"))


def _plan(found: dict[str, Any]) -> PoolPlan:
    users = {name: User(**found.pop(name)) for name in ("supervisor", "cells", "broker") if name in found}
    return PoolPlan(**found, supervisor=users["supervisor"], cells=users["cells"], broker=users.get("broker"))


def _say(event: str, /, **fields: object) -> None:
    shown = " ".join(f"{name}={value}" for name, value in fields.items())
    print(f"{event} {shown}".rstrip(), file=sys.stderr, flush=True)  # noqa: T201 - talk goes to stderr


def _nothing(*_: object) -> None:
    """Only wake the loop."""
