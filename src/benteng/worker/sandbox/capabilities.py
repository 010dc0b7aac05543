"""Give up capabilities, and become another user: what root must do before it runs what it does not trust.

After `drop` neither this process nor anything it executes can have a capability again. Source: capabilities(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Collection
from enum import IntEnum
from typing import Final

from benteng.worker.sandbox import syscalls, system

VERSION_3: Final = 0x2008_0522
PR_CAPBSET_DROP: Final = 24
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_RAISE: Final = 2
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
NUMBERS_MAX: Final = 64
PR_SET_KEEPCAPS: Final = 8


class Capability(IntEnum):
    """The numbers of those that somebody of ours may keep (linux/capability.h)."""

    KILL = 5
    SETGID = 6
    SETUID = 7
    SETPCAP = 8
    SYS_PTRACE = 19
    SYS_ADMIN = 21


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = tuple(
        (f"{name}_{half}", ctypes.c_uint32) for half in (0, 1) for name in ("effective", "permitted", "inheritable")
    )


def become(uid: int, gid: int) -> None:
    """Be that user and group for ever, with no other group. Needs root; raises OSError, also when it did not hold."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid) or os.getgroups():
        raise OSError(errno.EPERM, "the user did not change")


def become_keeping(uid: int, gid: int, capability: Capability) -> None:
    """As `become`, but keep this one capability. Raises OSError."""
    system.prctl(PR_SET_KEEPCAPS, 1)
    become(uid, gid)
    system.prctl(PR_SET_KEEPCAPS, 0)
    hold({capability})


def hand_on(capability: Capability) -> None:
    """Let the next program have this capability, which this process holds, and no other. Raises OSError."""
    low, high = (1 << capability) & 0xFFFF_FFFF, (1 << capability) >> 32
    low_sets = {"effective_0": low, "permitted_0": low, "inheritable_0": low}
    high_sets = {"effective_1": high, "permitted_1": high, "inheritable_1": high}
    syscalls.call("capset", _Header(VERSION_3, 0), _Sets(**low_sets, **high_sets))
    system.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def hold(wanted: Collection[Capability]) -> None:
    """Have these and no other, none of them by inheritance. Raises OSError, also when it did not hold."""
    system.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    bits = sum(1 << number for number in wanted)
    low, high = bits & 0xFFFF_FFFF, bits >> 32
    sets = _Sets(effective_0=low, permitted_0=low, effective_1=high, permitted_1=high)
    syscalls.call("capset", _Header(VERSION_3, 0), sets)
    if held() != bits:
        raise OSError(errno.EPERM, "the capabilities are not those that were asked for")


def limit(keep: Collection[Capability] = ()) -> None:
    """Take capabilities out of the bounding set, all but these, where the right to do so is there. Before `become`."""
    if not held() >> Capability.SETPCAP & 1:
        return
    for number in sorted(set(range(NUMBERS_MAX)) - set(keep)):
        try:
            system.prctl(PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: the kernel has no more
                raise
            return


def drop() -> tuple[str, ...]:
    """Give up all capabilities; return the layer. Raises OSError, also when one is left."""
    if any(bytes(_sets())):  # none: nor an ambient one, which is always permitted and inheritable too
        hold(())
    return ("capabilities",)


def held() -> int:
    """Return the capabilities that this process has or could take, as bits. Raises OSError."""
    sets = _sets()
    low, high = (sets.effective_0 | sets.permitted_0, sets.effective_1 | sets.permitted_1)
    return int(low | high << 32)


def _sets() -> _Sets:
    sets = _Sets()
    syscalls.call("capget", _Header(VERSION_3, 0), sets)
    return sets
