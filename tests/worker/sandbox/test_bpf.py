"""The filter, run in a small machine: every call of the tables with arguments on both sides of each rule."""

from __future__ import annotations

import dataclasses
import errno
import struct
from typing import Any

import pytest

from benteng.worker.sandbox import bpf, seccomp, syscalls
from benteng.worker.sandbox.bpf import Refusal, Rule
from benteng.worker.sandbox.seccomp import Filter, Layer
from benteng.worker.sandbox.syscalls import Arch

ALLOWED, KILLED = "allowed", "killed"
POOL, JOB, KILL = Filter(Layer.POOL, landlock_abi=7), Filter(Layer.JOB, landlock_abi=7), Filter(Layer.JOB, kill=True)
OLD, OWN = Filter(Layer.JOB, landlock_abi=1, pid=77), Filter(Layer.JOB, own_uid=True, landlock_abi=7)


def run(program, arch, number, *arguments):
    """Run classic BPF as the kernel does, and return what it decides: allowed, killed, or an errno's name."""
    words = [each & (1 << 64) - 1 for each in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    data = struct.pack("=iIQ6Q", number, arch, 0, *words)
    code = list(struct.iter_unpack("=HBBI", program))
    at, a = 0, 0
    while True:
        op, true, false, k = code[at]
        at += 1
        match op:
            case bpf.LOAD:
                a = struct.unpack_from("=I", data, k)[0]
            case bpf.AND:
                a &= k
            case bpf.JUMP:
                at += k
            case bpf.RETURN:
                return decision(k)
            case _:
                met = {bpf.JUMP_EQUAL: a == k, bpf.JUMP_GREATER: a > k, bpf.JUMP_GREATER_EQUAL: a >= k}
                at += true if met.get(op, bool(a & k)) else false


def decision(value):
    """Return what a returned value means."""
    if value == bpf.ALLOW:
        return ALLOWED
    if value == bpf.KILL_PROCESS:
        return KILLED
    if value == bpf.USER_NOTIF:
        return "BROKER"
    assert value & 0xFFFF_0000 == bpf.ERRNO
    return errno.errorcode[value & 0xFFFF]


def ask(wanted, name, *arguments, arch=Arch.X86_64):
    """Run a filter for one call."""
    number = syscalls.number(name, arch)
    assert number is not None
    return run(seccomp.program(wanted, arch), syscalls.AUDIT_ARCH[arch], number, *arguments)


BANNED = [(call, ban.refusal) for ban in seccomp.BANS for call in ban.calls.split()]


@pytest.mark.parametrize("arch", list(Arch))
@pytest.mark.parametrize("wanted", [POOL, JOB, OLD, OWN, KILL], ids=["pool", "job", "old", "own", "kill"])
def test_every_banned_call_is_refused_in_every_layer(wanted, arch):
    """The table of bans is the filter: a call of it gets the errno of its refusal, or ends the process."""
    kill = wanted.kill
    names = [(call, refusal) for call, refusal in BANNED if syscalls.number(call, arch) is not None]
    expected = {
        call: KILLED if kill and refusal is Refusal.VIOLATION else errno.errorcode[bpf._ERRNOS[refusal]]
        for call, refusal in names
    }

    found = {call: ask(wanted, call, 1, 1, 1, 1, 1, arch=arch) for call, _ in names}

    assert expected == found


ESSENTIAL = """
ptrace process_vm_readv process_vm_writev pidfd_getfd mount umount2 pivot_root chroot unshare setns
bpf userfaultfd io_uring_setup io_uring_enter io_uring_register memfd_create keyctl add_key
request_key shmget semget msgget mq_open perf_event_open open_by_handle_at name_to_handle_at
init_module finit_module kexec_load reboot socket connect bind listen accept accept4 execve execveat
fork vfork clone3 seccomp setxattr fsetxattr open_tree move_mount fsopen
"""


@pytest.mark.parametrize("name", ESSENTIAL.split())
def test_what_must_never_be_allowed_is_not(name):
    """Said a second time here, so that a line taken out of the tables is noticed."""
    assert ALLOWED != ask(JOB, name, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    "number, expected", [(0, ALLOWED), (462, ALLOWED), (463, "ENOSYS"), (9_999, "ENOSYS"), (0x4000_0000, KILLED)]
)
def test_numbers_that_nobody_looked_at_are_absent(number, expected):
    """A newer kernel's calls are as if it lacked them; the x32 convention ends the process."""
    assert expected == run(seccomp.program(JOB, Arch.X86_64), syscalls.AUDIT_ARCH[Arch.X86_64], number)


def test_foreign_conventions_end_the_process():
    """`int 0x80` has other numbers: whoever comes that way is killed, even where violations are only refused."""
    assert KILLED == run(seccomp.program(JOB, Arch.X86_64), 0x4000_0003, 20)


CLONE_THREAD_LIKE_LIBC = 0x3D0F00
ARGUMENTS = [
    (JOB, "clone", (CLONE_THREAD_LIKE_LIBC,), ALLOWED),
    (JOB, "clone", (17,), "EPERM"),
    (POOL, "clone", (17,), ALLOWED),
    (JOB, "fork", (), "EPERM"),
    (POOL, "fork", (), ALLOWED),
    (JOB, "clone", (CLONE_THREAD_LIKE_LIBC | 0x1000_0000,), "EPERM"),
    (KILL, "clone", (17 | 0x2000_0000,), KILLED),
    (KILL, "clone", (17,), "EPERM"),
    (POOL, "clone", (17 | 0x4000_0000,), "EPERM"),
    (JOB, "clone3", (1, 88), "ENOSYS"),
    (JOB, "sendto", (3, 1, 1, 0, 0, 0), ALLOWED),
    (JOB, "sendto", (3, 1, 1, 0, 0x1000, 16), "EACCES"),
    (JOB, "sendto", (3, 1, 1, 0, 1 << 32, 16), "EACCES"),
    (JOB, "sendto", (3, 1, 1, 0x2000_0000, 0, 0), "EACCES"),
    (JOB, "sendmsg", (3, 1, 0x4000), ALLOWED),
    (JOB, "sendmsg", (3, 1, 0x2000_4000), "EACCES"),
    (JOB, "sendmmsg", (3, 1, 1, 0x2000_0000), "EACCES"),
    (JOB, "socketpair", (1, 1), ALLOWED),
    (JOB, "socketpair", (1, 1 | 0o2000000), ALLOWED),
    (JOB, "socketpair", (1, 5), ALLOWED),
    (JOB, "socketpair", (1, 2), "EACCES"),
    (JOB, "socketpair", (1, 2 | 0o4000), "EACCES"),
    (JOB, "setsockopt", (3, 6, 1), ALLOWED),
    (JOB, "setsockopt", (3, 1, 9), ALLOWED),
    (JOB, "setsockopt", (3, 41, 67), ALLOWED),
    (JOB, "setsockopt", (3, 41, 57), "ENOPROTOOPT"),
    (JOB, "setsockopt", (3, 6, 30), "ENOPROTOOPT"),
    (JOB, "setsockopt", (3, 1, 25), "ENOPROTOOPT"),
    (JOB, "setsockopt", (3, 0, 4), "ENOPROTOOPT"),
    (JOB, "setsockopt", (3, 255, 1), "ENOPROTOOPT"),
    (JOB, "ioctl", (3, 0x5413), ALLOWED),
    (JOB, "ioctl", (3, 0x5412), "EPERM"),
    (JOB, "ioctl", (3, 0x8901), "EPERM"),
    (JOB, "ioctl", (3, 0x890F), ALLOWED),
    (JOB, "ioctl", (3, 0x8910), "EPERM"),
    (JOB, "ioctl", (3, 0x89FF), "EPERM"),
    (JOB, "ioctl", (3, 0x8A00), ALLOWED),
    (JOB, "ioctl", (3, 0x4008_6602), "EPERM"),
    (OWN, "ioctl", (3, 0x4008_6602), ALLOWED),
    (JOB, "prctl", (15,), ALLOWED),
    (JOB, "prctl", (1,), "EPERM"),
    (JOB, "prctl", (22,), "EPERM"),
    (KILL, "prctl", (22,), KILLED),
    (KILL, "prctl", (1,), "EPERM"),
    (POOL, "prctl", (22,), ALLOWED),
    (JOB, "seccomp", (1,), "EPERM"),
    (POOL, "seccomp", (1,), ALLOWED),
    (JOB, "execve", (), "EPERM"),
    (POOL, "execve", (), "EPERM"),
    (Filter(Layer.POOL, execute=True, landlock_abi=7), "execve", (), ALLOWED),
    (JOB, "prlimit64", (0, 7), ALLOWED),
    (JOB, "prlimit64", (77, 7), "EPERM"),
    (JOB, "sched_setaffinity", (77,), "EPERM"),
    (JOB, "setpriority", (0, 0), ALLOWED),
    (JOB, "setpriority", (2, 0), "EPERM"),
    (JOB, "setpriority", (0, 77), "EPERM"),
    (JOB, "utimensat", (3, 0, 0x1000), "EPERM"),
    (OWN, "utimensat", (3, 0, 0x1000), ALLOWED),
    (OWN, "utimensat", (3, 0, 0x1000_0000_0000), ALLOWED),
    (OWN, "utimensat", (3, 0, 0), "EPERM"),
    (OWN, "chmod", (), ALLOWED),
    (JOB, "chmod", (), "EPERM"),
    (JOB, "kill", (1, 9), ALLOWED),
    (OLD, "kill", (77, 15), ALLOWED),
    (OLD, "kill", (1, 15), "EPERM"),
    (OLD, "kill", (-77, 15), "EPERM"),
    (OLD, "tgkill", (77, 78, 15), ALLOWED),
    (OLD, "fcntl", (3, 8), "EPERM"),
    (OLD, "fcntl", (3, 4), ALLOWED),
    (OLD, "rt_sigqueueinfo", (77,), "EPERM"),
    (OLD, "truncate", (), "EPERM"),
    (OLD, "open", (1, 0o1000), "EPERM"),
    (OLD, "open", (1, 0o1101), ALLOWED),
    (OLD, "openat", (3, 1, 0o2001000), "EPERM"),
    (OLD, "openat", (3, 1, 0o1102), ALLOWED),
    (OLD, "openat2", (), "ENOSYS"),
    (JOB, "openat", (3, 1, 0o1000), ALLOWED),
]


@pytest.mark.parametrize("wanted, name, arguments, expected", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_arguments_decide(wanted, name, arguments, expected):
    """On each side of each rule the filter says what the tables say."""
    assert expected == ask(wanted, name, *arguments)


def both(pool, job, name, *arguments):
    """What the kernel does with two filters: it kills if one does, else refuses if one does, the later one's way."""
    said = [ask(each, name, *arguments) for each in (job, pool)]
    return KILLED if KILLED in said else next((each for each in said if each != ALLOWED), ALLOWED)


NAMED = sorted(name for name, (number, _) in syscalls.NUMBERS.items() if number is not None)
POOLS: dict[str, dict[str, Any]] = {
    "usual": {"landlock_abi": 7},
    "old": {"landlock_abi": 1, "pid": 77},
    "own_uid": {"landlock_abi": 7, "own_uid": True},
    "egress": {"landlock_abi": 7, "egress": True},
    "exec": {"landlock_abi": 7, "execute": True},
    "programs": {"landlock_abi": 7, "execute": True, "processes": True},
}


@pytest.mark.parametrize("kill", [False, True], ids=["medium", "high"])
@pytest.mark.parametrize("settings", POOLS.values(), ids=POOLS)
def test_a_filter_on_its_pools_refuses_what_a_whole_one_does(settings, kill):
    """Leaving out what the pool's filter refuses opens nothing, and changes no answer."""
    pool = Filter(Layer.POOL, **settings)
    job = Filter(Layer.JOB, kill=kill, **{**settings, "execute": settings.get("processes", False)})
    beyond = dataclasses.replace(job, on_pool=True)
    calls = {(name, arguments) for _, name, arguments, _ in ARGUMENTS} | {(name, (1,) * 6) for name in NAMED}

    whole = {call: both(pool, job, call[0], *call[1]) for call in calls}
    found = {call: both(pool, beyond, call[0], *call[1]) for call in calls}

    assert whole == found
    assert len(seccomp.program(beyond, Arch.X86_64)) < len(seccomp.program(job, Arch.X86_64)) / 2


def test_only_the_low_half_of_a_flag_counts():
    """The kernel ignores the upper half of such arguments, so nobody can hide a flag behind it."""
    assert "EPERM" == ask(JOB, "clone", 17 | 1 << 40)
    assert "EACCES" == ask(JOB, "socketpair", 1 | 1 << 35, 2 | 1 << 35)


def test_a_rule_that_is_too_long_is_refused():
    """A jump that an instruction cannot say is an error, never a wrong jump."""
    long = Rule("kill", Refusal.DENIED, (bpf.NoneOf(0, tuple(range(200))),))

    with pytest.raises(ValueError, match="jump"):
        bpf.assemble([long], {"kill": 62}, 1, 462, x32=False, kill=False)


def test_every_name_has_its_number():
    """No rule names a call that the table of numbers lacks."""
    named = {rule.call for wanted in (POOL, JOB, OLD, OWN) for rule in wanted.rules()}

    assert set() == named - syscalls.NUMBERS.keys()


def test_no_number_is_twice_in_a_column():
    """Two calls of one machine never share a number: a typing error would open one of them."""
    for column in (0, 1):
        numbers = [both[column] for both in syscalls.NUMBERS.values() if both[column] is not None]

        assert len(numbers) == len(set(numbers))
