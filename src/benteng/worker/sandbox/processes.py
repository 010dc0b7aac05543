"""What the programs of a job start ends with its cell, however it was started and whoever its parent is by then.

The cell stays where it is, and the supervisor knows it by its pid. Its children are born in a namespace of processes
whose first process is ours: it waits, takes in orphans, and dies with the cell; then the kernel ends all that is left.
Who kills it loses the namespace, and can start nothing any more. (pid_namespaces(7))
Trust: what runs beside it is hostile; it holds nothing, and hears nobody.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from typing import NoReturn

from benteng.worker.sandbox import syscalls, system
from benteng.worker.sandbox.seccomp import CLONE_NEWPID

FIRST_PID = 1


def leave() -> None:
    """Have all later children live in a namespace of their own. Needs a capability in our users. Raises OSError."""
    syscalls.call("unshare", CLONE_NEWPID)


def start_first() -> None:
    """Make the first of these children, after Landlock and before the filter; without a namespace there is none.

    Landlock counts the signal by which it dies as the cell's, so it stands behind the same wall; the filter forbids to
    ask for that signal. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if os.fork() == 0:
            _be_first(theirs.detach())
        theirs.close()
        if ours.recv(1) != b"":
            ours.send(b"g")


def _be_first(line: int) -> NoReturn:
    """Be the first process: be there, and end when the cell does."""
    try:
        if os.getpid() == FIRST_PID:
            _die_with_cell()
            os.closerange(0, line)
            os.closerange(line + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            os.write(line, b"r")
            if os.read(line, 1) == b"g":  # else the cell ended before it was asked for its signal: none is to come
                os.close(line)
                while True:
                    signal.pause()
    finally:
        os._exit(0)


def _die_with_cell() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes away what has ended
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
