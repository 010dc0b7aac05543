"""What a job and an import can touch, through the real worker: from inside, by a handler that tries everything."""

from __future__ import annotations

import os
import shutil

import pytest

from benteng.worker.sandbox import landlock, observe
from tests.support.others import environment, interpreter, passable
from tests.worker.bed import APPS, Bed
from tests.worker.sandbox.escapes.scene import OWN_UID

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock, so no tier above LOW")

DENIED = "PermissionError"
SHUT = {
    "store": DENIED,
    "key": DENIED,
    "env": DENIED,
    "passwd": DENIED,
    "app": "did",
    "template": "did",
    "app-write": DENIED,
    "scratch": "did",
    "outside": DENIED,
    "siblings": DENIED,
    "network": DENIED,
    "thread": "did",
    "child": DENIED,
}


@pytest.fixture(scope="module")
def root():
    """A directory that other users may pass through."""
    made = passable("walls")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def bed(root, app_registry):
    """A ledger, and the app in a project that has keys, an .env and templates beside the code."""
    project = root / "project"
    for directory in (project, project / ".benteng", project / "templates"):
        directory.mkdir()
    shutil.copy(APPS / "walls.py", project)
    for name in (".benteng/producer.key", ".env", "templates/mail.txt"):
        (project / name).write_text("x")
    made = Bed(root, app_registry("walls"))
    (root / "scratch").chmod(0o711)
    yield made
    made.close()


@pytest.fixture(scope="module")
def worker(bed):
    """Return a worker of a pool, started when it is first asked for."""
    made = {}

    def of(pool, **settings):
        if pool not in made:
            made[pool] = bed.worker(name=pool, app="walls:app", cwd=bed.root / "project", keeper=not made, **settings)
            made[pool].wait("ready")
        return made[pool]

    return of


def result(bed, job_type, name):
    """Run a job and return its result."""
    import json

    ended = bed.ended(bed.enqueue(job_type, name=name, host="web-1"))
    assert "completed" == ended.state, bed.show(ended.job_id)
    return json.loads(ended.result)


@pytest.mark.parametrize("pool, job_type", [("medium", "serial@1"), ("high", "single@1")])
def test_a_handler_reaches_its_app_and_scratch_and_nothing_else(bed, worker, pool, job_type):
    """Neither store, keys, hidden files, other cells, network nor processes; the code and what lies beside it, yes."""
    worker(pool)

    found = result(bed, job_type, f"now-{pool}")

    assert SHUT == found["now"]


@pytest.mark.parametrize("pool, job_type", [("medium", "serial@1"), ("high", "single@1")])
def test_an_import_reaches_no_more_but_that_it_may_fork(bed, worker, pool, job_type):
    """The app's module code runs behind the same walls; what it executes is refused."""
    worker(pool)

    found = result(bed, job_type, f"import-{pool}")

    assert SHUT | {"scratch": DENIED, "siblings": "did"} == found["import"]


def test_a_mixed_pool_holds_its_cells_all_the_same(bed, worker):
    """The import of a pool with LOW types has no walls, and the worker says so; each MEDIUM cell has its own."""
    said = worker("mixed").wait("warning", rule="W-mixed")

    found = result(bed, "mixed@1", "mixed")

    assert "imported without walls" in said["why"]
    assert SHUT == found["now"]
    assert "did" == found["import"]["passwd"]


def test_a_violation_at_high_is_suspicious(bed, worker):
    """Starting a program ends a HIGH cell by SIGSYS: quarantined as suspicious, never retried."""
    said = worker("high")

    ended = bed.ended(bed.enqueue("violate@1", name="a", host="web-1"))

    assert ("quarantined", "suspicious") == (ended.state, bed.show(ended.job_id).reason)
    assert "SIGSYS" in said.wait("suspicious")["why"]
    assert bed.show(ended.job_id).error.endswith(
        "blocked by pool high: make a system call that no job needs; "
        "if that was to start a program: name it in exec of [pool.high]"
    )


def test_a_violation_at_medium_is_an_error(bed, worker):
    """There libraries may try what they should not, and are refused."""
    worker("medium")

    assert "refused" == result(bed, "violate.medium@1", "a")


@pytest.mark.parametrize("name", ["named", "open"])
def test_a_job_that_fills_its_scratch_is_ended(bed, worker, name):
    """No file of it is too large; all of them together are, also when they have no names."""
    said = worker("medium")

    ended = bed.ended(bed.enqueue("fill@1", name=name, host="web-1"))

    assert "quarantined" == ended.state
    assert "filled its scratch" in bed.show(ended.job_id).error
    assert said.wait("scratch_full")


def test_the_supervisor_sees_the_layers_that_can_be_seen(bed, worker):
    """No capability, a filter, no new privileges, and another network, by /proc of the zygote."""
    found = observe.seen(worker("high").zygote())

    assert {"no_new_privs", "seccomp", "capabilities", "network_namespace", "ipc_namespace"} <= found


def test_exec_cells_import_behind_their_walls(bed, worker):
    """Each of them imports the app anew, after its job layer: there even the import may not fork."""
    worker("medium").stop()
    started = bed.worker(name="medium", app="walls:app", cwd=bed.root / "project", keeper=False, start="exec")
    started.wait("ready")

    found = result(bed, "serial@1", "exec")

    assert SHUT == found["now"]
    assert SHUT == found["import"]


def test_a_cell_that_lies_about_its_walls_gets_no_work(tmp_path, app_registry):
    """A hostile import can patch our code in its own process; what /proc shows it cannot."""
    bed = Bed(tmp_path, app_registry("liar"))
    worker = bed.worker(name="liar", app="liar:app")
    job = bed.enqueue("liar@1", name="a")

    said = worker.wait("suspicious")

    assert "a cell without" in said["why"]
    assert "seccomp" in said["why"]
    assert "completed" != bed.status(job).state
    bed.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a pool a uid of its own")
@pytest.mark.skipif(interpreter() is None, reason="no Python of this version that other users can run")
def test_a_pool_of_its_own_uid(bed, root, worker):
    """As root, zygote and cells are the pool's user, and the walls hold too."""
    python = environment(root / "venv")
    worker("high").stop()
    started = bed.worker(
        name="high", app="walls:app", cwd=root / "project", keeper=False, uid=OWN_UID, gid=OWN_UID, python=python
    )
    zygote = int(started.wait("ready")["zygote"])

    found = result(bed, "single@1", "own-uid")

    assert OWN_UID == found["uid"]
    assert SHUT == found["now"]
    assert "own_uid" in observe.seen(zygote)
