"""The kernel's side of a filter's listener: receive what a process asks, answer it, and reach its socket.

A process that asked is stopped in its system call until it is answered. What it points to is read once; nobody is ever
told to go on with what he asked (SECCOMP_USER_NOTIF_FLAG_CONTINUE), since he could change it meanwhile.
Trust: nothing of a notification but its id. (linux/seccomp.h, seccomp_unotify(2))
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benteng.worker.sandbox import syscalls

RECV: Final = 0xC050_2100
SEND: Final = 0xC018_2101
ID_VALID: Final = 0x4008_2102
ADDFD: Final = 0x4018_2103
SET_FLAGS: Final = 0x4008_2104
SYNC_WAKE_UP: Final = 1
ADDFD_FLAG_SEND: Final = 2
REPLY: Final = struct.Struct("=QqiI")
_NOTIFICATION: Final = struct.Struct("=QIIiIQ6Q")
ADDRESS_BYTES_MAX: Final = 28


@dataclass(frozen=True, slots=True)
class Asked:
    """One call that waits for an answer: who (a thread) asks, which call, and its arguments."""

    id: int
    thread: int
    call: int
    arguments: tuple[int, ...]


class GoneError(OSError):
    """Who asked does not wait any more."""


class Listener:
    """The listener of one pool's filter."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # Linux 6.6: a third of the latency's tail
            fcntl.ioctl(descriptor, SET_FLAGS, SYNC_WAKE_UP)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def close(self) -> None:
        """Give it back: who asks from now on is told that there is no such call."""
        os.close(self._descriptor)

    def receive(self) -> Asked | None:
        """Return what was asked; None when who asked is gone meanwhile."""
        data = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._descriptor, RECV, data)
        except (FileNotFoundError, InterruptedError):
            return None
        number, thread, _, call, _, _, *arguments = _NOTIFICATION.unpack(data)
        return Asked(number, thread, call, tuple(arguments))

    def answer(self, asked: Asked, code: int = 0) -> None:
        """Let the call end with 0 or an errno. Who is gone needs no answer."""
        try:
            fcntl.ioctl(self._descriptor, SEND, bytearray(REPLY.pack(asked.id, 0, -code, 0)))
        except FileNotFoundError:
            return

    def give(self, asked: Asked, descriptor: int, *, cloexec: bool) -> None:
        """Let the call end with a descriptor of ours, copied into the process. Raises OSError, GoneError."""
        flags = os.O_CLOEXEC if cloexec else 0
        data = bytearray(struct.pack("=QIIII", asked.id, ADDFD_FLAG_SEND, descriptor, 0, flags))
        try:
            fcntl.ioctl(self._descriptor, ADDFD, data)
        except FileNotFoundError:
            raise GoneError from None

    def confirm(self, asked: Asked) -> None:
        """Raise GoneError unless the call still waits: what was read of the process since then was its own."""
        try:
            fcntl.ioctl(self._descriptor, ID_VALID, bytearray(struct.pack("=Q", asked.id)))
        except FileNotFoundError:
            raise GoneError from None


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_address(thread: int, pointer: int, size: int) -> bytes:
    """Return the socket address that a call points to, in one copy. Raises OSError."""
    wanted = min(size, ADDRESS_BYTES_MAX)
    buffer = syscalls.buffer(ADDRESS_BYTES_MAX)
    here, there = _Vector(ctypes.addressof(buffer), wanted), _Vector(pointer, wanted)
    if syscalls.call("process_vm_readv", thread, here, 1, there, 1, 0) != wanted:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return buffer.raw[:wanted]


def fetch_socket(pidfd: int, descriptor: int) -> socket.socket:
    """Return the very socket behind a descriptor of another process. Raises OSError."""
    number = syscalls.call("pidfd_getfd", pidfd, descriptor, 0)
    try:
        return socket.socket(fileno=number)
    except OSError:
        os.close(number)
        raise


def process_of(thread: int) -> int:
    """Return the process that a thread belongs to. Raises OSError when it is gone."""
    for line in Path(f"/proc/{thread}/status").read_text("utf-8", "replace").splitlines():
        if line.startswith("Tgid:"):
            return int(line[5:])
    raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
