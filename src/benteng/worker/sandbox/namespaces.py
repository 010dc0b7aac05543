"""An empty network and an IPC of its own for a zygote and its cells: a second wall behind the system-call filter.

Root makes them directly; an ordinary user by way of a user namespace, which many hosts forbid. Whoever cannot have
them goes on without: they are used when present, never required (layers.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benteng.worker.sandbox import syscalls

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


def _keep_identity(uid: int, gid: int) -> None:
    """Be the same user inside as outside. Raises OSError."""
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", "ascii")
