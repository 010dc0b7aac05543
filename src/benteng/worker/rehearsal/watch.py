"""A system-call filter that asks an observer, and the observer's end of it. Never in force in a worker.

Calls that a pool's settings could allow are let through after they were seen (SECCOMP_USER_NOTIF_FLAG_CONTINUE: the
caller could change its words meanwhile, so this observes and does not guard). Calls that nothing could allow are
refused as the tier refuses them, and seen too. (seccomp_unotify(2))
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from benteng.policy import Tier
from benteng.worker.egress.notify import REPLY, SEND, Asked, Listener
from benteng.worker.sandbox import bpf, landlock, seccomp, syscalls
from benteng.worker.sandbox.bpf import Refusal, Rule, Zero
from benteng.worker.sandbox.seccomp import Filter, Layer

NOTIFY: Final = 0x7FC0_0000
FLAG_NEW_LISTENER: Final = 1 << 3
FLAG_CONTINUE: Final = 1
ACTION: Final = 0xFFFF_0000
INSTRUCTION: Final = struct.Struct("=HBBI")


@dataclass(frozen=True, slots=True)
class PathAt:
    """Where a call names a file: the argument with the path, and the one with the directory that it is relative to."""

    path: int
    directory: int | None = None


FILES: Final[Mapping[str, tuple[PathAt, ...]]] = MappingProxyType(
    {
        "creat": (PathAt(0),),
        "execve": (PathAt(0),),
        "execveat": (PathAt(1, 0),),
        "link": (PathAt(0), PathAt(1)),
        "linkat": (PathAt(1, 0), PathAt(3, 2)),
        "mkdir": (PathAt(0),),
        "mkdirat": (PathAt(1, 0),),
        "mknod": (PathAt(0),),
        "mknodat": (PathAt(1, 0),),
        "open": (PathAt(0),),
        "openat": (PathAt(1, 0),),
        "openat2": (PathAt(1, 0),),
        "rename": (PathAt(0), PathAt(1)),
        "renameat": (PathAt(1, 0), PathAt(3, 2)),
        "renameat2": (PathAt(1, 0), PathAt(3, 2)),
        "rmdir": (PathAt(0),),
        "symlink": (PathAt(1),),
        "symlinkat": (PathAt(2, 1),),
        "truncate": (PathAt(0),),
        "unlink": (PathAt(0),),
        "unlinkat": (PathAt(1, 0),),
    }
)
"""Calls that name files, and how."""

NETWORK: Final = ("socket", "connect")
PROCESSES: Final = ("fork", "vfork", "clone")
GRANTABLE: Final = frozenset({*FILES, *NETWORK, *PROCESSES, "sendto"})
"""Calls that are let through: settings of a pool decide over them."""

QUIET: Final = frozenset({"clone3"})
"""Refused and not told: every program asks for it first, and goes on without."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A thread stands in the kernel in a call, until it is answered."""

    asked: Asked
    call: str

    @property
    def thread(self) -> int:
        """Which thread it is."""
        return self.asked.thread

    @property
    def arguments(self) -> tuple[int, ...]:
        """The call's six arguments."""
        return self.asked.arguments


def program(tier: Tier, arch: syscalls.Arch, *, own_uid: bool) -> bytes:
    """Return the filter: what a cell of the tier is refused, and what its pool decides over, is asked; LOW: the latter.

    Unknown numbers are absent and foreign conventions kill, as in every cell.
    """
    seen = [
        *(Rule(call, Refusal.VIOLATION) for call in (*FILES, *NETWORK)),
        Rule("sendto", Refusal.NETWORK, (Zero(4),)),
    ]
    numbers = {name: syscalls.number(name, arch) for name in syscalls.NUMBERS}
    is_x86 = arch is syscalls.Arch.X86_64
    rules = [*seen, *rules_of(tier, own_uid=own_uid)]
    code = bpf.assemble(rules, numbers, syscalls.AUDIT_ARCH[arch], syscalls.HIGHEST_KNOWN, x32=is_x86, kill=False)
    return _asking(code)


def rules_of(tier: Tier, *, own_uid: bool) -> tuple[Rule, ...]:
    """Return what a cell of the tier is refused; a LOW cell is refused nothing."""
    if tier is Tier.LOW:
        return ()
    return Filter(Layer.JOB, own_uid=own_uid, landlock_abi=landlock.abi()).rules()


def install(code: bytes) -> int:
    """Put a filter in force for this thread and what it makes, for ever; return its listener. Raises OSError."""
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = seccomp.Program(len(code) // 8, ctypes.addressof(buffer))  # both live until the call is back
    return syscalls.call("seccomp", seccomp.SET_MODE_FILTER, FLAG_NEW_LISTENER, filter_)


def _asking(code: bytes) -> bytes:
    """Return the program with each refusal by a rule turned into a question; the one of unknown numbers stays."""
    unknown = bpf.ERRNO | errno.ENOSYS
    asked = list[bytes]()
    for place, (kind, true, false, value) in enumerate(INSTRUCTION.iter_unpack(code)):
        is_rule = kind == bpf.RETURN and value & ACTION == bpf.ERRNO and not (value == unknown and place < PRELUDE_MAX)
        asked.append(INSTRUCTION.pack(kind, true, false, NOTIFY if is_rule else value))
    return b"".join(asked)


PRELUDE_MAX: Final = 8
"""The question of the number comes within so many instructions of a program."""


class Watcher:
    """The observer's end of a filter."""

    def __init__(self, listener: int, arch: syscalls.Arch) -> None:
        self._listener = Listener(listener)
        self._names = {syscalls.number(name, arch): name for name in syscalls.NUMBERS}

    def fileno(self) -> int:
        """Return the listener."""
        return self._listener.fileno()

    def receive(self) -> Notice | None:
        """Return who asks; None when it is gone already."""
        asked = self._listener.receive()
        return None if asked is None else Notice(asked, self._names.get(asked.call, f"call {asked.call}"))

    def confirm(self, notice: Notice) -> bool:
        """Whether it still stands there: what was read of it before was its own, and not of another with its number."""
        try:
            self._listener.confirm(notice.asked)
        except OSError:
            return False
        return True

    def let(self, notice: Notice) -> None:
        """Let the call go on. Said here alone: a broker has no way to."""
        with contextlib.suppress(FileNotFoundError):  # it died meanwhile
            fcntl.ioctl(self._listener.fileno(), SEND, bytearray(REPLY.pack(notice.asked.id, 0, 0, FLAG_CONTINUE)))

    def refuse(self, notice: Notice, code: int) -> None:
        """Refuse the call with an error."""
        self._listener.answer(notice.asked, code)

    def close(self) -> None:
        """Give the listener back: whoever still asks is told that there is no such call."""
        self._listener.close()
