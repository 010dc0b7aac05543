"""A project whose code uses the network, its servers on loopback, and a worker for each pool, by either door.

`here`: the worker makes its cells and their broker. `there`: `benteng cell` does, in a container of an ordinary user.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from benteng.worker.sandbox import system
from benteng.worker.sandbox.capabilities import Capability
from tests.support.fixtures import need
from tests.support.others import ORDINARY_UID, environment, interpreter, passable
from tests.support.servers import PostgresServer, why_no_cluster
from tests.worker.bed import APPS, Bed
from tests.worker.egress.servers import Town
from tests.worker.estate import Command, container, descendants, outside

POOLS = ("low", "medium", "high")
PROGRAM = b"egress.program"
"""What stands in the command line of a broker."""


class Here:
    """The worker is the parent of zygote and broker."""

    uid = 65_534 if os.getuid() == 0 else os.getuid()
    held = frozenset({Capability.SYS_PTRACE}) if os.getuid() == 0 else frozenset[Capability]()

    def open(self, bed):
        """Return what a worker is started with beside its pool's settings."""
        del bed
        return {}

    def broker(self, worker):
        """Return the pid of a worker's broker."""
        return next(pid for pid in system.children_of(worker.pid) if is_broker(pid))

    def outside(self, pid):
        """Return the pid that a process of a pool has for us."""
        return pid

    def close(self):
        """Leave nothing."""


class There:
    """A warden in a container is their parent, and the worker is root on the host."""

    uid = ORDINARY_UID
    held = frozenset[Capability]()

    def __init__(self, ground):
        self._python = environment(ground / "python", whole=True)
        self._sides = []

    def open(self, bed):
        """Start a cells' side for each worker."""
        run = Path(tempfile.mkdtemp(prefix="run-", dir=bed.root))
        run.chmod(0o755)
        os.chown(run, self.uid, self.uid)
        for name in ("effects", "go"):
            (bed.root / name).chmod(0o666)
        prefix = container(self.uid, group=self.uid, hidden=bed.path.parent, network=True)
        words = [self._python, "-m", "benteng.ops", "cell", "--listen", f"unix:{run}/cell.sock", "--supervisor", "0"]
        environ = {"PATH": os.environ["PATH"], "EFFECTS": str(bed.root / "effects")}
        side = Command([*prefix, *words], bed.root, 0, environ)
        self._sides.append(side)
        side.wait("listening")
        return {"cell": f"unix:{run}/cell.sock", "uid": self.uid, "gid": self.uid, "python": self._python}

    def broker(self, worker):
        """Return the pid of the broker of the worker that was started last."""
        del worker
        return next(pid for pid in descendants(self._sides[-1].pid) if is_broker(pid))

    def outside(self, pid):
        """Return the pid that a process of the last container has for us."""
        return outside(self._sides[-1], pid)

    def close(self):
        """End all sides."""
        while self._sides:
            self._sides.pop().close()


def is_broker(pid):
    """Whether a process runs the broker's program."""
    return PROGRAM in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture(scope="package")
def ground():
    """A directory that other users may pass through."""
    made = passable("egress")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="package")
def place(ground):
    """Make a directory that other users may pass through."""

    def make(name):
        made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=ground))
        made.chmod(0o755)
        return made

    return make


@pytest.fixture(scope="package", params=["here", "there"])
def door(request, ground):
    """Where cells and broker are made."""
    if request.param == "there":
        need(why_not_there())
    made = Here() if request.param == "here" else There(ground)
    yield made
    made.close()


def why_not_there():
    """Return why this machine cannot play two containers; empty when it can."""
    if os.getuid() != 0:
        return "only root can play two containers"
    return "" if interpreter() else "no Python of this version that other users can run"


@pytest.fixture(scope="package")
def town(ground):
    """The servers, one of them a real PostgreSQL."""
    need(why_no_cluster())
    with PostgresServer.launch() as postgres:
        made = Town(ground, postgres)
        yield made
        made.close()


def settle(root, town, registry):
    """Make a project, and a ledger for it."""
    project = root / "project"
    project.mkdir()
    shutil.copy(APPS / "egress.py", project)
    shutil.copy(town.ca, project)
    (project / "places.json").write_text(json.dumps(town.ports() | {"postgres": town.postgres.port}))
    (project / "password").write_text(town.postgres.password or "")
    made = Bed(root, registry)
    (root / "scratch").chmod(0o711)
    return made


def begin(bed, town, pool, door, **settings):
    """Start a worker with the list of the town, or another one."""
    listed = [*town.rules(), f"localhost:{town.postgres.port} loopback"]
    given = {"egress": listed, "concurrency": 2} | door.open(bed) | settings
    worker = bed.worker(name=pool, app="egress:app", cwd=bed.root / "project", keeper=False, **given)
    worker.wait("ready")
    return worker


@pytest.fixture(scope="package")
def shared(place, town, door, app_registry):
    """A ledger for all tests that harm no worker."""
    made = settle(place("shared"), town, app_registry("egress"))
    yield made
    made.close()


@pytest.fixture(scope="package")
def worker(shared, town, door):
    """The worker of a pool, started when it is first asked for."""
    made = {}

    def of(pool):
        if pool not in made:
            made[pool] = begin(shared, town, pool, door)
        return made[pool]

    return of


@pytest.fixture
def bed(place, town, door, app_registry):
    """A ledger and a project of the test's own."""
    made = settle(place("own"), town, app_registry("egress"))
    yield made
    made.close()


@pytest.fixture
def start(bed, town, door):
    """Start a worker of a pool."""
    return lambda pool, **settings: begin(bed, town, pool, door, **settings)
