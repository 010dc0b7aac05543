"""What a job can take at most of processors, disk, names and processes, through the real worker and measured outside.

The witness is the kernel: what it has charged to the zygote's tree, and what lies in the file system. Each way is gone
without a cell too, by the same lines, and must come above the bound there. Bounds are asserted loosely (a machine under
load looks late), and what was measured is printed (`pytest -rP`).
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benteng.worker.sandbox import landlock, probe, system
from benteng.worker.sandbox.linux import PROCESSES_MAX
from tests.support.others import environment, interpreter, passable
from tests.support.waiting import until
from tests.worker.bed import APPS, PATIENCE, Bed
from tests.worker.sandbox.escapes.scene import OWN_UID, descendants

TICKS = os.sysconf("SC_CLK_TCK")
OWN = os.getuid() == 0 and interpreter() is not None
"""Whether the pools have a uid of their own: the strongest that this user can have."""

CPU_SECONDS_MAX = 2.5
"""Two processors for the third of a second of deadline and grace, four times over."""

DISK_BYTES_MAX = 160 << 20
"""4 MiB, and what is written at 16 MiB a second until somebody has looked, who looks each second: for nearly ten."""

NAMES_MAX = 25_000
"""10,000, and what is made at 3,200 a second until then: for more than four."""

SLOW_SECONDS = 100.0
"""How long a machine under load may take to come above a bound, or to end a job that goes for it."""

contained = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock, so no tier above LOW")


# --------------------------------------------------------------------------------------------------- what is measured


def cpu_seconds(pid):
    """Return what the kernel has charged to a process, to those that ended below it, and to those that live there."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / TICKS  # utime, stime, cutime, cstime: proc_pid_stat(5)
    return own + sum(cpu_seconds(child) for child in system.children_of(pid))


def disk_bytes(directory, pid):
    """Return what a directory holds on the disk, with what the processes below one keep open without a name."""
    kept = [f"/proc/{each}/fd" for each in descendants(pid)]
    return sum(_blocks_bytes(path) for path in (directory, *kept))


def _blocks_bytes(directory):
    found = 0
    for where, _, names in os.walk(directory):
        for name in names:
            try:
                seen = Path(where, name).stat() if where.startswith("/proc") else Path(where, name).lstat()
            except OSError:
                continue
            deleted = stat.S_ISREG(seen.st_mode) and seen.st_nlink == 0
            found += seen.st_blocks * 512 if deleted or not where.startswith("/proc") else 0
    return found


def names(directory):
    """Return how many entries there are below a directory."""
    with os.scandir(directory) as found:
        return sum(1 + (names(entry) if entry.is_dir(follow_symlinks=False) else 0) for entry in found)


def processes(pid):
    """Return how many processes live below one."""
    return len(descendants(pid))


# ---------------------------------------------------------------------------------------------- with and without a cell


@pytest.fixture(scope="module")
def root():
    """A directory that other users may pass through, with the app in it."""
    made = passable("bounds")
    (made / "project").mkdir()
    for name in ("bounds.py", "greed.py"):
        shutil.copy(APPS / name, made / "project")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def bed(root, app_registry):
    """A ledger, and where cells have their scratch."""
    made = Bed(root, app_registry("bounds"))
    (root / "scratch").chmod(0o711)
    (root / "effects").chmod(0o666)
    yield made
    made.close()


@pytest.fixture(scope="module")
def worker(bed):
    """Return the worker of a pool, started when it is first asked for."""
    own = {"uid": OWN_UID, "gid": OWN_UID, "python": environment(bed.root / "venv")} if OWN else {}
    made = {}

    def of(pool):
        if pool not in made:
            more = {"exec": ["/usr/bin/env"]} if pool == "programs" else {}
            cwd = bed.root / "project"
            made[pool] = bed.worker(name=pool, app="bounds:app", cwd=cwd, keeper=not made, **own, **more)
            made[pool].wait("ready")
        return made[pool]

    return of


def enqueue(bed, job_type, way):
    """Enqueue a job that takes too much in that way."""
    return bed.enqueue(job_type, name=way, **({} if job_type.startswith("low") else {"host": "web-1"}))


def peak(bed, job, measure):
    """Measure until a job has ended, and return the most that was seen, and how the job ended."""
    most, end = 0.0, time.monotonic() + SLOW_SECONDS
    while (status := bed.status(job)).state not in {"quarantined", "completed"}:
        assert time.monotonic() < end, status
        most = max(most, measure())
        bed.wait_a_little()
    return most, status.state


@contextmanager
def free(way, directory):
    """Go the same way without a cell, and end it."""
    directory.mkdir()
    command = [sys.executable, "-I", str(APPS / "greed.py"), way]
    taker = subprocess.Popen(command, cwd=directory)
    try:
        yield taker.pid
    finally:
        for pid in (*descendants(taker.pid), taker.pid):
            os.kill(pid, signal.SIGKILL)
        taker.wait(PATIENCE)
        shutil.rmtree(directory)


# -------------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("way", ["burn-cpu", "burn-cpu-in-daemon"])
def test_without_a_cell_processors_are_taken(tmp_path, way):
    """The bound below proves something: nothing else keeps it."""
    with free(way, tmp_path / "free") as pid:
        until(lambda: cpu_seconds(pid) > CPU_SECONDS_MAX, SLOW_SECONDS)


@pytest.mark.parametrize(
    "pool, way",
    [
        ("low", "burn-cpu"),
        ("low", "burn-cpu-in-daemon"),
        pytest.param("medium", "burn-cpu", marks=contained),
        pytest.param("high", "burn-cpu", marks=contained),
    ],
)
def test_processors_are_taken_until_the_deadline(bed, worker, pool, way):
    """A job that ignores its end is ended with all that it started; its zygote reaps it, and is charged with it."""
    zygote = worker(pool).zygote()
    before = cpu_seconds(zygote)

    job = enqueue(bed, f"{pool}.burn@1", way)
    bed.effect(f"{pool} takes {way}")
    _, state = peak(bed, job, lambda: 0.0)
    until(lambda: not any(busy(pid) for pid in descendants(zygote)))
    taken = cpu_seconds(zygote) - before

    print(f"most cpu_seconds: {taken}")
    assert "quarantined" == state
    assert taken < CPU_SECONDS_MAX


def busy(pid):
    """Whether a process uses a processor: at all, while the kernel counts in hundredths of a second."""
    before = cpu_seconds(pid)
    time.sleep(0.2)
    return cpu_seconds(pid) > before


WAYS_TO_FILL = ("write-files", "hold-files")


@pytest.mark.parametrize("way", WAYS_TO_FILL)
def test_without_a_cell_the_disk_is_taken(tmp_path, way):
    """The bound below proves something: nothing else keeps it."""
    with free(way, tmp_path / "free"):
        until(lambda: disk_bytes(tmp_path / "free", os.getpid()) > DISK_BYTES_MAX, SLOW_SECONDS)


@contained
@pytest.mark.parametrize("pool", ["medium", "high"])
@pytest.mark.parametrize("way", WAYS_TO_FILL)
def test_the_disk_is_taken_until_somebody_looks(bed, worker, pool, way):
    """No file is too large; all of them together are seen within a second, and the cell is ended."""
    zygote = worker(pool).zygote()

    job = enqueue(bed, f"{pool}.fill@1", way)
    most, state = peak(bed, job, lambda: disk_bytes(bed.root / "scratch", zygote))

    print(f"most disk_bytes: {most}")
    assert "quarantined" == state
    assert "filled its scratch" in bed.show(job).error
    assert 1 << 20 < most < DISK_BYTES_MAX


def test_without_a_cell_names_are_taken(tmp_path):
    """The bound below proves something: nothing else keeps it."""
    with free("make-names", tmp_path / "free"):
        until(lambda: names(tmp_path / "free") > NAMES_MAX, SLOW_SECONDS)


@contained
@pytest.mark.parametrize("pool", ["medium", "high"])
def test_names_are_taken_until_somebody_looks(bed, worker, pool):
    """Files in which nothing is take no block, and are bounded by their number."""
    worker(pool)

    job = enqueue(bed, f"{pool}.fill@1", "make-names")
    most, state = peak(bed, job, partial(names, bed.root / "scratch"))

    print(f"most names: {most}")
    assert "quarantined" == state
    assert "filled its scratch" in bed.show(job).error
    assert 5_000 < most < NAMES_MAX


def test_without_a_cell_processes_are_taken(tmp_path):
    """The bound below proves something: nothing else keeps it."""
    with free("fork-many", tmp_path / "free") as pid:
        until(lambda: processes(pid) > PROCESSES_MAX, SLOW_SECONDS)


@contained
@pytest.mark.skipif(os.getuid() == 0 and not OWN, reason="the kernel does not count root's processes")
@pytest.mark.skipif(not probe.holds(probe.TRIALS["pid_namespace"]), reason="this host forbids user namespaces")
def test_processes_are_bounded_by_number(bed, worker):
    """A pool with a list of programs may make some; the kernel bounds their number, and none outlives the job."""
    zygote = worker("programs").zygote()

    job = enqueue(bed, "programs.fork@1", "fork-many")
    most, state = peak(bed, job, partial(processes, zygote))

    print(f"most processes: {most}")
    assert "quarantined" == state
    assert "Resource temporarily unavailable" in bed.show(job).error
    assert PROCESSES_MAX / 2 < most <= PROCESSES_MAX
    until(lambda: processes(zygote) < 10)
