"""What a call that stands in the kernel wants: which file, program or host, read from the caller's memory.

Trust: none of that memory. The caller may change it while we look: a sight is a hint for a person, and decides nothing.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from benteng.worker.rehearsal.watch import FILES, GRANTABLE, Notice, PathAt
from benteng.worker.sandbox.seccomp import CLONE_NEW, CLONE_THREAD

AT_FDCWD: Final = -100
O_PATH, O_TMPFILE = 0o10000000, 0o20000000
TEXT_BYTES_MAX: Final = 4096
ADDRESS_BYTES_MAX: Final = 128
PAGE_BYTES: Final = 4096
FLAGS_AT: Final = {"open": 1, "openat": 2, "openat2": 2}
ALWAYS_WRITE: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Kind(StrEnum):
    """What was wanted."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "exec"
    CONNECT = "egress"
    PROCESS = "process"
    VARIABLE = "env"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Sight:
    """One thing that was wanted.

    made: the file was not there before;  named: the host's name, as the code looked it up
    """

    kind: Kind
    what: str
    made: bool = False
    named: str = ""


def sights(notice: Notice) -> list[Sight]:
    """Return what a call wants; nothing for what is no matter. Raises OSError for memory out of reach."""
    if notice.call in FILES:
        return [seen for at in FILES[notice.call] if (seen := _file(notice, at)) is not None]
    if notice.call == "connect":
        return _address(notice, 1, 2)
    if notice.call == "sendto":
        return _address(notice, 4, 5)
    if notice.call in ("fork", "vfork", "clone"):
        return _process(notice)
    return [] if notice.call in GRANTABLE else [Sight(Kind.CALL, notice.call)]


def is_refused(notice: Notice) -> bool:
    """Whether no setting of a pool could allow the call."""
    return notice.call not in GRANTABLE or (notice.call == "clone" and bool(notice.arguments[0] & CLONE_NEW))


def _process(notice: Notice) -> list[Sight]:
    if is_refused(notice):
        return [Sight(Kind.CALL, "clone")]
    is_thread = notice.call == "clone" and bool(notice.arguments[0] & CLONE_THREAD)
    return [] if is_thread else [Sight(Kind.PROCESS, "start processes")]


def _file(notice: Notice, at: PathAt) -> Sight | None:
    path = _path(notice, at)
    if not path:
        return None
    if notice.call in ("execve", "execveat"):
        return Sight(Kind.EXECUTE, _real(path)) if os.path.lexists(path) else None
    flags = _flags(notice)
    if flags & O_PATH:
        return None
    there = Path(path).exists()
    if flags & ALWAYS_WRITE or flags & O_TMPFILE == O_TMPFILE:
        return Sight(Kind.WRITE, _real(path), made=not there)
    return Sight(Kind.READ, _real(path)) if there else None


def _flags(notice: Notice) -> int:
    """Return how a file is opened; a call that is no opening changes something."""
    if notice.call not in FLAGS_AT:
        return os.O_WRONLY
    value = notice.arguments[FLAGS_AT[notice.call]]
    return struct.unpack("=Q", _memory(notice.thread, value, 8))[0] if notice.call == "openat2" else value & 0xFFFF_FFFF


def _path(notice: Notice, at: PathAt) -> str:
    named = os.fsdecode(_text(notice.thread, notice.arguments[at.path]))
    if named.startswith("/"):
        return named.replace("/proc/self/", f"/proc/{notice.thread}/", 1)
    directory = AT_FDCWD if at.directory is None else _signed(notice.arguments[at.directory])
    link = "cwd" if directory == AT_FDCWD else f"fd/{directory}"
    base = os.readlink(f"/proc/{notice.thread}/{link}")  # noqa: PTH115 - what it says, not what it leads to
    return os.path.join(base, named) if base.startswith("/") else ""  # noqa: PTH118 - of the caller's words


def _real(path: str) -> str:
    return str(Path(path).resolve())


def _address(notice: Notice, pointer: int, size: int) -> list[Sight]:
    if not notice.arguments[pointer]:
        return []
    length = min(notice.arguments[size] & 0xFFFF_FFFF, ADDRESS_BYTES_MAX)
    where = peer(_memory(notice.thread, notice.arguments[pointer], length))
    return [Sight(Kind.CONNECT, where)] if where else []


def peer(raw: bytes) -> str:
    """Return a socket address as `host:port`, `[host]:port` or `unix:path`; "" for what leads to nobody else."""
    family = int.from_bytes(raw[:2], "little")
    port = int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET and len(raw) >= 8:  # noqa: PLR2004 - family, port and address
        return f"{ipaddress.IPv4Address(raw[4:8])}:{port}"
    if family == socket.AF_INET6 and len(raw) >= 24:  # noqa: PLR2004 - family, port, flow and address
        return f"[{ipaddress.IPv6Address(raw[8:24])}]:{port}"
    if family == socket.AF_UNIX:
        name = os.fsdecode(raw[2:].removeprefix(b"\0").partition(b"\0")[0])
        return "" if name.startswith("/") and not os.path.lexists(name) else f"unix:{name}"
    return ""


def _text(thread: int, address: int) -> bytes:
    """Return the text at an address, up to its end, page by page: the next one may not be there."""
    found = b""
    while len(found) < TEXT_BYTES_MAX:
        at = address + len(found)
        piece = _memory(thread, at, PAGE_BYTES - at % PAGE_BYTES)
        text, end, _ = piece.partition(b"\0")
        found += text
        if end:
            break
    return found[:TEXT_BYTES_MAX]


def _memory(thread: int, address: int, size: int) -> bytes:
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        return os.pread(memory.fileno(), size, address)


def _signed(word: int) -> int:
    low = word & 0xFFFF_FFFF
    return low - (1 << 32) if low >> 31 else low
