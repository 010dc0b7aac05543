"""What the kernel's walls cost: a forked cell with and without them, and a job in a cell that is reused.

Both kinds take turns in one run, from zygotes that have imported the same things; no store takes part. A job is a
sha256 and a file written. Prints medians in microseconds and the ratios that the docs give.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import socket
import sqlite3
import ssl
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from benteng.policy import LIMITS, Tier
from benteng.worker.sandbox import Spec, basic, linux, roots, system

IMPORTED = (asyncio, sqlite3, ssl, urllib.request)
ROUNDS, JOBS = 40, 20


def job(scratch: Path) -> None:
    """Do a little."""
    (scratch / "out").write_text(hashlib.sha256(b"x" * 4096).hexdigest())


class Zygote:
    """A process that forks cells on demand, with or without walls."""

    def __init__(self, root: Path, *, walled: bool) -> None:
        self.line, theirs = socket.socketpair()
        self.root, self.walled = root, walled
        self.walls = linux.Walls(read=roots.readable(()), scratch=str(root))
        if os.fork() == 0:
            self.line.close()
            self._serve(theirs)
        theirs.close()
        self.line.recv(1)

    def _serve(self, line: socket.socket) -> None:
        system.no_new_privileges()
        if self.walled:
            linux.leave_host()
            linux.enter_pool(self.walls)
            linux.prepare(self.walls)
        line.send(b"r")
        while kind := line.recv(1):
            jobs = JOBS if kind == b"m" else 1
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                self._cell(writer, jobs)
            os.close(writer)
            told = os.read(reader, 100)
            os.close(reader)
            os.waitpid(pid, 0)
            line.send(told.ljust(32))
        os._exit(0)

    def _cell(self, writer: int, jobs: int) -> None:
        scratch = self.root / "cell"
        basic.enter(Spec(os.getppid(), writer, LIMITS[Tier.HIGH], 1, str(scratch)))
        if self.walled:
            linux.enter_job(self.walls, Tier.HIGH if jobs == 1 else Tier.MEDIUM, str(scratch))
        job(scratch)
        started = time.perf_counter()
        for _ in range(jobs):
            job(scratch)
        os.write(basic.KEPT, f"{1e6 * (time.perf_counter() - started) / jobs:.1f}".encode())
        os._exit(0)

    def ask(self, kind: bytes) -> tuple[float, float]:
        """Return how long a whole cell took, and one job in it; microseconds."""
        started = time.perf_counter()
        self.line.send(kind)
        told = float(self.line.recv(32))
        return 1e6 * (time.perf_counter() - started), told


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="benteng-bench-") as home:
        (Path(home) / "cell").mkdir()
        bare, walled = (Zygote(Path(home), walled=walled) for walled in (False, True))
        taken: dict[str, list[float]] = {"bare": [], "walled": [], "job, bare": [], "job, walled": []}
        for _ in range(rounds):
            for name, zygote in (("bare", bare), ("walled", walled)):
                taken[name].append(zygote.ask(b"h")[0])
                taken[f"job, {name}"].append(zygote.ask(b"m")[1])
        for zygote in (bare, walled):
            zygote.line.close()
    middle = {name: statistics.median(values) for name, values in taken.items()}
    for name, value in middle.items():
        print(f"{name:12} {value:9.1f} us")
    print(f"HIGH: a cell with walls / without       {middle['walled'] / middle['bare']:.2f}")
    print(f"MEDIUM: a job in a cell with / without  {middle['job, walled'] / middle['job, bare']:.2f}")


if __name__ == "__main__":
    main()
