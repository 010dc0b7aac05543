"""Take what opens the store out of the sight of LOW jobs, which have no walls of files: by covering it.

The zygote of a pool with LOW types leaves the host's view of the files before it imports the app, and lays an empty
directory over the store's, the keys' and others. It has no right to take one away afterwards, and in a namespace that
a job makes the covers are locked. For an ordinary user without a uid for the pool; root's jobs without one have root's
rights, and a uid of its own needs none of this. (mount_namespaces(7), user_namespaces(7))
Trust: what runs afterwards is hostile, but may use every other service of the user; see docs/reference/isolation.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benteng.worker.sandbox import capabilities, namespaces

CLONE_NEWNS: Final = 0x0002_0000
READ_ONLY, NO_SETUID, NO_DEVICES, NO_PROGRAMS = 1, 2, 4, 8
BIND, ALL_BELOW, PRIVATE = 0x1000, 0x4000, 0x4_0000
EMPTY: Final = "size=4k,nr_inodes=1,mode=0500"


def free_to_cover(directories: Iterable[Path], needed: Iterable[str]) -> bool:
    """Whether nothing that jobs need lies in these directories."""
    covered = [each.resolve() for each in directories]
    return not any(Path(path).resolve().is_relative_to(each) for path in needed for each in covered)


def enter(covers: Iterable[str]) -> None:
    """Lay something empty over each of these that exists, for ever, for this process and what it makes.

    Raises OSError where the host forbids it.
    """
    namespaces.own_users(CLONE_NEWNS)
    namespaces.mount(None, "/", None, ALL_BELOW | PRIVATE)
    for path in covers:
        if Path(path).is_dir():
            namespaces.mount("tmpfs", path, "tmpfs", READ_ONLY | NO_SETUID | NO_DEVICES | NO_PROGRAMS, EMPTY)
        elif Path(path).exists():
            namespaces.mount(os.devnull, path, None, BIND)
    capabilities.limit()
    capabilities.drop()
