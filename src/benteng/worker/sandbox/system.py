"""The few Linux calls that Python does not have, through ctypes."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Container
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_GET_NO_NEW_PRIVS: Final = 39
M_ARENA_MAX: Final = -8
PIECE_BYTES: Final = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int = 0, second: int = 0) -> int:
    """Make the system call of that name, with one argument or two. Raises OSError."""
    zero = ctypes.c_ulong(0)
    result: int = _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), ctypes.c_ulong(second), zero, zero)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get a signal when the parent ends; end now if it has. To be called after any change of uid, which clears it."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)


def hide() -> None:
    """Keep processes of the same user out: no ptrace, no descriptors, memory or environment of ours, no core dump."""
    prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, instead of init."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> bool:
    """Give up gaining privileges by exec, for ever; return whether the kernel confirms it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    return prctl(PR_GET_NO_NEW_PRIVS) == 1


def few_arenas() -> None:
    """Let malloc keep two arenas: each reserves 64 MiB of address space, which RLIMIT_AS counts. Best effort."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 2)


def kernel_text(path: str) -> str:
    """Return what the kernel shows in a file of /proc, read in as few calls as can be. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = list(iter(lambda: os.read(handle, PIECE_BYTES), b""))
    finally:
        os.close(handle)
    return b"".join(pieces).decode("utf-8", "replace")


def children_of(pid: int) -> list[int]:
    """Return the pids of the children of all threads of a process; none when it is gone."""
    return [child for thread in threads_of(pid) for child in _children_of_thread(pid, thread)]


def _children_of_thread(pid: int, thread: int) -> list[int]:
    try:
        return [int(word) for word in kernel_text(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return []


def kill_strays(known: Container[int]) -> None:
    """Kill and reap each child of this process that is not known: what fell to it when its own parent ended."""
    for pid in children_of(os.getpid()):
        if pid not in known:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                continue


def company_of(pid: int) -> tuple[int, int]:
    """Return how many processes there are below a process, its children, theirs and so on; and how many threads."""
    threads = threads_of(pid)
    children = [child for thread in threads for child in _children_of_thread(pid, thread)]
    return len(children) + sum(company_of(child)[0] for child in children), len(threads)


def threads_of(pid: int) -> list[int]:
    """Return the ids of the threads of a process; none when it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - names, not paths
    except OSError:
        return []


def thread_name(pid: int, thread: int) -> str:
    """Return the name that the kernel shows for a thread."""
    try:
        return kernel_text(f"/proc/{pid}/task/{thread}/comm").strip()
    except OSError:
        return "?"


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 when it is gone."""
    try:
        status = kernel_text(f"/proc/{pid}/stat")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])


def pid_behind(pidfd: int) -> int:
    """Return the pid that a pidfd means; 0 when the descriptor is none, -1 when the process is reaped."""
    try:
        text = kernel_text(f"/proc/self/fdinfo/{pidfd}")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pid:")), 0)
