"""Which system calls a sandboxed process is refused, as tables; and how the filter is put in force.

A deny-list with rules for arguments; numbers that nobody looked at are absent, so that a new kernel adds no surface.
It closes what Landlock leaves open: sockets that need no path, processes, other processes, kernel objects, metadata.
Sources: reference/security.md 1.3, reference/egress.md 3. Trust: what runs under it is hostile.
"""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, assert_never

from benteng.worker.sandbox import landlock, syscalls
from benteng.worker.sandbox.bpf import (
    AnyBits,
    Listed,
    NoBits,
    NoneOf,
    NotZero,
    OneOf,
    Outside,
    Refusal,
    Rule,
    Zero,
    assemble,
)

PR_SET_SECCOMP: Final = 22
SET_MODE_FILTER: Final = 1
FLAG_NEW_LISTENER: Final = 1 << 3
FLAG_WAIT_KILLABLE_RECV: Final = 1 << 5
"""Linux 5.19. Without it a signal ends a call that the broker is answering, and clients take that for connected."""

CLONE_THREAD: Final = 0x0001_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEW: Final = 0x7E02_0080
"""NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME."""

MSG_FASTOPEN: Final = 0x2000_0000
AF_INET, AF_INET6, IPPROTO_TCP = 2, 10, 6
SOCK_STREAM, SOCK_SEQPACKET, SOCK_TYPE_MASK = 1, 5, 0xF
O_TRUNC, O_ACCMODE = 0o1000, 0o3

SOCKET_OPTIONS: Final = (
    (1, (2, 3, 4, 6, 7, 8, 9, 10, 13, 15, 20, 21, 29, 30, 38, 39, 47)),  # SOL_SOCKET; not BINDTODEVICE (25), MARK (36)
    (6, (1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 18, 25)),  # TCP; not FASTOPEN_CONNECT (30), REPAIR (19), ULP (31)
    (0, (1, 2, 10, 11, 24)),  # IP: TOS, TTL, MTU_DISCOVER, RECVERR, MINTTL...; not OPTIONS (4): source routes
    (41, (16, 25, 26, 66, 67)),  # IPv6: hops, RECVERR, V6ONLY, RECVTCLASS, TCLASS; not RTHDR (57): source routes
)
"""The only options that may be set. IPV6_RTHDR would send a connected socket's data elsewhere (egress.md 3)."""

PRCTL_OPTIONS: Final = (2, 3, 4, 15, 16, 21, 23, 29, 30, 38, 39, 41, 42, 0x53564D41)
"""What a job may ask prctl for: to read its state, to name threads and memory; PDEATHSIG (1) stays as it is set."""

IOCTL_TERMINAL: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into the terminal of others
IOCTL_OWNER: Final = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP: have a signal sent to others
IOCTL_ATTRIBUTES: Final = (0x4008_6602, 0x4004_6602, 0x401C_5820)  # FS_IOC_SETFLAGS twice, FS_IOC_FSSETXATTR
IOCTL_INTERFACES: Final = (0x8910, 0x89FF)  # SIOCGIF...: which networks the host has
FCNTL_OWNER: Final = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX


@dataclass(frozen=True, slots=True)
class Ban:
    """Calls that are refused whatever their arguments, and why."""

    why: str
    refusal: Refusal
    calls: str

    def rules(self) -> list[Rule]:
        """Return one rule for each call."""
        return [Rule(call, self.refusal, why=self.why) for call in self.calls.split()]


BANS: Final = (
    Ban(
        "looks into or changes other processes",
        Refusal.VIOLATION,
        "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd pidfd_send_signal "
        "move_pages migrate_pages",
    ),
    Ban(
        "changes what file systems there are, or opens files without a path",
        Refusal.VIOLATION,
        "mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr "
        "open_by_handle_at quotactl quotactl_fd swapon swapoff",
    ),
    Ban("enters a namespace", Refusal.VIOLATION, "setns"),
    Ban(
        "programs or administers the kernel",
        Refusal.VIOLATION,
        "bpf userfaultfd init_module finit_module delete_module kexec_load kexec_file_load reboot acct syslog iopl "
        "ioperm modify_ldt vhangup settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname",
    ),
    Ban("does what it is told past this filter", Refusal.ABSENT, "io_uring_setup io_uring_enter io_uring_register"),
    Ban("holds memory that no limit of the cell counts", Refusal.ABSENT, "memfd_create memfd_secret"),
    Ban("keeps data in the kernel beyond the job", Refusal.ABSENT, "keyctl add_key request_key"),
    Ban(
        "talks to other processes of the host",
        Refusal.ABSENT,
        "shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink",
    ),
    Ban(
        "watches others, or is obsolete",
        Refusal.ABSENT,
        "perf_event_open name_to_handle_at fanotify_init fanotify_mark inotify_add_watch statmount listmount "
        "lsm_get_self_attr lsm_set_self_attr lsm_list_modules lookup_dcookie sysfs ustat uselib _sysctl nfsservctl "
        "personality",
    ),
    Ban("has its flags behind a pointer, where no filter sees them", Refusal.ABSENT, "clone3"),
    Ban(
        "writes attributes and times of whatever the uid may write, which Landlock does not look at",
        Refusal.DENIED,
        "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr utime utimes futimesat",
    ),
    Ban("takes connections", Refusal.NETWORK, "bind listen accept accept4"),
)
"""Refused in every layer."""

OPEN_BANS: Final = tuple(ban for ban in BANS if {"io_uring_setup", "bind"} & {*ban.calls.split()})
"""What LOW is refused where its pool has `egress`: each would go past the broker."""

NO_NETWORK: Final = Ban("makes or connects sockets", Refusal.NETWORK, "socket connect")
"""Refused where the pool has no `egress`."""

TCP_ALONE: Final = (
    Rule(
        "socket",
        Refusal.NETWORK,
        (
            OneOf(0, (AF_INET, AF_INET6)),
            OneOf(1, (SOCK_STREAM,), SOCK_TYPE_MASK),
            OneOf(2, (0, IPPROTO_TCP)),
        ),
        "TCP alone",
    ),
)
"""Refused where the pool has `egress`."""

BROKER: Final = (
    Rule("socket", Refusal.BROKER, why="the broker makes it, in its own network"),
    Rule("connect", Refusal.BROKER, why="the broker connects it, to what it chose itself"),
)
"""Asked of the broker by the filter with the listener. A later filter allows them: were it to ask too, it would win and
have nobody to ask (egress.md 4, "stacked filters")."""

SENDING: Final = (
    Rule("sendto", Refusal.NETWORK, (NoBits(3, MSG_FASTOPEN), Zero(4)), "no address, no connect by fast open"),
    Rule("sendmsg", Refusal.NETWORK, (NoBits(2, MSG_FASTOPEN),), "its address counts only when unconnected"),
    Rule("sendmmsg", Refusal.NETWORK, (NoBits(3, MSG_FASTOPEN),), "as sendmsg"),
    Rule(
        "socketpair",
        Refusal.NETWORK,
        (OneOf(1, (SOCK_STREAM, SOCK_SEQPACKET), SOCK_TYPE_MASK),),
        "a datagram socket can be sent from to any path",
    ),
    Rule("setsockopt", Refusal.OPTION, (Listed(1, 2, SOCKET_OPTIONS),), "no option that redirects what is sent"),
    Rule(
        "ioctl",
        Refusal.DENIED,
        (NoneOf(1, (*IOCTL_TERMINAL, *IOCTL_OWNER)), Outside(1, *IOCTL_INTERFACES)),
        "no typing for others, no signals to others, no list of networks",
    ),
)
"""Refused in every layer unless the arguments are these: what a socket can still do once it is there."""

ARGUMENTS: Final = (
    Rule("clone", Refusal.VIOLATION, (NoBits(0, CLONE_NEW),), "no new namespace"),
    *SENDING,
    Rule("utimensat", Refusal.DENIED, (NotZero(2),), "the present time may be set by whoever may write"),
    Rule("prlimit64", Refusal.DENIED, (OneOf(0, (0,)),), "only its own limits"),
    Rule("sched_setaffinity", Refusal.DENIED, (OneOf(0, (0,)),), "only its own thread"),
    Rule("sched_setscheduler", Refusal.DENIED, (OneOf(0, (0,)),), "only its own thread"),
    Rule("sched_setparam", Refusal.DENIED, (OneOf(0, (0,)),), "only its own thread"),
    Rule("sched_setattr", Refusal.DENIED, (OneOf(0, (0,)),), "only its own thread"),
    Rule("setpriority", Refusal.DENIED, (OneOf(0, (0,)), OneOf(1, (0,))), "only its own thread"),
    Rule("ioprio_set", Refusal.DENIED, (OneOf(0, (1,)), OneOf(1, (0,))), "only its own thread"),
)
"""Refused in every layer unless the arguments are these."""

NAMESPACES: Final = (Rule("unshare", Refusal.VIOLATION, why="makes a namespace"),)
"""Refused but to the zygote of a pool with a list of programs."""

PROCESS_NAMESPACES: Final = (
    Rule("unshare", Refusal.VIOLATION, (OneOf(0, (CLONE_NEWPID,)),), "none but of processes, one for each cell"),
)
"""Refused to the zygote of such a pool."""

PROCESSES: Final = (
    Rule("clone", Refusal.DENIED, (AnyBits(0, CLONE_THREAD),), "threads, but no processes"),
    Rule("fork", Refusal.DENIED, why="no processes"),
    Rule("vfork", Refusal.DENIED, why="no processes"),
)
"""Refused to a cell where no program may be started."""

NO_LISTENER: Final = (
    Rule("seccomp", Refusal.VIOLATION, why="a second listener could answer for the first (egress.md 3)"),
    Rule("prctl", Refusal.VIOLATION, (NoneOf(0, (PR_SET_SECCOMP,)),), "as seccomp"),
)
"""Refused to a cell, also to a LOW one whose pool has `egress`."""

JOB: Final = (
    *NO_LISTENER,
    Rule("prctl", Refusal.DENIED, (OneOf(0, PRCTL_OPTIONS),), "what ties it to its parent stays"),
    Rule("pidfd_open", Refusal.DENIED, why="no handle on others"),
)
"""Refused to a cell, while its zygote needs them to make cells."""

EXECUTE: Final = (
    Rule("execve", Refusal.VIOLATION, why="no other program"),
    Rule("execveat", Refusal.VIOLATION, why="no other program"),
)
"""Refused where no program may be started."""

METADATA: Final = (
    *Ban(
        "changes modes, owners and times of the uid's files, which Landlock does not look at",
        Refusal.DENIED,
        "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utimensat",
    ).rules(),
    Rule("ioctl", Refusal.DENIED, (NoneOf(1, IOCTL_ATTRIBUTES),), "as setxattr"),
)
"""Refused when the uid has files that are not the job's."""

WITHOUT_TRUNCATE: Final = (
    Rule("truncate", Refusal.DENIED, why="this version of Landlock does not look at it"),
    Rule("open", Refusal.DENIED, (NoneOf(1, (O_TRUNC,), O_TRUNC | O_ACCMODE),), "as truncate"),
    Rule("openat", Refusal.DENIED, (NoneOf(2, (O_TRUNC,), O_TRUNC | O_ACCMODE),), "as truncate"),
    Rule("openat2", Refusal.ABSENT, why="as clone3"),
)
"""Refused when Landlock is older than version 3."""


def without_scopes(pid: int) -> tuple[Rule, ...]:
    """Return what is refused when Landlock is older than version 6: signals to anybody but oneself."""
    return (
        Rule("kill", Refusal.DENIED, (OneOf(0, (pid,)),), "signals only to itself"),
        Rule("tgkill", Refusal.DENIED, (OneOf(0, (pid,)),), "signals only to itself"),
        Rule("tkill", Refusal.DENIED, why="as kill"),
        Rule("rt_sigqueueinfo", Refusal.DENIED, why="as kill"),
        Rule("rt_tgsigqueueinfo", Refusal.DENIED, why="as kill"),
        Rule("fcntl", Refusal.DENIED, (NoneOf(1, FCNTL_OWNER),), "no signals to others by input"),
    )


def as_markdown() -> str:
    """Return the tables as one, for docs/reference/isolation.md."""
    groups = (
        ("always", (*ARGUMENTS, *(rule for ban in BANS for rule in ban.rules()))),
        ("without `egress`", tuple(NO_NETWORK.rules())),
        ("with `egress`", (*TCP_ALONE, *BROKER)),
        ("in a cell", JOB),
        ("in a cell without a list of programs", PROCESSES),
        ("without a list of programs", (*EXECUTE, *NAMESPACES)),
        ("before the fork of a cell with one", PROCESS_NAMESPACES),
        ("without an own uid", METADATA),
        ("before Landlock 3", WITHOUT_TRUNCATE),
        ("before Landlock 6", without_scopes(0)),
    )
    rows: dict[tuple[str, Refusal, str, bool], list[str]] = {}
    for when, rules in groups:
        for rule in rules:
            rows.setdefault((when, rule.refusal, rule.why, bool(rule.unless)), []).append(f"`{rule.call}`")
    lines = [
        f"| {when} | {', '.join(calls)}{' (by argument)' if some else ''} | {refusal} | {why} |\n"
        for (when, refusal, why, some), calls in rows.items()
    ]
    return "| when | calls | refusal | why |\n|---|---|---|---|\n" + "".join(lines)


class Layer(StrEnum):
    """Which process a filter is for.

    pool, job            the zygote and the import of the app; a cell, from its fork on
    open_pool, open_job  the same where LOW types are in it and the pool has `egress`: only the network is held
    """

    POOL = "pool"
    JOB = "job"
    OPEN_POOL = "open_pool"
    OPEN_JOB = "open_job"


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter.

    kill           a violation ends the process by SIGSYS, instead of an error
    execute        programs may be started: those that Landlock lets through
    processes      processes may be made by a cell, and by its zygote the namespace that they live in
    own_uid        the uid has no other files than the job's
    egress         sockets are the broker's business; else there are none
    landlock_abi   the version that is in force beside it; what that leaves open is refused here
    on_pool        its pool's filter is in force: here is only what goes beyond it, for the kernel asks both
    pid            the process that it is for, where signals must be refused here
    """

    layer: Layer
    kill: bool = False
    execute: bool = False
    processes: bool = False
    own_uid: bool = False
    egress: bool = False
    landlock_abi: int = 0
    on_pool: bool = False
    pid: int = 0

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules; those of one call are asked in this order."""
        match self.layer:
            case Layer.POOL | Layer.JOB:
                return self._closed()
            case Layer.OPEN_POOL:
                return (*SENDING, *self._network(), *(rule for ban in OPEN_BANS for rule in ban.rules()))
            case Layer.OPEN_JOB:
                return NO_LISTENER
            case _:
                assert_never(self.layer)

    def _network(self) -> tuple[Rule, ...]:
        if not self.egress:
            return tuple(NO_NETWORK.rules())
        return (*TCP_ALONE, *(BROKER if self.layer in (Layer.POOL, Layer.OPEN_POOL) else ()))

    def _closed(self) -> tuple[Rule, ...]:
        shared = (
            *ARGUMENTS,
            *self._network(),
            *(METADATA if not self.own_uid else ()),
            *(WITHOUT_TRUNCATE if self.landlock_abi < landlock.ABI_TRUNCATE else ()),
            *(rule for ban in BANS for rule in ban.rules()),
        )
        if self.on_pool:  # the pool's filter refuses these already; to end the process for some of them goes beyond it
            shared = tuple(rule for rule in shared if self.kill and rule.refusal is Refusal.VIOLATION)
        return (*shared, *self._own())

    def _own(self) -> tuple[Rule, ...]:
        """Return the rules in which zygote and cell of a pool may differ."""
        in_cell = self.layer is Layer.JOB
        return (
            *(PROCESSES if in_cell and not self.processes else ()),
            *(JOB if in_cell else ()),
            *(PROCESS_NAMESPACES if self.processes and not in_cell else NAMESPACES),
            *(without_scopes(self.pid) if in_cell and self.landlock_abi < landlock.ABI_SCOPE else ()),
            *(EXECUTE if not self.execute else ()),
        )


def program(wanted: Filter, arch: syscalls.Arch) -> bytes:
    """Return the filter as the kernel takes it."""
    return assemble(
        wanted.rules(),
        {name: syscalls.number(name, arch) for name in syscalls.NUMBERS},
        syscalls.AUDIT_ARCH[arch],
        syscalls.HIGHEST_KNOWN,
        x32=arch is syscalls.Arch.X86_64,
        kill=wanted.kill,
    )


@lru_cache(maxsize=8)
def prepared(wanted: Filter) -> bytes:
    """Return the filter for this machine; the zygote asks before it forks, so that a cell need not assemble it.

    Raises OSError on a machine whose numbers are not known.
    """
    arch = syscalls.this_arch()
    if arch is None:
        raise OSError(errno.ENOSYS, "the numbers of this machine's system calls are not known")
    return program(wanted, arch)


class Program(ctypes.Structure):
    """A filter as the kernel is told of it."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(wanted: Filter) -> tuple[str, ...]:
    """Put a filter in force for this thread and what it makes, for ever; return the layer. Needs no_new_privs.

    Raises OSError.
    """
    if _put(wanted, 0) != 0:
        raise OSError(errno.EINVAL, "the kernel did not take the filter")
    return ("seccomp",)


def listen(wanted: Filter) -> int:
    """Put a filter in force as `install` does; return the listener on which what it asks is to be answered.

    Raises OSError: EINVAL before Linux 5.19, EBUSY where a container runtime has a listener already.
    """
    return _put(wanted, FLAG_NEW_LISTENER | FLAG_WAIT_KILLABLE_RECV)


def _put(wanted: Filter, flags: int) -> int:
    code = prepared(wanted)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = Program(len(code) // 8, ctypes.addressof(buffer))  # both live until the call is back
    return syscalls.call("seccomp", SET_MODE_FILTER, flags, filter_)
