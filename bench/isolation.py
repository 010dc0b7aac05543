"""What the kernel's walls cost: a forked cell with and without them, a job in a cell that is reused, and memory.

The kinds take turns in one run, from zygotes that have imported the same things; no store takes part. A job is a sha256
and a file written. Prints medians in microseconds, jobs a second with two cells at a time, the ratios that the docs
give, and the memory that a living HIGH cell shares with nobody, as the kernel counts it (smaps_rollup). On a machine
that has other work only the CPU time means something: of zygote and cells together, for each cell.

    .venv/bin/python bench/isolation.py --rounds 40 --exec /usr/bin/env
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import resource
import signal
import socket
import sqlite3
import ssl
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from benteng.policy import LIMITS, Tier
from benteng.worker.sandbox import (
    Spec,
    basic,
    capabilities,
    linux,
    namespaces,
    processes,
    programs,
    roots,
    system,
)

IMPORTED = (asyncio, sqlite3, ssl, urllib.request)
ROUNDS, JOBS = 40, 20
ABREAST, STREAM = 2, 100
"""Cells at a time, and how many in a stream."""


def job(scratch: Path) -> None:
    """Do a little."""
    (scratch / "out").write_text(hashlib.sha256(b"x" * 4096).hexdigest())


class Zygote:
    """A process that forks cells on demand, with or without walls."""

    def __init__(self, root: Path, *, walled: bool, programs: tuple[str, ...] = ()) -> None:
        self.line, theirs = socket.socketpair()
        self.root, self.walled = root, walled
        self.walls = walls_of(root, programs)
        if os.fork() == 0:
            self.line.close()
            self._serve(theirs)
        theirs.close()
        self.line.recv(1)

    def _serve(self, line: socket.socket) -> None:
        system.no_new_privileges()
        if self.walled:
            linux.leave_host(self.walls)
            if self.walls.programs:
                namespaces.own_users()
                capabilities.hold({capabilities.Capability.SYS_ADMIN})
            linux.enter_pool(self.walls)
            linux.prepare(self.walls)
        line.send(b"r")
        while kind := line.recv(1):
            line.send(self._answer(kind).ljust(32))
        os._exit(0)

    def _answer(self, kind: bytes) -> bytes:
        if kind == b"s":
            return self._stream()
        reader, writer = os.pipe()
        pid = self._fork(writer, JOBS if kind == b"m" else 1, stay=kind == b"p")
        os.close(writer)
        told = os.read(reader, 100)
        os.close(reader)
        if kind == b"p":
            return str(pid).encode()
        os.waitpid(pid, 0)
        return told

    def _stream(self) -> bytes:
        """Have so many cells, a few at a time, and return how many there were in a second."""
        started, spent, left = time.perf_counter(), cpu_seconds(), STREAM
        writer = os.open(os.devnull, os.O_WRONLY)
        for _ in range(ABREAST):
            self._fork(writer, 1)
            left -= 1
        while left > 0:
            os.wait()
            self._fork(writer, 1)
            left -= 1
        for _ in range(ABREAST):
            os.wait()
        os.close(writer)
        rate, cpu = STREAM / (time.perf_counter() - started), 1e6 * (cpu_seconds() - spent) / STREAM
        return f"{rate:.1f} {cpu:.0f}".encode()

    def _fork(self, writer: int, jobs: int, *, stay: bool = False) -> int:
        pid = os.fork()
        if pid == 0:
            self._cell(writer, jobs, stay=stay)
        return pid

    def _cell(self, writer: int, jobs: int, *, stay: bool) -> None:
        scratch = self.root / "cell"
        if self.walls.programs:
            processes.leave()
        basic.enter(Spec(os.getppid(), writer, LIMITS[Tier.HIGH], 1, str(scratch)))
        if self.walled:
            linux.enter_job(self.walls, Tier.HIGH if jobs == 1 else Tier.MEDIUM, str(scratch))
        job(scratch)
        started = time.perf_counter()
        for _ in range(jobs):
            job(scratch)
        os.write(basic.KEPT, f"{1e6 * (time.perf_counter() - started) / jobs:.1f}".encode())
        if stay:
            signal.pause()
        os._exit(0)

    def ask(self, kind: bytes) -> list[float]:
        """Return how long the answer took in microseconds, and what it is."""
        started = time.perf_counter()
        self.line.send(kind)
        told = [float(word) for word in self.line.recv(32).split()]
        return [1e6 * (time.perf_counter() - started), *told]

    def private_kb(self) -> int:
        """Return what a living cell that has done a job shares with nobody, and end it; seen from outside."""
        pid = int(self.ask(b"p")[1])
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
        os.kill(pid, signal.SIGKILL)
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def cpu_seconds() -> float:
    """Return what this process and its ended children have used of a processor."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def walls_of(root: Path, listed: tuple[str, ...]) -> linux.Walls:
    """Return the walls of a pool, with a list of programs or without."""
    if not listed:
        return linux.Walls(read=roots.readable(()), scratch=str(root), shut=True)
    found = programs.resolve("bench", listed, (*roots.DATA, *roots.python()))
    return linux.Walls(read=found.read, listed=found.listed, scratch=str(root), shut=True, programs=found.run)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--exec", help="also measure a pool that lists this program")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benteng-bench-") as home:
        (Path(home) / "cell").mkdir()
        zygotes = {"bare": Zygote(Path(home), walled=False), "walled": Zygote(Path(home), walled=True)}
        if options.exec:
            zygotes["with exec"] = Zygote(Path(home), walled=True, programs=(options.exec,))
        found = measure(zygotes, options.rounds)
        for zygote in zygotes.values():
            zygote.line.close()
    if options.json:
        machine = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
        machine["kernel"] = platform.release()
        options.json.write_text(json.dumps({"machine": machine, "rounds": options.rounds, **found}, indent=2) + "\n")


def measure(zygotes: dict[str, Zygote], rounds: int) -> dict[str, dict[str, float]]:
    """Have them take turns, print what came out, and return it."""
    taken: dict[str, dict[str, list[float]]] = {
        name: {"cell": [], "job": [], "rate": [], "cpu": []} for name in zygotes
    }
    for number in range(rounds):
        for name, zygote in zygotes.items():
            taken[name]["cell"].append(zygote.ask(b"h")[0])
            taken[name]["job"].append(zygote.ask(b"m")[1])
            if number % 8 == 0:
                _, rate, cpu = zygote.ask(b"s")
                taken[name]["rate"].append(rate)
                taken[name]["cpu"].append(cpu)
    middle = {name: {what: statistics.median(each) for what, each in found.items()} for name, found in taken.items()}
    heads = ("HIGH cell, us", "its CPU, us", "MEDIUM job, us", f"HIGH/s at {ABREAST}", "private, MiB")
    print(f"{'':10}", *(f"{head:>14}" for head in heads))
    for name, found in middle.items():
        private = found["private_mib"] = round(zygotes[name].private_kb() / 1024, 1)
        print(
            f"{name:10} {found['cell']:14.0f} {found['cpu']:14.0f} {found['job']:14.1f} {found['rate']:14.0f}"
            f" {private:14.1f}"
        )
    bare = middle["bare"]
    for name, found in list(middle.items())[1:]:
        alone, abreast, cpu = (found[each] / bare[each] for each in ("cell", "rate", "cpu"))
        print(
            f"{name} / bare: HIGH {alone:.2f} alone, {1 / abreast:.2f} at {ABREAST}, {cpu:.2f} in CPU;"
            f" MEDIUM {found['job'] / bare['job']:.2f}"
        )
    return middle


if __name__ == "__main__":
    main()
