"""Job types for rehearsals: each does what its name says, in the directory that PLACE names, and writes what it saw."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import select
import socket
import subprocess
from pathlib import Path

from benteng.app import Benteng
from benteng.contract import Contract, Slug, Target
from benteng.policy import Effect, Tier

app = Benteng()
PLACE = Path(os.environ["PLACE"])
(PLACE / "in" / "import.txt").read_text()


class Act(Contract):
    name: Slug


class HighAct(Contract):
    name: Slug
    host: Target


def medium(name, **policy):
    """Define a MEDIUM type."""
    wanted = {"tier": Tier.MEDIUM, "effect": Effect.REPEATABLE, "operation": ("name",), "resources": None}
    return app.job(name, **wanted | policy)


def every() -> str:
    """Read, write, start, connect: once by Python, once by C alone."""
    os.environ.get("NOT_SET_ANYWHERE")
    os.environ.get("EXTRA")
    (PLACE / "out" / "made.txt").write_text((PLACE / "in" / "read.txt").read_text())
    (PLACE / "out" / "old.txt").unlink()
    libc = ctypes.CDLL(None)
    os.close(libc.open(os.fsencode(PLACE / "in" / "by-c.txt"), os.O_RDONLY))
    subprocess.run([PLACE / "tee", PLACE / "out" / "teed"], input=b"teed", stdout=subprocess.DEVNULL, check=True)
    with socket.create_connection(("localhost", int(os.environ["PORT"])), 5) as sock:
        sock.sendall(b"hello")
    return "done"


@medium("every@1")
def every_medium(act: Act) -> str:
    """All of it in a MEDIUM cell."""
    return every()


@app.job("every.high@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("name",), resources=("host",))
def every_high(act: HighAct) -> str:
    """All of it in a HIGH cell."""
    return every()


@app.job("every.low@1")
async def every_low(name: str) -> str:
    """All of it in a LOW cell, on an event loop."""
    await asyncio.sleep(0)
    return every()


@medium("change@1")
def change(act: Act) -> None:
    """Change the entries of a directory in each way that there is, and open a file by the oldest call."""
    at = PLACE / "out"
    for name in ("a", "b", "c", "d"):
        (PLACE / "in" / f"{name}.txt").rename(at / f"{name}-renamed")
    (at / "a-renamed").replace(at / "a-replaced")
    (at / "linked").hardlink_to(at / "b-renamed")
    (at / "symlinked").symlink_to(at / "b-renamed")
    (at / "directory").mkdir()
    (at / "removed").rmdir()
    os.truncate(PLACE / "in" / "by-c.txt", 0)
    os.mkfifo(at / "fifo")
    os.rename("d-renamed", "e", src_dir_fd=(fd := os.open(at, os.O_RDONLY)), dst_dir_fd=fd)
    if platform.machine() == "x86_64":
        os.close(ctypes.CDLL(None).syscall(2, os.fsencode(PLACE / "in" / "read.txt"), os.O_RDONLY))


@medium("steal@1")
def steal(act: Act) -> None:
    """Reach for what nobody may have, by a link, and by a program too."""
    said = []
    for path in os.environ["WANTED"].split(":"):
        link = Path(os.environ["HOME"]) / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        for attempt in (Path(path).read_bytes, link.read_bytes, lambda path=path: Path(path).write_bytes(b"x")):
            try:
                attempt()
                said.append("got")
            except OSError as error:
                said.append(error.strerror)
        read = subprocess.run(["/bin/cat", path], check=False, capture_output=True)
        said.append("got" if read.stdout else "Permission denied")
    (PLACE / "out" / "said").write_text("\n".join(said))


@medium("forbidden@1")
def forbidden(act: Act) -> None:
    """Make calls that no setting gives."""
    said = []
    for attempt in (lambda: os.memfd_create("x"), lambda: socket.socket().bind(("127.0.0.1", 0))):
        try:
            attempt()
            said.append("did")
        except OSError as error:
            said.append(str(error.errno))
    (PLACE / "out" / "said").write_text(" ".join(said))


@medium("strange@1")
def strange(act: Act) -> None:
    """Call with pointers to nowhere, with a path that leads to itself, and look for the observer's end."""
    libc = ctypes.CDLL(None, use_errno=True)
    loop = Path(os.environ["HOME"]) / "loop"
    loop.symlink_to(loop)
    said = []
    for pointer in (0xFFFF_FFFF_FFFF_FF00, 0x7FFF_FFFF_FFFF_FFFF, 1, os.fsencode(loop)):
        address = ctypes.c_void_p(pointer) if isinstance(pointer, int) else pointer
        said += [libc.open(address, 0), libc.syscall(437, -100, address, address, 24), libc.connect(0, address, 16)]
    ends = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    (PLACE / "out" / "said").write_text(f"{set(said)} {[each for each in ends if 'seccomp' in each]}")


@medium("stay@1", run_seconds_max=1.0, grace_seconds=0.2)
def stay(act: Act) -> None:
    """Start a process that leaves the group, and never end."""
    child = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
    (PLACE / "out" / "pid").write_text(str(child.pid))
    select.select([], [], [])


@medium("fail@1")
def fail(act: Act) -> None:
    """Raise."""
    raise ValueError("it did not work")
