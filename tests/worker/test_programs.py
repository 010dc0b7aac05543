"""A list of programs, through the real worker: what is on it runs, nothing else does, and what runs ends with its cell.

The witness of an end is the kernel: a pipe that a daemon holds open is at its end when the daemon is no more.
"""

from __future__ import annotations

import json
import os
import select
import shutil
from pathlib import Path

import pytest

from benteng.errors import PolicyError
from benteng.worker.sandbox import landlock, observe, probe, programs
from tests.support.others import environment, interpreter, passable
from tests.worker.bed import APPS, Bed
from tests.worker.sandbox.escapes.scene import OWN_UID, descendants

pytestmark = [
    pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock, so no tier above LOW"),
    pytest.mark.skipif(
        "pid_namespace" not in probe.probe(), reason="this host forbids user namespaces, so no job starts a program"
    ),
]

DENIED, LOADER_FAILED = "PermissionError", "status 127"
FOUND = {
    "listed": "MARK=listed",
    "unlisted": DENIED,
    "by-listed": "status 126",
    "by-loader": LOADER_FAILED,
    "listed-by-loader": "MARK=loader",
    "of-app": DENIED,
    "of-app-by-loader": LOADER_FAILED,
    "of-scratch-by-loader": LOADER_FAILED,
    "of-written-by-loader": LOADER_FAILED,
}
LISTED = "/usr/bin/env"


@pytest.fixture(scope="module")
def root():
    """A directory that other users may pass through, with the app and a program beside it."""
    made = passable("programs")
    (made / "project").mkdir()
    shutil.copy(APPS / "programs.py", made / "project")
    shutil.copy("/bin/echo", made / "project" / "helper")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def bed(root, app_registry):
    """A ledger, and a pipe that daemons hold open."""
    made = Bed(root, app_registry("programs"))
    (root / "scratch").chmod(0o711)
    os.mkfifo(root / "effects-lasting")
    (root / "outbox").mkdir()
    (root / "outbox").chmod(0o777)
    yield made
    made.close()


def start(bed, **settings):
    """Start a worker of the pool."""
    write = [str(bed.root / name) for name in ("effects", "go", "effects-lasting", "outbox")]
    worker = bed.worker(
        name="programs", app="programs:app", cwd=bed.root / "project", exec=[LISTED], write=write, **settings
    )
    worker.wait("ready")
    return worker


@pytest.fixture(scope="module")
def worker(bed):
    """A worker that most tests share."""
    return start(bed)


def result(bed, job_type, name):
    """Run a job and return its result."""
    ended = bed.ended(bed.enqueue(job_type, name=name, host="web-1"))
    assert "completed" == ended.state, bed.show(ended.job_id)
    return json.loads(ended.result)


@pytest.mark.parametrize("job_type", ["run.medium@1", "run.high@1"])
def test_what_is_listed_runs_and_nothing_else(bed, worker, job_type):
    """Neither directly, nor by a program that is listed, nor by the loader, which may run what is listed alone."""
    assert FOUND == result(bed, job_type, "a")


def test_a_program_that_is_not_listed_is_an_error_and_no_violation(bed, worker):
    """Where programs may be started, a wrong one is a mistake of the pool's list: the job says which it was."""
    ended = bed.ended(bed.enqueue("run.here@1", name="a", host="web-1"))

    assert "PermissionError" in bed.show(ended.job_id).error


def test_libraries_that_are_loaded_late_are_there(bed, worker):
    """The system's libraries are opened one by one; what Python's own modules need is among them."""
    found = result(bed, "libraries@1", "a")

    assert {"ssl": True, "sqlite": 1, "sha3": "a7ff", "zone": "Asia/Jakarta"}.items() <= found.items()
    assert found["ctypes"]


def ends(reader):
    """Whether the pipe comes to its end: whoever held it open is no more."""
    select.select([reader], [], [], 10)
    return os.read(reader, 1) == b""


def test_a_place_to_write_that_stays_one_for_programs_is_refused(bed, root):
    """What cannot be mounted without programs is named, and nothing runs: neither it nor what is listed behind it."""
    write = [str(bed.root / name) for name in ("effects", "nowhere", "outbox")]
    worker = bed.worker(
        name="programs", app="programs:app", cwd=root / "project", exec=[LISTED], write=write, keeper=False
    )

    said = worker.wait("refused", rule="W-layers")

    assert str(bed.root / "nowhere") in said["why"]
    assert 78 == worker.exit_code()


@pytest.mark.parametrize("job_type", ["daemon.medium@1", "daemon.high@1"])
def test_a_daemon_ends_with_its_cell(bed, worker, job_type):
    """It forked twice, made a session of its own and ignores signals: when its attempt has ended, so has it."""
    reader = os.open(bed.root / "effects-lasting", os.O_RDONLY | os.O_NONBLOCK)

    assert "left" == result(bed, job_type, "a")

    assert ends(reader)
    os.close(reader)


def test_a_cell_is_reused_when_what_it_started_has_ended(bed, worker):
    """The first process of its namespace is no leftover."""
    assert result(bed, "pid@1", "a") == result(bed, "pid@1", "b")


def test_the_supervisor_sees_where_what_is_started_lives(bed, worker):
    """By /proc of the cell, not by its word; the first process of it is ours, and has nothing open."""
    cell = result(bed, "pid@1", "c")
    (first,) = descendants(cell)

    assert {"pid_namespace", "noexec_scratch"} <= observe.seen(cell)
    assert [] == list(Path(f"/proc/{first}/fd").iterdir())


def test_the_list_is_told(bed, worker):
    """The start of a pool says which files its jobs may execute."""
    assert f"{LISTED} /" in f"{worker.wait('programs')['run']} "


def test_exec_cells_start_programs_too(bed, worker):
    """The namespace is left before the interpreter starts anew, and holds what it starts all the same."""
    worker.stop()
    started = start(bed, start="exec", keeper=False)
    reader = os.open(bed.root / "effects-lasting", os.O_RDONLY | os.O_NONBLOCK)

    assert FOUND == result(bed, "run.high@1", "exec")
    assert "left" == result(bed, "daemon.high@1", "exec")
    assert ends(reader)
    os.close(reader)
    started.stop()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a pool a uid of its own")
@pytest.mark.skipif(interpreter() is None, reason="no Python of this version that other users can run")
def test_a_pool_of_its_own_uid_starts_programs(bed, root, worker):
    """The namespace is made by a process that has no right on the host; processes are bounded for the whole pool."""
    worker.stop()
    started = start(bed, uid=OWN_UID, gid=OWN_UID, python=environment(root / "venv"))
    reader = os.open(bed.root / "effects-lasting", os.O_RDONLY | os.O_NONBLOCK)
    (bed.root / "effects-lasting").chmod(0o666)

    assert FOUND == result(bed, "run.high@1", "own")
    assert "left" == result(bed, "daemon.high@1", "own")
    assert ends(reader)
    assert 100 < result(bed, "bomb@1", "own") < 1_100
    assert "no_new_privs" in observe.seen(int(started.wait("ready")["zygote"]))
    os.close(reader)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: "env", "not a full path"),
        (lambda path: str(path / "nowhere"), "not there"),
        (str, "not there"),
        (lambda path: written(path, b"x", 0o644), "not a program"),
        (lambda path: written(path, b"#!/bin/sh\n", 0o755), "a script"),
        (lambda path: copied(path, 0o4755), "gives rights"),
        (lambda path: copied(path, 0o2755), "gives rights"),
        (lambda path: copied(path, 0o777), "written by others"),
        (lambda path: written(path, b"MZ\0\0", 0o755), "of this machine"),
        (lambda path: written(path, b"\x7fELF\x02\x01" + bytes(100), 0o755), "of this machine"),
        (lambda path: os.path.realpath("/lib64/ld-linux-x86-64.so.2"), "loader"),
    ],
    ids=[
        "relative",
        "missing",
        "directory",
        "data",
        "script",
        "setuid",
        "setgid",
        "writable",
        "foreign",
        "damaged",
        "loader",
    ],
)
def test_what_cannot_be_listed_is_refused(tmp_path, make, words):
    """With the rule, the name and the fix: before anything is started."""
    with pytest.raises(PolicyError, match=words) as caught:
        programs.check("p", [make(tmp_path)])

    assert ("W-exec", "exec") == (caught.value.rule, caught.value.field)
    assert caught.value.fix


def written(folder, data, mode):
    """A file with that content and mode."""
    path = folder / "file"
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def copied(folder, mode):
    """A program with that mode."""
    return written(folder, Path("/bin/true").read_bytes(), mode)
