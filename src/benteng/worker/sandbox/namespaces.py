"""An empty network, an IPC and users of its own for a zygote and its cells: walls behind the system-call filter.

Root makes them directly; an ordinary user by way of a user namespace, which many hosts forbid. Whoever cannot have
them goes on without: they are used when present, never required (layers.py). Only a pool with `egress` needs one: its
names are looked up in files of its own, which are put over the host's for it alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benteng.worker.sandbox import syscalls, system

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWNET: Final = 0x4000_0000
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_REC_PRIVATE: Final = 0x4_4000
MS_NOSUID_NODEV_NOEXEC: Final = 0xE
MS_NOEXEC: Final = 8
KEPT_FLAGS: Final = 0xF
"""Read-only, no set-uid, no devices, no programs: what a mount has of these is locked for whoever copies it."""

MNT_DETACH: Final = 2


def enter() -> tuple[str, ...]:
    """Leave the host's network and IPC; return the layers that are in force: none where the host forbids it."""
    try:
        _unshare(CLONE_NEWNET | CLONE_NEWIPC)
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


def enter_with_files(files: Mapping[str, str], place: str) -> None:
    """Leave the host's network, IPC and mounts, with these texts in the place of files of the host.

    `place` is an empty directory that may be mounted on for a moment. A file that the host does not have is left out.
    Raises OSError where the host forbids it.
    """
    _unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS)
    mount(None, "/", None, MS_REC_PRIVATE)
    mount("tmpfs", place, "tmpfs", MS_NOSUID_NODEV_NOEXEC)
    for number, (path, text) in enumerate(files.items()):
        if Path(path).exists():
            source = Path(place) / str(number)
            source.write_text(text, "ascii")
            source.chmod(0o644)
            mount(str(source), path, None, MS_BIND)
    syscalls.call("umount2", syscalls.text(place), MNT_DETACH)


def own_mounts() -> None:
    """Leave the host's mounts. Needs a capability in our users. Raises OSError."""
    syscalls.call("unshare", CLONE_NEWNS)
    mount(None, "/", None, MS_REC_PRIVATE)


def without_programs(path: str) -> None:
    """Let no file below a path be run or mapped as a program, where the mounts are our own.

    What is mounted below it is left as it is. Raises OSError, which names the path.
    """
    try:
        mount(path, path, None, MS_BIND | MS_REC)
        mount(None, path, None, MS_REMOUNT | MS_BIND | MS_NOEXEC | os.statvfs(path).f_flag & KEPT_FLAGS)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


def _unshare(wanted: int) -> None:
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        syscalls.call("unshare", wanted)
        return
    syscalls.call("unshare", CLONE_NEWUSER | wanted)
    _keep_identity(uid, gid)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Make the system call of that name. Raises OSError."""
    texts = [None if each is None else syscalls.text(each) for each in (source, target, kind)]
    syscalls.call("mount", *texts, flags, None if data is None else syscalls.text(data))


def _keep_identity(uid: int, gid: int) -> None:
    """Be the same user inside as outside. Raises OSError."""
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", "ascii")
