"""Try to get out of real MEDIUM and HIGH cells on this host: what `benteng isolation test` shows.

Each attempt must work without walls, else it proves nothing and is left out. This is the short form, for a user's own
installation, of the escape suite in tests/worker/sandbox. Whether it got out is what the attempt itself sees.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benteng.policy import Tier
from benteng.worker.sandbox import linux, roots, syscalls, system

PTRACE_SEIZE: Final = 0x4206
CLONE_NEWUSER: Final = 0x1000_0000
OUT, HELD, DEAD, BROKEN = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Outside:
    """What lies outside the cell: a file, a directory, a listening port, a process."""

    file: Path
    directory: Path
    scratch: Path
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one attempt: how it ended in each cell. `held`: each cell held it."""

    name: str
    ended: dict[Tier, str]

    @property
    def held(self) -> bool:
        """Whether every cell stood and held it."""
        return all(word in (WORDS[HELD], WORDS[DEAD]) for word in self.ended.values())


def _connect(outside: Outside) -> None:
    socket.create_connection(("127.0.0.1", outside.port), 1).close()


def _send(outside: Outside) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", outside.port))


def _fork(outside: Outside) -> None:
    del outside
    if os.fork() == 0:
        os._exit(0)


def _link(outside: Outside) -> None:
    link = outside.scratch / f"link-{os.getpid()}"
    link.symlink_to(outside.file)
    link.read_bytes()


def _run(outside: Outside) -> None:
    del outside
    os.execv("/bin/true", ["true"])  # noqa: S606 - must be refused


ATTEMPTS: Final[dict[str, Callable[[Outside], object]]] = {
    "read a file outside": lambda outside: outside.file.read_bytes(),
    "read it by a link": _link,
    "write a file outside": lambda outside: outside.file.write_bytes(b"x"),
    "make a file outside": lambda outside: (outside.directory / f"new-{os.getpid()}").touch(),
    "change a mode outside": lambda outside: outside.file.chmod(0o666),
    "connect by TCP": _connect,
    "send by UDP": _send,
    "start a program": _run,
    "start a process": _fork,
    "signal another process": lambda outside: os.kill(outside.pid, 0),
    "slow another process": lambda outside: os.setpriority(os.PRIO_PROCESS, outside.pid, 1),
    "trace another process": lambda outside: syscalls.call("ptrace", PTRACE_SEIZE, outside.pid, 0, 0),
    "make a user namespace": lambda _: syscalls.call("unshare", CLONE_NEWUSER),
    "open an io_uring": lambda _: syscalls.call("io_uring_setup", 1, syscalls.buffer(120)),
    "hold memory in a file": lambda _: os.memfd_create("x"),
    "make shared memory": lambda _: syscalls.call("shmget", 0, 4096, 0o600),
}
"""What is tried. Each raises OSError where it is refused."""


def run() -> list[Result]:
    """Try everything; return one result for each attempt that works without walls."""
    with tempfile.TemporaryDirectory(prefix="benteng-trial-") as home, socket.create_server(("127.0.0.1", 0)) as server:
        outside = _furnish(Path(home), server.getsockname()[1])
        try:
            free = [name for name in ATTEMPTS if _free(name, outside) == OUT]
            return [Result(name, {tier: _in_cell(name, outside, tier) for tier in TIERS}) for name in free]
        finally:
            os.kill(outside.pid, 9)
            os.waitpid(outside.pid, 0)


TIERS: Final = (Tier.MEDIUM, Tier.HIGH)
WORDS: Final = {OUT: "out", HELD: "refused", DEAD: "killed", BROKEN: "no cell"}


def _furnish(home: Path, port: int) -> Outside:
    scratch = home / "scratch" / "cell-1"
    scratch.mkdir(parents=True)
    (home / "file").write_bytes(b"x")
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        system.die_with_parent(parent)
        signal.pause()
        os._exit(0)
    return Outside(home / "file", home, scratch, port, pid)


def _free(name: str, outside: Outside) -> int:
    return _ended(lambda: _attempt(name, outside))


def _in_cell(name: str, outside: Outside, tier: Tier) -> str:
    walls = linux.Walls(read=roots.readable(()), scratch=str(outside.scratch.parent), shut=True)

    def zygote() -> int:
        linux.leave_host(walls)
        linux.enter_pool(walls)
        linux.prepare(walls)
        return _ended(lambda: _shut(name, outside, walls, tier))

    return WORDS[_ended(zygote)]


def _shut(name: str, outside: Outside, walls: linux.Walls, tier: Tier) -> int:
    linux.enter_job(walls, tier, str(outside.scratch))
    return _attempt(name, outside)


def _attempt(name: str, outside: Outside) -> int:
    try:
        ATTEMPTS[name](outside)
    except OSError:
        return HELD
    return OUT


def _ended(body: Callable[[], int]) -> int:
    """Run in a process of its own and return how it ended; what raises is no cell, and so no proof."""
    pid = os.fork()
    if pid == 0:
        code = BROKEN
        try:
            code = body()
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return DEAD if os.WIFSIGNALED(status) else min(os.WEXITSTATUS(status), BROKEN)
