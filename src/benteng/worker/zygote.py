"""Import the app once, in a clean process, and fork cells from it.

It is exec'd with its control line as only descriptor and a chosen environment, and never sees a payload. It keeps the
leases when the supervisor cannot: a cell whose guard time passes is killed, and all are when the supervisor is gone.
Trust: the supervisor. It is itself not trusted: it has run the app's module code.
"""

from __future__ import annotations

import base64
import gc
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import msgspec

from benteng import clock, inert
from benteng.errors import PolicyError
from benteng.policy import TypePolicy
from benteng.redact import clean_line
from benteng.task import Registry
from benteng.worker import cell as cells
from benteng.worker import framing, loading, wire
from benteng.worker.intake import Intake
from benteng.worker.pool import Kind, Start
from benteng.worker.program import program
from benteng.worker.sandbox import basic, capabilities, covers, linux, namespaces, processes, system
from benteng.worker.wire import Configure, Line, Spawn

SWEEP_SECONDS = 0.5
DESCRIPTORS_MAX = 16
PARENT_DIED = signal.SIGUSR2


def main() -> NoReturn:
    """Be a zygote. Descriptor 0 is the control line, the argument is the pid of the parent that makes it."""
    control = socket.socket(fileno=os.dup(0))
    _silence()
    os.setsid()
    zygote = Zygote(control, int(sys.argv[2]))
    zygote.prepare()
    zygote.run()
    os._exit(0)


def cell_main() -> NoReturn:
    """Be an exec'd cell: the same as a forked one, but it imports the app itself."""
    inert.mark()
    configure = msgspec.msgpack.decode(base64.b64decode(sys.argv[2]), type=Configure)
    spawn = msgspec.msgpack.decode(base64.b64decode(sys.argv[3]), type=Spawn)
    cells.live(spawn, basic.KEPT, os.getppid(), configure, lambda: load_app(configure))


def load_app(configure: Configure) -> Registry:
    """Import the app where a cell is exec'd: in a process without credential. Raises PolicyError."""
    cells.capture()
    return loading.load(configure.app, configure.paths)


@dataclass(slots=True)
class Child:
    """A living cell. guard: the second of CLOCK_BOOTTIME at which it is killed, 0 for never."""

    cell: int
    pid: int
    guard: float = 0.0
    guarded: bool = False


class Zygote:
    """What forks, watches and reaps."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._intake = Intake(control, Line.TO_NEW_ZYGOTE, DESCRIPTORS_MAX)
        self._children: dict[int, Child] = {}
        self._sweep_at = 0.0
        self._registry = Registry()
        self._configure: Configure | None = None

    # --------------------------------------------------------------------------------------------------------- prepare

    def prepare(self) -> None:
        """Become who the pool is, import the app, and report it; ends the process when that cannot be."""
        configure: Configure = msgspec.structs.replace(self._next(), scratch=os.environ["HOME"])
        self._configure = configure
        listener = _shut_in(configure, self._say)
        system.die_with_parent(self._parent)
        if listener != linux.NO_LISTENER:
            self._hand_over(listener)
        try:
            policies = self._import(configure)
        except PolicyError as error:
            self._say(wire.Refuse(error.rule, clean_line(str(error), bytes_max=4096)))
            os._exit(1)
        system.adopt_orphans()
        gc.collect()
        gc.freeze()
        self._intake.permit(Line.TO_ZYGOTE)
        self._control.sendall(framing.frame(wire.Ready(), msgspec.json.encode(policies)))

    def _hand_over(self, listener: int) -> None:
        """Give the listener away and wait until somebody answers on it: nothing of the app ever holds it."""
        socket.send_fds(self._control, [framing.frame(wire.Listener())], [listener])
        os.close(listener)
        self._intake.permit(Line.TO_SHUT_ZYGOTE)
        self._next()

    def _next(self) -> Any:
        """Return the one message that may come now; ends the process when the line ends."""
        message = self._intake.next()
        if message is None:
            os._exit(1)
        return message

    def _import(self, configure: Configure) -> dict[str, TypePolicy]:
        if configure.start is Start.EXEC:
            return _in_throwaway(configure)
        os.chdir(configure.cwd)
        self._registry = loading.load(configure.app, configure.paths)
        loading.refuse_threads()
        cells.prepare(self._registry, wide=not configure.shut)
        return self._registry.policies()

    # ------------------------------------------------------------------------------------------------------------- run

    def run(self) -> None:
        """Serve the supervisor until it is gone; then kill everything."""
        wakeup, signalled = _wakeup_pipe()
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(PARENT_DIED, _nothing)
        system.die_with_parent(self._parent, PARENT_DIED)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(signalled, select.POLLIN)
        while os.getppid() == self._parent:
            ready = {number for number, _ in poll.poll(self._pause_milliseconds())}
            if signalled in ready:
                os.read(signalled, 4096)
            if self._control.fileno() in ready and not self._listen():
                break
            self._keep_leases()
            self._sweep(died=signalled in ready)
        signal.set_wakeup_fd(-1)
        os.close(wakeup)
        self._end_all()

    @property
    def _config(self) -> Configure:
        if self._configure is None:
            os._exit(1)
        return self._configure

    def _pause_milliseconds(self) -> int | None:
        if not self._children:
            return None
        now = clock.boot_seconds()
        guards = [child.guard - now for child in self._children.values() if child.guard and not child.guarded]
        return max(0, int(1000 * min([SWEEP_SECONDS, *guards])) + 1)

    def _listen(self) -> bool:
        try:
            if not self._intake.receive():
                return False
            for message in self._intake.messages():
                self._obey(message)
        except (OSError, wire.ProtocolError):
            return False
        return True

    def _obey(self, message: object) -> None:
        match message:
            case Spawn():
                self._spawn(message, self._intake.descriptors.pop(0))
            case wire.Guard(until):
                for number, when in until:
                    self._guard(number, when)
            case wire.End(number):
                self._kill(self._by_cell(number))
            case _:
                raise wire.ProtocolError("not for a zygote")

    def _by_cell(self, number: int) -> Child | None:
        return next((child for child in self._children.values() if child.cell == number), None)

    def _guard(self, number: int, when: float) -> None:
        child = self._by_cell(number)
        if child is not None:
            child.guard = when

    # ----------------------------------------------------------------------------------------------------------- cells

    def _spawn(self, spawn: Spawn, line: int) -> None:
        parent = os.getpid()
        with _signals_held():
            pid = os.fork()
            if pid == 0:
                self._be_cell(spawn, line, parent)
        os.close(line)
        self._children[pid] = Child(spawn.cell, pid)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(self._control, [framing.frame(wire.Spawned(spawn.cell, pid))], [pidfd])
        os.close(pidfd)

    def _be_cell(self, spawn: Spawn, line: int, parent: int) -> NoReturn:
        if self._config.programs:
            _confine(spawn.kind)
        if self._config.start is Start.EXEC:
            _exec_cell(self._config, spawn, line)
        cells.live(spawn, line, parent, self._config, lambda: self._registry)

    def _keep_leases(self) -> None:
        now = clock.boot_seconds()
        for child in self._children.values():
            if child.guard and child.guard <= now and not child.guarded:
                child.guarded = True
                self._kill(child)

    def _kill(self, child: Child | None) -> None:
        if child is not None:
            _kill_group(child.pid)

    def _reap(self) -> None:
        """Reap what is dead. The group goes first: until the leader is reaped its number is nobody else's."""
        while (dead := _next_dead()) is not None:
            child = self._children.pop(dead, None)
            if child is not None:
                _kill_group(dead)
            _, status = os.waitpid(dead, 0)
            if child is not None:
                self._say(wire.Exited(child.cell, status, child.guarded))

    def _sweep(self, *, died: bool) -> None:
        """Look at who is dead and who was left to us: when somebody `died`, and now and then."""
        now = clock.boot_seconds()
        if died or now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            self._reap()
            system.kill_strays(self._children)  # processes of jobs whose own parent ended: jobs start no daemons

    def _end_all(self) -> None:
        """Kill everything, several times over: each round may leave orphans to the next."""
        for _ in range(50):
            for pid in system.children_of(os.getpid()):
                if pid in self._children:
                    _kill_group(pid)
                os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            select.select([], [], [], 0.02)

    def _say(self, message: wire.Refuse | wire.Exited) -> None:
        try:
            self._control.sendall(framing.frame(message))
        except OSError:
            self._end_all()
            os._exit(0)


def _confine(kind: Kind) -> None:
    """Have what a cell above LOW starts end with it, where the host lets us."""
    if kind is not Kind.WIDE and capabilities.held():
        processes.leave()
    capabilities.drop()


def _next_dead() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _kill_group(pid: int) -> None:
    """Kill a cell and its group, also before it made one. It is our child and not reaped: the number is its."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _shut_in(configure: Configure, say: Callable[[wire.Refuse], None]) -> int:
    try:
        return _become(configure)
    except OSError as error:
        say(wire.Refuse("W-layers", f"the zygote cannot be shut in: {clean_line(str(error))}"))
        os._exit(1)


def _become(configure: Configure) -> int:
    """Be who the pool is, and be shut in if it is; return the listener for its broker, if it has one.

    Raises OSError: then there is no zygote.
    """
    walls = cells.walls_of(configure)
    if configure.shut or walls.egress:
        linux.leave_host(walls)
    if configure.covers and not configure.shut and os.getuid() != 0:
        _cover(configure)
    if configure.uid is not None and configure.gid is not None and os.getuid() == 0:
        _become_user(configure, configure.uid, configure.gid)
    if configure.programs:
        _own_users(configure)
    if not system.no_new_privileges():
        raise OSError("the kernel does not confirm no_new_privs")
    os.umask(0o077)
    linux.prepare(walls)
    if configure.shut:
        return linux.enter_pool(walls)
    return linux.enter_open_pool(walls) if walls.egress else linux.NO_LISTENER


def _become_user(configure: Configure, uid: int, gid: int) -> None:
    if configure.programs:
        capabilities.become_keeping(uid, gid, capabilities.Capability.SYS_ADMIN)
    else:
        capabilities.become(uid, gid)


def _cover(configure: Configure) -> None:
    """Hide what LOW jobs must not read, where the host lets an ordinary user (isolation.check said so, or refused)."""
    try:
        covers.enter(configure.covers)
    except OSError:
        if configure.names:  # the host let us do the same a moment ago
            raise


def _own_users(configure: Configure) -> None:
    """Keep one capability, over what is made from here on; none where the host forbids it (isolation.check said so).

    What jobs may write is no place for programs from here on: where the scratch is none, each of `write` must be none.
    """
    try:
        namespaces.own_users()
    except OSError:
        capabilities.drop()
        return
    if _has_no_programs(configure.scratch):
        for path in configure.write:
            namespaces.without_programs(path)
    capabilities.hold({capabilities.Capability.SYS_ADMIN})


def _has_no_programs(scratch: str) -> bool:
    """Whether the host lets us have mounts of our own, and in them a scratch from which nothing can be run."""
    try:
        namespaces.own_mounts()
        namespaces.without_programs(scratch)
    except OSError:
        return False
    return True


def _in_throwaway(configure: Configure) -> dict[str, TypePolicy]:
    """Import the app in a child that ends, so that no thread of it is here when cells are started."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _report_and_exit(configure, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read(wire.ZYGOTE_BYTES_MAX)
    os.waitpid(pid, 0)
    if not data.startswith(b"{"):
        rule, _, text = data.decode("utf-8", "replace").partition(" ")
        raise PolicyError(rule or "W-import", text or "importing the app ended the process")
    return msgspec.json.decode(data, type=dict[str, TypePolicy])


def _report_and_exit(configure: Configure, writer: int) -> NoReturn:
    try:
        os.chdir(configure.cwd)
        report = msgspec.json.encode(loading.load(configure.app, configure.paths).policies())
    except PolicyError as error:
        report = f"{error.rule} {error.reason}".encode()
    with os.fdopen(writer, "wb") as stream:
        stream.write(report)
    os._exit(0)


def _exec_cell(configure: Configure, spawn: Spawn, line: int) -> NoReturn:
    try:
        os.dup2(line, basic.KEPT)
        os.set_inheritable(basic.KEPT, True)
        encoded = [base64.b64encode(msgspec.msgpack.encode(each)).decode() for each in (configure, spawn)]
        os.execv(sys.executable, [*program("benteng.worker.zygote:cell_main"), *encoded])  # noqa: S606 - our own interpreter, a fixed program
    finally:
        os._exit(cells.CRASH_STATUS)


def _silence() -> None:
    devnull = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(devnull, number)
    os.close(devnull)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def _wakeup_pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return writer, reader


def _nothing(number: int, frame: FrameType | None) -> None:
    """Only wake the loop: the wake-up descriptor has it."""


@contextmanager
def _signals_held() -> Generator[None]:
    """Hold signals over a fork, so that the child never runs a handler of the zygote's."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, PARENT_DIED})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
