"""Tell idle workers of a ledger that there may be something to do: a datagram by a socket beside the file.

A hint carries nothing and promises nothing: it is lost when nobody listens, and what it would have told is found by
polling. The sockets lie in a directory of the owner's alone; one that nobody listens to any more is removed by whoever
finds that out. Where sockets cannot be made (no /proc, a strange directory) there are no hints, and nothing fails.
Trust: nobody who sends. Whoever has our uid may send hints; they make a worker look, and a worker bounds how often.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path

SUFFIX = "-hints"
LISTENERS_MAX = 256
"""So many sockets are looked at by one who tells; more workers than that find their jobs by polling."""

HEARD_MAX = 64
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Ear:
    """The socket of one consumer. See store.contract.Hints."""

    def __init__(self, path: Path, pool: str) -> None:
        """Make the socket of a worker of this pool. Raises OSError when that cannot be."""
        self._path = path
        self._name = f"{_of_pool(pool)}-{secrets.token_hex(8)}"
        with suppress(FileExistsError):
            _directory(path).mkdir(mode=0o700)
        with _opened(path) as directory:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            try:
                self._socket.bind(_address(directory, self._name))
                os.chmod(self._name, 0o600, dir_fd=directory)
            except OSError:
                self._socket.close()
                raise

    def fileno(self) -> int:
        """Return the descriptor that is readable when a hint may have come; -1 when this ear is closed."""
        return self._socket.fileno()

    def heard(self) -> bool:
        """Take in what has come, and return whether that was anything."""
        for count in range(HEARD_MAX):
            try:
                self._socket.recv(1)
            except OSError:
                return count > 0
        return True

    def is_there(self) -> bool:
        """Whether those who tell still find it: somebody may have moved or emptied the directory."""
        return (_directory(self._path) / self._name).is_socket()

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        with suppress(OSError), _opened(self._path) as directory:
            os.unlink(self._name, dir_fd=directory)


def ring(path: Path, pools: Collection[str]) -> None:
    """Tell the workers of some pools. Never raises, never waits: whoever does not hear it polls."""
    if not pools:
        return
    ours = {_of_pool(pool) for pool in pools}
    with suppress(OSError), _opened(path) as directory, os.scandir(directory) as entries:
        names = [entry.name for entry in islice(entries, LISTENERS_MAX) if entry.name.partition("-")[0] in ours]
        if names:
            _tell(directory, names)


def _tell(directory: int, names: list[str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sock:
        for name in names:
            try:
                sock.sendto(b"\0", _address(directory, name))
            except ConnectionRefusedError:  # its worker is dead; a name is never used again
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
            except OSError:  # it is full of hints, or gone a moment ago
                continue


@contextmanager
def _opened(path: Path) -> Generator[int]:
    """Open the directory of the sockets. Raises OSError when it is a link, another's, or open to others."""
    directory = os.open(_directory(path), _OPEN)
    try:
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError
        yield directory
    finally:
        os.close(directory)


def _directory(path: Path) -> Path:
    return path.with_name(f"{path.name}{SUFFIX}")


def _address(directory: int, name: str) -> str:
    """Return a path that is short however deep the ledger lies: an address has 108 bytes."""
    return f"/proc/self/fd/{directory}/{name}"


def _of_pool(pool: str) -> str:
    return sha256(pool.encode("utf-8", "replace")).hexdigest()[:16]
