"""Ways to take too much, each until ended from outside. Jobs of bounds.py go them in cells, the test without one.

Nothing of benteng is imported here, so that the same lines run where nothing holds them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

FILE_BYTES, FILE_PAUSE_SECONDS = 256 << 10, 1 / 64
"""16 MiB a second at most, in a cell: the disk of a slow machine, so that what a late look costs is known."""

EMPTY_FILES_AT_ONCE = 50
"""And 3,200 names a second."""

STAY_SECONDS = 1.0


def _burn() -> None:
    block = bytes(1 << 20)
    while True:
        hashlib.sha256(block)  # lets go of the interpreter's lock


def burn_cpu(pause_seconds: float) -> None:
    """Keep two processors busy, and ignore being asked to stop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_burn, daemon=True).start()
    _burn()


def burn_cpu_in_daemon(pause_seconds: float) -> None:
    """Keep one processor busy, and one more by a process that left its parents and its session."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _burn()
        os._exit(0)
    _burn()


def write_files(pause_seconds: float) -> None:
    """Fill the directory with files that are small enough."""
    number = 0
    while True:
        Path(f"file-{number}").write_bytes(bytes(FILE_BYTES))
        number += 1
        time.sleep(pause_seconds)


def hold_files(pause_seconds: float) -> None:
    """Fill the disk with files that have no name any more: some open, as many as may be, and large enough."""
    held = []
    while True:
        with Path("file").open("wb", 0) as file:
            Path("file").unlink()
            held.append(os.dup(file.fileno()))
        for _ in range(4):
            os.write(held[-1], bytes(FILE_BYTES))
            time.sleep(pause_seconds)


def make_names(pause_seconds: float) -> None:
    """Fill the directory with files in which nothing is."""
    number = 0
    while True:
        for each in range(EMPTY_FILES_AT_ONCE):
            os.mknod(f"empty-{number}-{each}")
        number += 1
        time.sleep(pause_seconds)


def fork_many(pause_seconds: float) -> None:
    """Make processes that stay; when one is refused, stay with them for a moment, and fail."""
    try:
        while os.fork():
            pass
    except OSError:
        time.sleep(STAY_SECONDS)
        raise
    while True:
        signal.pause()


WAYS = {
    each.__name__.replace("_", "-"): each
    for each in (burn_cpu, burn_cpu_in_daemon, write_files, hold_files, make_names, fork_many)
}

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: its daemons stay below it, so the test ends them
    WAYS[sys.argv[1]](0.0)
