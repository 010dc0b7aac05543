"""Try each layer for real in a throw-away process: look whether the thing can be done before, and cannot afterwards.

No return code is believed, and a trial that proves nothing counts as failed. `benteng isolation report`, `doctor` and
the start of a worker ask here.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benteng.policy import Tier
from benteng.worker.sandbox import (
    basic,
    capabilities,
    covers,
    landlock,
    linux,
    namespaces,
    processes,
    roots,
    seccomp,
    syscalls,
    system,
)
from benteng.worker.sandbox.seccomp import Filter, Layer

SECRET: Final = b"not for cells"
NOBODY: Final = 65_534
ENDS_SECONDS: Final = 5
"""How long a trial waits for what must come."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trial may work: a file that is to be out of reach afterwards, and a scratch directory beside it."""

    secret: Path
    scratch: Path


Trial = Callable[[Place], bool]


def probe() -> tuple[str, ...]:
    """Return the layers that hold on this host for this user, each tried by itself."""
    return (*basic.probe(), *(name for name, trial in TRIALS.items() if holds(trial)))


def holds(trial: Trial) -> bool:
    """Return whether a trial is true, made in a process of its own; one that raises or dies is false."""
    with tempfile.TemporaryDirectory(prefix="benteng-probe-") as home:
        place = Place(Path(home) / "secret", Path(home) / "scratch")
        place.secret.write_bytes(SECRET)
        place.secret.chmod(0o666)
        place.scratch.mkdir()
        return _forked(lambda: trial(place))


def _forked(trial: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        held = False
        try:
            held = trial()
        finally:
            os._exit(0 if held else 1)
    return os.waitpid(pid, 0)[1] == 0


def _landlock_files(place: Place) -> bool:
    """A file that could be read and written cannot be any more, also by way of a link; what is granted can."""
    link, own = place.scratch / "link", place.scratch / "own"
    link.symlink_to(place.secret)
    if link.read_bytes() != SECRET or not system.no_new_privileges():
        return False
    landlock.restrict(roots.grants((), (str(place.scratch),)), landlock.abi())
    own.write_bytes(b"x")
    attempts = (place.secret.read_bytes, link.read_bytes, lambda: place.secret.write_bytes(b""))
    return all(_refused(attempt, errno.EACCES) for attempt in attempts) and own.read_bytes() == b"x"


def _landlock_tcp(place: Place) -> bool:
    """A port that can be connected to cannot be any more."""
    del place
    system.no_new_privileges()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        landlock.restrict((), landlock.abi())
        return _refused(lambda: socket.create_connection(server.getsockname()).close(), errno.EACCES)


def _landlock_scopes(place: Place) -> bool:
    """The parent can be signalled, and cannot be any more."""
    del place
    system.no_new_privileges()
    os.kill(os.getppid(), 0)
    landlock.restrict((), landlock.abi())
    return _refused(lambda: os.kill(os.getppid(), 0), errno.EPERM)


def _seccomp(place: Place) -> bool:
    """Processes, sockets and programs work before, and are refused afterwards."""
    if not (_forked(place.secret.exists) and _has_socket() and system.no_new_privileges()):
        return False
    seccomp.install(Filter(Layer.JOB))
    refused = (
        _refused(os.fork, errno.EPERM),
        _refused(lambda: socket.socket().close(), errno.EACCES),
        _refused(lambda: os.execv("/proc/self/exe", ["x", "-c", ""]), errno.EPERM),  # noqa: S606 - must be refused
        _refused(lambda: syscalls.call("unshare", namespaces.CLONE_NEWUSER), errno.EPERM),
        _refused(lambda: syscalls.call("io_uring_setup", 1, None), errno.ENOSYS),
    )
    return all(refused)


def _violation(place: Place) -> bool:
    """With `kill`, a violation ends a process by SIGSYS."""
    del place
    system.no_new_privileges()
    pid = os.fork()
    if pid == 0:
        seccomp.install(Filter(Layer.JOB, kill=True))
        try:
            syscalls.call("ptrace", 0, 0, 0, 0)
        finally:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS


def _capabilities(place: Place) -> bool:
    """After the drop there is none, and root's way past the modes of files is gone."""
    if os.getuid() == 0:
        place.secret.chmod(0o600)
        os.chown(place.secret, NOBODY, NOBODY)
        place.secret.read_bytes()
    capabilities.limit()
    capabilities.drop()
    return capabilities.held() == 0 and (os.getuid() != 0 or _refused(place.secret.read_bytes, errno.EACCES))


def _namespaces(place: Place) -> bool:
    """The network and IPC are others than before, and a port of the host cannot be reached."""
    del place
    before = [Path(f"/proc/self/ns/{name}").readlink() for name in ("net", "ipc")]
    with socket.create_server(("127.0.0.1", 0)) as server:
        namespaces.enter()
        after = [Path(f"/proc/self/ns/{name}").readlink() for name in ("net", "ipc")]
        differ = all(was != now for was, now in zip(before, after, strict=True))
        return differ and _refused(lambda: socket.create_connection(server.getsockname(), 1).close())


def _mount_namespace(place: Place) -> bool:
    """An ordinary user's file is covered, cannot be uncovered, and not be seen by way of another process."""
    if os.getuid() == 0 or place.secret.read_bytes() != SECRET:
        return False
    covered = place.secret.parent / "covered"
    covered.mkdir()
    place.secret.rename(covered / "secret")
    covers.enter([str(covered)])
    target = syscalls.text(str(covered))
    attempts = (
        (covered / "secret").read_bytes,
        (Path(f"/proc/{os.getppid()}/root") / str(covered)[1:] / "secret").read_bytes,
        lambda: syscalls.call("umount2", target, 0),
        lambda: _uncover(target),
    )
    return all(_refused(attempt) for attempt in attempts)


def _uncover(target: ctypes.Array[ctypes.c_char]) -> None:
    """Try it with every right in a namespace of one's own."""
    namespaces.own_users(covers.CLONE_NEWNS)
    syscalls.call("umount2", target, 0)


def _pid_namespace(place: Place) -> bool:
    """A process that left its parents and its session is gone when the process that began it all is."""
    lasting = place.scratch / "lasting"
    os.mkfifo(lasting)
    reader = os.open(lasting, os.O_RDONLY | os.O_NONBLOCK)
    pid = os.fork()
    if pid == 0:
        try:
            _leave_a_daemon(lasting)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    select.select([reader], [], [], ENDS_SECONDS)
    started = os.read(reader, 1) == b"d"
    select.select([reader], [], [], ENDS_SECONDS)
    return started and os.read(reader, 1) == b""


def _leave_a_daemon(lasting: Path) -> None:
    namespaces.own_users()
    processes.leave()
    processes.start_first()
    said, (ready, done) = os.open(lasting, os.O_WRONLY), os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.alarm(2 * ENDS_SECONDS)
            os.write(said, b"d")
            os.write(done, b"d")
            signal.pause()
        os._exit(0)
    os.close(done)
    os.read(ready, 1)  # it has come up: if it ends now, then with this process


def _noexec_scratch(place: Place) -> bool:
    """A file that can be mapped as a program cannot be any more, as the loader would map it; it can be written."""
    own = place.scratch / "own"
    own.write_bytes(SECRET)
    with own.open("r+b") as file:
        mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
    namespaces.own_users()
    namespaces.own_mounts()
    namespaces.without_programs(str(place.scratch))
    with own.open("r+b") as file:
        file.write(SECRET)
        attempt = partial(mmap.mmap, file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        return _refused(attempt, errno.EPERM)


def _own_uid(place: Place) -> bool:
    """Root can become another user for ever, and cannot read root's files then."""
    if os.getuid() != 0:
        return False
    place.secret.chmod(0o600)
    place.secret.parent.chmod(0o755)
    capabilities.become(NOBODY, NOBODY)
    return _refused(lambda: os.setuid(0), errno.EPERM) and _refused(place.secret.read_bytes, errno.EACCES)


def _together(place: Place) -> bool:
    """All layers of a HIGH cell can be put in force together, the pool's first."""
    walls = linux.Walls(read=roots.readable(()), scratch=str(place.scratch), shut=True)
    linux.leave_host(walls)
    linux.enter_pool(walls)
    return _forked(lambda: _shut(walls, place))


def _shut(walls: linux.Walls, place: Place) -> bool:
    linux.enter_job(walls, Tier.HIGH, str(place.scratch))
    return _refused(place.secret.read_bytes, errno.EACCES)


def _egress_broker(place: Place) -> bool:
    """A cell reaches what is listed, through a broker, and nothing else."""
    from benteng.worker.egress import trial  # the broker, in the process of this trial: no worker keeps it

    return trial.works(place.scratch)


TRIALS: Final[dict[str, Trial]] = {
    "capabilities": _capabilities,
    "landlock_files": _landlock_files,
    "seccomp": _seccomp,
    "no_network": _seccomp,
    "kill_on_violation": _violation,
    "landlock_tcp": _landlock_tcp,
    "landlock_scopes": _landlock_scopes,
    "network_namespace": _namespaces,
    "ipc_namespace": _namespaces,
    "mount_namespace": _mount_namespace,
    "pid_namespace": _pid_namespace,
    "noexec_scratch": _noexec_scratch,
    "own_uid": _own_uid,
    "egress_broker": _egress_broker,
    "together": _together,
}
"""How each layer is tried, beside those of `basic`."""


def _refused(attempt: Callable[[], object], *codes: int) -> bool:
    """Whether an attempt raises OSError with one of these codes; any code, if none is given."""
    try:
        attempt()
    except OSError as error:
        return not codes or error.errno in codes
    return False


def _has_socket() -> bool:
    socket.socket().close()
    return True
