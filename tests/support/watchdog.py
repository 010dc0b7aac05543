"""End a test server when the test session that started it is gone, however it went.

    python -I watchdog.py SESSION_PID HOME

Waits on the session's pidfd, so that neither threads nor inherited descriptors matter. Then ends exactly the processes
whose working directory is HOME/data (that is PostgreSQL's habit: postmaster and backends stand in their data
directory), and removes HOME. Standard library only; runs as a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
from pathlib import Path


def main(session: int, home: Path) -> None:
    """Wait for the session's end, then clean up behind it."""
    with contextlib.suppress(ProcessLookupError):  # it is gone already
        handle = os.pidfd_open(session)
        if os.getppid() == session:  # else it died before we looked, and the number may be another's
            select.select([handle], [], [])
    end(home / "data")
    shutil.rmtree(home, ignore_errors=True)


def end(data: Path) -> None:
    """Kill every process of the cluster in `data`, wait until they are gone, and free the lock they leave in memory."""
    for pid in processes(data):
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([handle], [], [], 10)
            os.close(handle)

    _free_segment(data / "postmaster.pid")


def _free_segment(pid_file: Path) -> None:
    """Remove the System V segment by which a postmaster guards its directory; a killed one cannot do it itself."""
    with contextlib.suppress(OSError, IndexError, ValueError):  # no file: it ended as it should
        identifier = int(pid_file.read_text().splitlines()[6].split()[1])
        ctypes.CDLL(None).shmctl(identifier, 0, None)  # IPC_RMID


def processes(data: Path) -> list[int]:
    """Return the processes of the cluster in `data`."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _stands_in(entry, data)]


def _stands_in(process: Path, data: Path) -> bool:
    try:
        return process.joinpath("cwd").readlink() == data
    except OSError:  # ended meanwhile, or another user's
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
