"""Landlock: which files this thread and what it forks may touch, for ever; and, as second wall, no TCP and no signals.

Rights are granted to directories, everything else is refused; a right that the kernel's version does not know is not
handled and is then refused by the system-call filter (seccomp.py, `landlock_abi`). Layers stack: each can only take
away. Kernel documentation: userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from functools import lru_cache
from typing import Final

from benteng.worker.sandbox import syscalls

CREATE_VERSION: Final = 1
RULE_PATH_BENEATH: Final = 1


class Right(IntFlag):
    """What may be done with files (linux/landlock.h, LANDLOCK_ACCESS_FS_*)."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


NET_BIND_TCP: Final = 1
NET_CONNECT_TCP: Final = 2
SCOPE_ABSTRACT_UNIX_SOCKET: Final = 1
SCOPE_SIGNAL: Final = 2

RIGHTS_BY_ABI: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many of the rights above a version knows; later versions know all of them."""

ABI_TRUNCATE: Final = 3
ABI_NET: Final = 4
ABI_SCOPE: Final = 6
ATTRIBUTE_BYTES: Final = {ABI_NET: 16, ABI_SCOPE: 24}


class Access(StrEnum):
    """What a grant is for."""

    LIST = "list"
    READ = "read"
    WRITE = "write"
    DEVICE = "device"
    EXECUTE = "execute"


_READ = int(Right.READ_FILE | Right.READ_DIR)
_WRITE = int(
    _READ
    | Right.WRITE_FILE
    | Right.REMOVE_DIR
    | Right.REMOVE_FILE
    | Right.MAKE_DIR
    | Right.MAKE_REG
    | Right.MAKE_SYM
    | Right.MAKE_FIFO
    | Right.REFER
    | Right.TRUNCATE
)
ACCESS: Final[dict[Access, int]] = {
    Access.LIST: int(Right.READ_DIR),
    Access.READ: _READ,
    Access.WRITE: _WRITE,  # no devices, no sockets
    Access.DEVICE: int(Right.READ_FILE | Right.WRITE_FILE),
    Access.EXECUTE: int(_READ | Right.EXECUTE),
}
_FOR_FILES: Final = int(Right.EXECUTE | Right.WRITE_FILE | Right.READ_FILE | Right.TRUNCATE | Right.IOCTL_DEV)
"""The rights that a rule for a single file may have."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What may be done with a file, or with everything below a directory."""

    path: str
    access: Access


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@lru_cache(maxsize=1)
def abi() -> int:
    """Return the version that the kernel has; 0 when it has none or it is switched off."""
    try:
        return syscalls.call("landlock_create_ruleset", None, 0, CREATE_VERSION)
    except OSError:
        return 0


def handled(version: int) -> Right:
    """Return the rights that are refused unless granted, in a version of at least 1."""
    return Right((1 << RIGHTS_BY_ABI[min(version, max(RIGHTS_BY_ABI))]) - 1)


def restrict(grants: Iterable[Grant], version: int) -> tuple[str, ...]:
    """Refuse this thread every file but those granted, all TCP, and what the version can scope; return what it did.

    A path that does not exist is granted to nobody. Needs no_new_privs. Raises OSError.
    """
    if version < 1:
        raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock")
    attributes = _attributes(version)
    size = next((size for since, size in sorted(ATTRIBUTE_BYTES.items(), reverse=True) if version >= since), 8)
    ruleset = syscalls.call("landlock_create_ruleset", attributes, size, 0)
    try:
        known = int(handled(version))
        for grant in grants:
            _add(ruleset, grant, known)
        syscalls.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return ("landlock_files", *_beside(version))


def nowhere(version: int) -> tuple[str, ...]:
    """Refuse this thread all TCP of its own, and nothing else; return the layer. Needs no_new_privs.

    Raises OSError, also before version 4, which is the first that knows of it.
    """
    if version < ABI_NET:
        raise OSError(errno.EOPNOTSUPP, "this kernel's Landlock does not know TCP (Linux 6.7)")
    attributes = _Attributes(handled_access_net=NET_BIND_TCP | NET_CONNECT_TCP)
    ruleset = syscalls.call("landlock_create_ruleset", attributes, ATTRIBUTE_BYTES[ABI_NET], 0)
    try:
        syscalls.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return ("landlock_tcp",)


def _attributes(version: int) -> _Attributes:
    attributes = _Attributes(handled_access_fs=int(handled(version)))
    if version >= ABI_NET:
        attributes.handled_access_net = NET_BIND_TCP | NET_CONNECT_TCP
    if version >= ABI_SCOPE:
        attributes.scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL
    return attributes


def _beside(version: int) -> tuple[str, ...]:
    return (*(("landlock_tcp",) if version >= ABI_NET else ()), *(("landlock_scopes",) if version >= ABI_SCOPE else ()))


def _add(ruleset: int, grant: Grant, known: int) -> None:
    try:
        parent = os.open(grant.path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # nothing there for us: nothing to grant
        return
    try:
        rights = ACCESS[grant.access] & known
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= _FOR_FILES
        rule = _PathBeneath(allowed_access=rights, parent_fd=parent)
        syscalls.call("landlock_add_rule", ruleset, RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(parent)
