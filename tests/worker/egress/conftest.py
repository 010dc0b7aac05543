"""A project whose code uses the network, its servers on loopback, and a worker for each pool."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.fixtures import need
from tests.support.others import passable
from tests.support.servers import PostgresServer, why_no_cluster
from tests.worker.bed import APPS, Bed
from tests.worker.egress.servers import Town

POOLS = ("low", "medium", "high")


@pytest.fixture(scope="package")
def ground():
    """A directory that other users may pass through."""
    made = passable("egress")
    yield made
    shutil.rmtree(made)


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


def begin(bed, town, pool, **settings):
    """Start a worker with the list of the town, or another one."""
    listed = [*town.rules(), f"localhost:{town.postgres.port} loopback"]
    given = {"egress": listed, "concurrency": 2} | settings
    worker = bed.worker(name=pool, app="egress:app", cwd=bed.root / "project", keeper=False, **given)
    worker.wait("ready")
    return worker


@pytest.fixture(scope="package")
def shared(ground, town, app_registry):
    """A ledger for all tests that harm no worker."""
    made = settle(ground, town, app_registry("egress"))
    yield made
    made.close()


@pytest.fixture(scope="package")
def worker(shared, town):
    """The worker of a pool, started when it is first asked for."""
    made = {}

    def of(pool):
        if pool not in made:
            made[pool] = begin(shared, town, pool)
        return made[pool]

    return of


@pytest.fixture
def bed(tmp_path, town, app_registry):
    """A ledger and a project of the test's own."""
    made = settle(tmp_path, town, app_registry("egress"))
    yield made
    made.close()


@pytest.fixture
def start(bed, town):
    """Start a worker of a pool."""
    return lambda pool, **settings: begin(bed, town, pool, **settings)
