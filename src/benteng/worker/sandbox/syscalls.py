"""System calls by name: their numbers, and the one function that makes one.

x86_64 is tested. The aarch64 column is from the kernel's generic table and UNTESTED: on such a host `probe` still has
to see each layer hold before it counts.
"""

from __future__ import annotations

import ctypes
import os
import platform
from enum import StrEnum
from functools import lru_cache
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Arch(StrEnum):
    """The machines whose numbers are known."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"


AUDIT_ARCH: Final = {Arch.X86_64: 0xC000003E, Arch.AARCH64: 0xC00000B7}
"""How seccomp names the convention by which a call came (linux/audit.h)."""

HIGHEST_KNOWN: Final = 462
"""The last number that was looked at (mseal, Linux 6.10). What a newer kernel adds is unknown, hence absent."""

NUMBERS: Final[dict[str, tuple[int | None, int | None]]] = {
    # For each name the number on x86_64, then on aarch64.
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "capget": (125, 90),
    "capset": (126, 91),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "connect": (42, 203),
    "creat": (85, None),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fork": (57, None),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lchown": (94, None),
    "link": (86, None),
    "linkat": (265, 37),
    "listen": (50, 201),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "lsm_get_self_attr": (459, 459),
    "lsm_list_modules": (461, 461),
    "lsm_set_self_attr": (460, 460),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "request_key": (249, 218),
    "rmdir": (84, None),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
    "vhangup": (153, 58),
}
"""The calls that a filter or this package names. None: the machine does not have it."""


@lru_cache(maxsize=1)
def this_arch() -> Arch | None:
    """Return the machine that this process runs on; None when its numbers are not known."""
    machine = platform.machine()
    return Arch(machine) if machine in tuple(Arch) else None


def number(name: str, arch: Arch) -> int | None:
    """Return a call's number; None when that machine does not have the call. Raises KeyError for an unknown name."""
    return NUMBERS[name][0 if arch is Arch.X86_64 else 1]


def call(name: str, *arguments: int | ctypes.Array[ctypes.c_char] | ctypes.Structure | None) -> int:
    """Make a system call; buffers and structures are passed by address and live until it is back. Raises OSError."""
    arch = this_arch()
    wanted = None if arch is None else number(name, arch)
    if wanted is None:
        raise OSError(38, os.strerror(38))  # ENOSYS: as if the kernel lacked it
    words = [_word(each) for each in arguments]
    result: int = _libc.syscall(ctypes.c_long(wanted), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def buffer(size: int) -> ctypes.Array[ctypes.c_char]:
    """Return zeroed memory of so many bytes, to be passed to a call."""
    return ctypes.create_string_buffer(size)


def text(value: str) -> ctypes.Array[ctypes.c_char]:
    """Return a text as calls take it, to be passed to one."""
    return ctypes.create_string_buffer(os.fsencode(value))


def _word(argument: int | ctypes.Array[ctypes.c_char] | ctypes.Structure | None) -> object:
    match argument:
        case None:
            return ctypes.c_void_p(None)
        case int():
            return ctypes.c_ulong(argument & 0xFFFF_FFFF_FFFF_FFFF)
        case _:
            return ctypes.byref(argument)
