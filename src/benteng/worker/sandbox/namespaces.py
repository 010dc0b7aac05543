"""An empty network, an IPC and users of its own for a zygote and its cells: walls behind the system-call filter.

Root makes them directly; an ordinary user by way of a user namespace, which many hosts forbid. Whoever cannot have
them goes on without: they are used when present, never required (layers.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benteng.worker.sandbox import syscalls, system

CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWNET: Final = 0x4000_0000


def enter() -> tuple[str, ...]:
    """Leave the host's network and IPC; return the layers that are in force: none where the host forbids it."""
    uid, gid = os.getuid(), os.getgid()
    try:
        if uid != 0:
            syscalls.call("unshare", CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC)
            _keep_identity(uid, gid)
        else:
            syscalls.call("unshare", CLONE_NEWNET | CLONE_NEWIPC)
    except OSError:
        return ()
    return ("network_namespace", "ipc_namespace")


def own_users(others: int = 0) -> None:
    """Be the same user in a namespace of users of one's own: what can be done in it reaches nothing of the host.

    `others`: namespaces that are made with it, as flags. There is every capability then, over what is made later; to be
    dropped. Raises OSError where the host forbids it.
    """
    system.prctl(system.PR_SET_DUMPABLE, 1)  # after a change of uid our own files in /proc are root's
    uid, gid = os.getuid(), os.getgid()
    syscalls.call("unshare", CLONE_NEWUSER | others)
    _keep_identity(uid, gid)


def _keep_identity(uid: int, gid: int) -> None:
    """Be the same user inside as outside. Raises OSError."""
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", "ascii")
