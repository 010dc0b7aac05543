"""What any Linux gives an ordinary user: no new privileges, closed descriptors, bounds, an own group.

It does not hide files, stop the network or limit system calls. `probe` tries each layer in a throw-away process and
looks whether it holds. Trust: what runs afterwards is hostile.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

from benteng.policy import LIMITS, Limits, Tier
from benteng.worker.sandbox import Spec, system

KEPT = 3
"""The descriptor number of the line to the supervisor in every cell."""

THREAD_BYTES = 16 << 20
"""Address space for one more thread: stack and a share of arenas."""


def enter(spec: Spec) -> tuple[str, ...]:
    """Shut this process in, for ever; return the layers that are in force. Raises OSError."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _reset_signals()
    os.umask(0o077)
    _close_others(spec.keep)
    bound(spec.limits, spec.width, hard=True)
    layers = ["group", "descriptors", "rlimits"]
    if system.no_new_privileges():
        layers.append("no_new_privs")
    system.die_with_parent(spec.parent)
    return (*layers, "parent")


def bound(limits: Limits, width: int = 1, *, hard: bool) -> None:
    """Set the limits of memory, file size and open files: the soft ones, or both for ever."""
    wanted = {
        resource.RLIMIT_AS: limits.memory_bytes_max + (width - 1) * THREAD_BYTES,
        resource.RLIMIT_FSIZE: limits.file_bytes_max,
        resource.RLIMIT_NOFILE: limits.open_files_max,
        resource.RLIMIT_CORE: 0,
    }
    for which, value in wanted.items():
        present = resource.getrlimit(which)
        ceiling = present[1]
        capped = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        limit = (capped, capped if hard else ceiling)
        if limit != present:
            resource.setrlimit(which, limit)


def probe() -> tuple[str, ...]:
    """Return the layers that hold on this host, each tried for real."""
    return tuple(name for name, trial in TRIALS.items() if _holds(trial))


def _close_others(keep: int) -> None:
    devnull = os.open(os.devnull, os.O_RDWR)
    if keep != KEPT:
        os.dup2(keep, KEPT)
    for number in range(KEPT):
        os.dup2(devnull, number)
    os.set_inheritable(KEPT, False)
    os.closerange(KEPT + 1, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16))


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _closed() -> bool:
    opened = os.open(os.devnull, os.O_RDONLY)
    _close_others(opened)
    os.close(KEPT)
    return set(os.listdir("/proc/self/fd")) <= {"0", "1", "2", "3"}  # noqa: PTH208 - 3 is the listing itself


def _bounded() -> bool:
    bound(LIMITS[Tier.LOW], hard=True)
    try:
        bytearray(LIMITS[Tier.LOW].memory_bytes_max + 1)
    except MemoryError:
        return True
    return False


def _grouped() -> bool:
    os.setsid()
    return os.getpgid(0) == os.getpid()


def _dies() -> bool:
    """Fork a middle process that ends before its child: the child must be killed."""
    system.adopt_orphans()
    middle = os.fork()
    if middle == 0:
        parent = os.getpid()
        if os.fork() == 0:
            system.die_with_parent(parent)
            signal.pause()
        os._exit(0)
    os.waitpid(middle, 0)
    _, status = os.waitpid(-1, 0)
    return not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0


TRIALS: dict[str, Callable[[], bool]] = {
    "group": _grouped,
    "descriptors": _closed,
    "rlimits": _bounded,
    "no_new_privs": system.no_new_privileges,
    "parent": _dies,
}


def _holds(trial: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        held = False
        try:
            held = trial()
        finally:
            os._exit(0 if held else 1)
    return os.waitpid(pid, 0)[1] == 0
