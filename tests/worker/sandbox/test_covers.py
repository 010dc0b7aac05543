"""What opens the store is out of the sight of LOW jobs of an ordinary user: through the real worker, started as one.

The witness is the handler, which tries; the same handler of a worker whose host forbids the cover reads it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from benteng.errors import PolicyError
from benteng.policy import Tier
from benteng.worker import isolation
from benteng.worker.isolation import Site
from benteng.worker.pool import Pool
from benteng.worker.sandbox import covers
from tests.support.others import ORDINARY_UID, environment, interpreter, passable
from tests.worker.bed import APPS, Bed


@pytest.fixture(scope="module")
def bed(app_registry):
    """A ledger of an ordinary user with a job in it, its keys beside it, and the app elsewhere."""
    root = passable("covers")
    shutil.copytree(APPS, root / "project", ignore=shutil.ignore_patterns("__pycache__"))
    made = Bed(root, app_registry("covers"))
    made.enqueue("look@1", ledger=str(made.path), signer=str(root / "keys" / "producer.key"))
    made.close_ledger()
    environment(root / "venv")
    for path in (root, *root.rglob("*")):
        if "venv" not in path.parts:
            os.chown(path, ORDINARY_UID, ORDINARY_UID, follow_symlinks=False)
    yield made
    made.close()
    shutil.rmtree(root, ignore_errors=True)  # the keeper of a worker that was killed may be about to end: files go


def start(bed, **settings):
    """Start a worker as the ordinary user."""
    return bed.worker(
        app="covers:app",
        cwd=bed.root / "project",
        python=str(bed.root / "venv" / "bin" / "python"),
        user=ORDINARY_UID,
        **settings,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a worker as another user")
@pytest.mark.skipif(interpreter() is None, reason="no Python of this version that other users can run")
def test_a_low_job_of_the_same_user_cannot_read_the_store(bed):
    """Neither directly, nor by way of other processes, nor by taking the cover away, nor in spaces of its own."""
    worker = start(bed)
    worker.wait("ready")

    found = json.loads(bed.effect("looked ").removeprefix("looked "))

    assert {"directly", "key", "root", "parent", "uncover", "own-space", "listing"} == found.keys()
    assert {"FileNotFoundError", "PermissionError", "empty"} >= set(found.values()), found
    assert [] == worker.all("warning", rule="W-store")


def site(*, dev, covered=("/x",)):
    """A worker of an ordinary pool about to start."""
    return Site(Pool(), frozenset({Tier.LOW}), dev, (), (Path("/x/benteng.db"),), covered)


@pytest.mark.parametrize(
    "covered, held", [(("/x",), frozenset()), (None, frozenset({"mount_namespace"}))], ids=["forbidden", "needed"]
)
def test_prod_refuses_low_that_can_read_the_store(monkeypatch, covered, held):
    """Where the host forbids a cover, or where it would hide what jobs need; dev is loud."""
    monkeypatch.setattr(isolation, "held", lambda _, *, contained: held)
    said = []

    isolation.check(site(dev=True, covered=covered), lambda event, /, **fields: said.append(fields))

    assert ["W-store"] == [each["rule"] for each in said]
    with pytest.raises(PolicyError, match="can read what opens the store"):
        isolation.check(site(dev=False, covered=covered), lambda event, /, **fields: None)


def test_what_jobs_need_is_not_covered(tmp_path):
    """An app below the store's directory would be hidden with it, also by way of a link."""
    (tmp_path / "data" / "app").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data" / "app")

    assert covers.free_to_cover([tmp_path / "data"], [str(tmp_path)])
    assert not covers.free_to_cover([tmp_path / "data"], [str(tmp_path / "link")])
