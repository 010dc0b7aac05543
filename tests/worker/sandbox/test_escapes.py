"""The escape suite: no vector gets out of a MEDIUM or HIGH cell, nor what LOW promises of it; each works without one.

Whether it got out is seen from outside: a file, a listener, a pid, a descriptor in /proc. Three kinds of worker: root
whose pool has its own uid, root whose pool has none, and an ordinary user whose cells have his uid (the worst case).
Namespaces are left out on purpose: they are optional. Children run on an interpreter that every user can read, and a
pyenv below root's home is not: then the system's. What this kernel cannot do at all is skipped, by name.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.worker.sandbox.escapes import vectors
from tests.worker.sandbox.escapes.outcomes import FORKS, IMPORT_MAY, LOW, LOW_OWN_UID, NOT_A_WAY_OUT, SHARES, SIGNALS
from tests.worker.sandbox.escapes.scene import ORDINARY_UID, OWN_UID, SECRET, Scene, descendants, interpreter, status

# ruff: noqa: D103 - a witness is named after what it sees

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can play both the worker and the outside of all kinds"),
    pytest.mark.skipif(interpreter() is None, reason="no Python of this version that other users can run"),
]

KINDS = {"own_uid": (0, OWN_UID), "root": (0, 0), "ordinary": (ORDINARY_UID, ORDINARY_UID)}
MEMORY_KB, FILE_BYTES, OPEN_FILES = 256 << 10, 16 << 20, 64


def patience(attempt):
    """Return how long to wait for an effect: long when the vector believes that it got out."""
    return 1.0 if attempt.said == "did" else 0.02


def loot(scene, attempt):
    return SECRET.encode() in attempt.loot()


def passwd(scene, attempt):
    return attempt.loot() == Path("/etc/passwd").read_bytes()


def file_changed(scene, attempt):
    found = scene.file.stat() if scene.file.exists() else None
    return found is None or scene.file.read_text() != "untouched" or found.st_mtime != 1_000_000


def file_marked(scene, attempt):
    found = scene.file.stat()
    return found.st_mode & 0o7777 != 0o666 or found.st_gid == 61_999 or "user.mark" in os.listxattr(scene.file)


def app_changed(scene, attempt):
    found = scene.app_file.stat()
    return scene.app_file.read_text() != "pass\n" or found.st_mode & 0o7777 != 0o644 or found.st_mtime != 1_000_000


def new_entry(scene, attempt):
    return os.path.lexists(scene.root / "outside" / "new") or scene.shm.exists()


def mounted(scene, attempt):
    return os.path.ismount(scene.root / "mount")


def other_root(scene, attempt):
    return str(Path(f"/proc/{attempt.pid}/root").readlink()) != "/"


def program(scene, attempt):
    """Another program runs as the cell, or below it; its command line is there a moment after the spawn returns."""
    until, longer = time.monotonic() + patience(attempt), time.monotonic() + 10
    while True:
        found = [_program(pid) for pid in (attempt.pid, *descendants(attempt.pid))]
        if True in found or time.monotonic() > (longer if None in found else until):
            return True in found


def _program(pid):
    """Whether a program runs there; None when one may be about to: env and the loader may run, and then fail."""
    try:
        command, maps = Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
    if command.startswith(b"env\0") or (command.startswith(b"ld\0") and not re.search("/(sleep|helper|python)", maps)):
        return None
    return command.endswith((b"1000\0", b"time.sleep(1000)\0", b"/script\0"))


def child(scene, attempt):
    zygote = attempt.zygote
    return any(pid != attempt.pid and _lives(status(pid)) for pid in descendants(zygote))


def _lives(found):
    """Whether it runs, and is not the first process of a namespace, which is ours."""
    return found.get("State", "Z")[0] != "Z" and not found["NSpid"].endswith("\t1")


def signalled(scene, attempt):
    """Whatever it was sent it has before it answers, and its handler has run before it answers again."""
    for _ in range(2):
        scene.victims_spare()
    return scene.marker.exists()


def traced(scene, attempt):
    return status(scene.victim.pid)["TracerPid"] != "0"


def overwritten(scene, attempt):
    return "w" not in scene.victims_spare()


def slowed(scene, attempt):
    return scene.victims_share != scene.share(scene.victim.pid)


def reached(scene, attempt):
    return scene.reached(patience(attempt))


def listens(scene, attempt):
    try:
        socket.create_connection(("127.0.0.1", int(attempt.loot() or b"1")), 1).close()
    except OSError:
        return False
    return True


def socket_made(scene, attempt):
    return attempt.descriptors().count("socket") > attempt.sockets_before


def descriptor(word):
    def there(scene, attempt):
        return word in attempt.descriptors()

    return there


def watch(scene, attempt):
    infos = Path(f"/proc/{attempt.pid}/fdinfo").glob("*")
    return any("inotify wd" in info.read_text() for info in infos)


def ipc(name):
    def there(scene, attempt):
        keys = [int(line.split()[0]) for line in Path(f"/proc/sysvipc/{name}").read_text().splitlines()[1:]]
        return scene.key in keys

    return there


def posix_queue(scene, attempt):
    found = ctypes.CDLL(None).mq_open(f"/benteng-{os.getpid()}".encode(), os.O_RDONLY)
    if found >= 0:
        os.close(found)
    return found >= 0


def key_there(scene, attempt):
    name = scene.name
    lines = [line for line in Path("/proc/keys").read_text().splitlines() if name in line]
    return any("R" not in line.split()[1] for line in lines)  # R: revoked by us


def namespace(*names):
    def other(scene, attempt):
        pids = (attempt.pid, *descendants(attempt.pid))
        return any(_namespace(pid, name) != _namespace(attempt.zygote, name) for pid in pids for name in names)

    return other


def _namespace(pid, name):
    return Path(f"/proc/{pid}/ns/{name}").readlink()


def filter_added(scene, attempt):
    now = status(attempt.pid).get("Seccomp_filters", "0")
    return int(now) > int(attempt.before["Seccomp_filters"])


def personality(scene, attempt):
    return int(Path(f"/proc/{attempt.pid}/personality").read_text(), 16) & 0x0400000 != 0


def memory(scene, attempt):
    return int(status(attempt.pid).get("VmHWM", "0 kB").split()[0]) > MEMORY_KB


def big_file(scene, attempt):
    return (attempt.scratch / "big").stat().st_size > FILE_BYTES


def descriptors(scene, attempt):
    return len(attempt.descriptors()) > OPEN_FILES


WITNESSES = {
    "read_passwd": passwd,
    **dict.fromkeys(
        [
            "read_file",
            "read_ledger",
            "read_ledger_by_victims_root",
            "read_ledger_uncovered",
            "read_ledger_in_own_space",
            "read_by_symlink",
            "read_by_hardlink",
            "read_by_dots",
            "read_by_proc_root",
            "read_by_proc_cwd",
            "read_by_openat2",
            "read_by_handle",
            "read_victims_memory",
            "read_victims_memory_by_file",
            "read_victims_environment",
            "take_victims_descriptor",
            "reopen_victims_descriptor",
            "become_root",
            "kernel_log",
            "lose_parent_tie",
        ],
        loot,
    ),
    **dict.fromkeys(
        [
            "write_file",
            "truncate_file",
            "truncate_by_open",
            "remove_file",
            "rename_over",
            "change_times",
            "change_times_to_now",
            "change_times_to_now_by_old_calls",
        ],
        file_changed,
    ),
    **dict.fromkeys(
        [
            "create_file",
            "create_in_shared_memory",
            "create_directory",
            "create_symlink",
            "create_pipe",
            "create_device",
            "link_out",
            "unix_bind",
        ],
        new_entry,
    ),
    **dict.fromkeys(["change_mode", "change_owner", "change_attribute"], file_marked),
    **dict.fromkeys(["change_mode_of_app", "change_times_of_app", "write_to_app", "truncate_app_by_open"], app_changed),
    "mount_something": mounted,
    "change_root": other_root,
    "watch_directory": watch,
    **dict.fromkeys(
        [
            "execute",
            "execute_script",
            "execute_from_memory",
            "execute_by_loader",
            "execute_interpreter",
            "execute_interpreter_by_loader",
            "execute_program_of_app",
            "execute_program_of_app_by_loader",
            "execute_by_listed_program",
            "execute_copy_of_listed_program",
            "execute_in_child",
        ],
        program,
    ),
    **dict.fromkeys(
        ["fork", "fork_daemon", "fork_by_number", "fork_by_clone", "fork_by_clone3", "fork_by_other_convention"], child
    ),
    **dict.fromkeys(SIGNALS, signalled),
    "trace_victim": traced,
    "write_victims_memory": overwritten,
    "hold_victim": descriptor("pidfd"),
    **dict.fromkeys(SHARES, slowed),
    **dict.fromkeys(
        [
            "tcp_connect",
            "tcp_connect_ipv6",
            "tcp_fastopen_sendmsg",
            "tcp_fastopen_sendto",
            "udp_sendto",
            "udp_sendmsg",
            "unix_connect",
            "unix_connect_abstract",
            "unix_datagram",
            "unix_datagram_pair",
            "unix_datagram_many",
            "use_inherited_descriptor",
            "passed_socket_reconnect",
            "passed_socket_fastopen",
        ],
        reached,
    ),
    **dict.fromkeys(["tcp_listen", "tcp_listen_without_bind"], listens),
    **dict.fromkeys(["socket_netlink", "socket_packet", "socket_raw", "socket_vsock", "socket_crypto"], socket_made),
    "passed_socket_source_route": lambda scene, attempt: scene.passed[1].getsockopt(41, 57, 64) != b"",
    "ipc_shared_memory": ipc("shm"),
    "ipc_semaphore": ipc("sem"),
    "ipc_messages": ipc("msg"),
    "ipc_posix_queue": posix_queue,
    "ring": descriptor("io_uring"),
    "fault_handler": descriptor("userfaultfd"),
    "kernel_program": descriptor("bpf-map"),
    "performance_counter": descriptor("perf_event"),
    "kernel_key": key_there,
    "memory_file": descriptor("/memfd"),
    "watch_file_system": descriptor("fanotify"),
    "new_user_namespace": namespace("user"),
    "new_network_namespace": namespace("net"),
    "new_namespace_by_clone": namespace("user"),
    "second_filter": filter_added,
    "second_filter_by_prctl": filter_added,
    "second_listener": descriptor("seccomp notify"),
    "other_personality": personality,
    "much_memory": memory,
    "one_big_file": big_file,
    "many_descriptors": descriptors,
}
"""How the outside sees that a vector got out."""


NEEDS_ROOT = frozenset(
    [
        "read_by_handle",
        "become_root",
        "kernel_log",
        "create_device",
        "change_owner",
        "mount_something",
        "change_root",
        "socket_packet",
        "socket_raw",
        "kernel_program",
        "new_network_namespace",
    ]
)
"""What an ordinary user cannot do even without a cell."""

NEEDS_OTHER_UID = frozenset({"become_root"})
"""What says nothing about a cell that has root's uid (without its capabilities; `dev` only)."""

LACKING = ("[Errno 38]", "[Errno 97]", "[Errno 19]")
"""ENOSYS, EAFNOSUPPORT, ENODEV: the kernel does not have the thing at all."""


def cases():
    """Return each kind of worker with each vector that can prove something about it."""
    hopeless = {"own_uid": frozenset(), "root": NEEDS_OTHER_UID, "ordinary": NEEDS_ROOT}
    marks = {"root": (pytest.mark.long,)}  # the rarest kind, and no other code than the two others
    return [
        pytest.param(kind, vector, marks=marks.get(kind, ()))
        for kind in KINDS
        for vector in WITNESSES
        if vector not in hopeless[kind]
    ]


@pytest.fixture(scope="module")
def scenes():
    """The outsides that were needed, by kind."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = Scene(*KINDS[kind])
        return made[kind]

    yield of
    for scene in made.values():
        scene.close()


def got_out(scene, shut, vector, programs=()):
    """Run a vector and look; put the outside back afterwards."""
    attempt = scene.attempt(shut, vector, programs)
    try:
        return WITNESSES[vector](scene, attempt), attempt.said
    except OSError:
        if not attempt.dies():
            raise
        return False, attempt.said  # killed for the violation: there is no process to look at any more
    finally:
        attempt.close()
        if WITNESSES[vector] in (signalled, traced, overwritten, slowed):
            scene.new_victim()
        for sock in scene.passed:
            sock.close()
        scene.reset()


@pytest.mark.parametrize("kind, vector", cases())
def test_no_vector_leaves_a_cell(scenes, kind, vector):
    """It gets out where there is no cell, and out of no MEDIUM or HIGH cell; of the import only what is listed."""
    scene = scenes(kind)
    free, said = got_out(scene, "nothing", vector)
    if not free and any(lack in said for lack in LACKING):
        pytest.skip(f"this kernel cannot do {vector}: {said}")

    found = {shut: got_out(scene, shut, vector)[0] for shut in ("import", "medium", "high")}

    assert free, f"proves nothing: {vector} does not work without a cell either: {said}"
    assert {"import": vector in IMPORT_MAY, "medium": False, "high": False} == found


def test_every_vector_has_a_witness_and_every_outcome_a_vector():
    """Nothing is tried that nobody watches, and nothing is promised that is not tried."""
    assert WITNESSES.keys() == vectors.VECTORS.keys() - NOT_A_WAY_OUT
    assert LOW_OWN_UID | IMPORT_MAY <= WITNESSES.keys()


def low_cases():
    """Return what LOW promises: with a uid of the pool's own, and as the worker's user."""
    own = [("own_uid", vector) for vector in sorted(LOW_OWN_UID)]
    return own + [("ordinary", vector) for vector in sorted(LOW - NEEDS_ROOT)]


@pytest.mark.parametrize("kind, vector", low_cases())
def test_low_holds_what_it_promises(scenes, kind, vector):
    """The ledger, other processes' memory, the bounds; with an own uid, other users' files and processes as well."""
    scene = scenes(kind)

    free, said = got_out(scene, "nothing", vector)

    assert free, f"proves nothing: {vector} does not work without a cell either: {said}"
    assert not got_out(scene, "low", vector)[0]


LISTED = ("/usr/bin/env",)
"""What the pool lists in the tests below: a program that starts others, if it is let."""


def cases_with_list():
    """Return the same without the rarest kind, and only one of the others in the fast set: the walls are the same."""
    found = [each.values for each in cases() if each.values[0] != "root"]
    return [pytest.param(*each, marks=() if each[0] == "own_uid" else (pytest.mark.long,)) for each in found]


@pytest.mark.parametrize("kind, vector", cases_with_list())
def test_no_vector_leaves_a_cell_with_a_list_of_programs(scenes, kind, vector):
    """Beside the processes that it may make, a list opens nothing: neither to a cell, nor to the import before it."""
    scene = scenes(kind)

    found = {shut: got_out(scene, shut, vector, LISTED)[0] for shut in ("import", "high")}

    assert {"import": vector in IMPORT_MAY, "high": vector in FORKS} == found


@pytest.mark.parametrize("kind", ["own_uid", "ordinary"])
@pytest.mark.parametrize("vector", sorted(FORKS))
def test_what_a_cell_started_ends_with_it(scenes, kind, vector):
    """The kernel ends it, also what left its parents, its session and its group: nobody but the cell is killed."""
    scene = scenes(kind)
    attempt = scene.attempt("high", vector, LISTED)
    started = [os.pidfd_open(pid) for pid in descendants(attempt.pid)]

    os.kill(attempt.pid, signal.SIGKILL)

    assert len(started) >= 2, attempt.said  # the first process of the namespace, and what the vector made
    for pidfd in started:
        assert select.select([pidfd], [], [], 10)[0], "it outlived its cell"
        os.close(pidfd)
    attempt.close()
    scene.reset()


@pytest.mark.parametrize("kind", ["own_uid", "ordinary"])
def test_a_listed_program_runs(scenes, kind):
    """The list opens what it names; without one there is nothing to be proved by the other programs."""
    said = {}
    for programs in ((), LISTED):
        attempt = scenes(kind).attempt("high", "run_listed", programs)
        said[programs] = attempt.said
        attempt.close()

    assert "did" == said[LISTED]
    assert "did" != said[()]


VIOLATIONS = (
    "execute",
    "trace_victim",
    "read_victims_memory",
    "new_user_namespace",
    "mount_something",
    "second_filter",
)


@pytest.mark.parametrize("vector", VIOLATIONS)
def test_a_violation_at_high_is_certain(scenes, vector):
    """What nobody does by accident ends a HIGH cell, and is only refused in a MEDIUM one."""
    scene = scenes("own_uid")

    said = {shut: got_out(scene, shut, vector)[1] for shut in ("medium", "high")}

    assert "gone" == said["high"]
    assert said["medium"].startswith("PermissionError")
