"""Scratch directories: private, and deleted whatever a handler left in them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from benteng.worker.scratch import PLACE, Scratch


@pytest.fixture
def scratch(tmp_path):
    """A scratch root."""
    made = Scratch(tmp_path)
    yield made
    if made.root.exists():
        made.close()


def made(scratch, cell):
    """Make the directory of a cell as the cell does."""
    path = scratch.path(cell)
    path.mkdir(mode=0o700)
    return path


def sweep_all(scratch):
    """Sweep until nothing is left to delete."""
    for _ in range(10_000):
        if not scratch.dirty:
            return
        scratch.sweep()
    raise AssertionError("never clean")


def test_the_root_is_private(scratch):
    """Mode 0700; cells' directories are below it."""
    assert 0o700 == stat.S_IMODE(scratch.root.stat().st_mode)
    assert scratch.root == scratch.path(1).parent


def test_links_are_removed_and_not_followed(scratch, tmp_path):
    """Neither a link in the directory nor the directory replaced by one leads out of it."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    first, second = made(scratch, 1), made(scratch, 2)
    (first / "dir").symlink_to(victim)
    (first / "file").symlink_to(victim / "file")
    second.rmdir()
    second.symlink_to(victim)

    scratch.drop(1)
    scratch.drop(2)
    scratch.drop(2, attempt=7)
    sweep_all(scratch)

    assert "precious" == (victim / "file").read_text()
    assert [] == list(scratch.root.iterdir())


def test_an_attempt_is_dropped_from_the_cell_and_from_nowhere_else(scratch, tmp_path):
    """A cell directory that was replaced by a link does not give away what lies behind it."""
    victim = tmp_path / "victim" / "7"
    victim.mkdir(parents=True)
    (victim / "file").write_text("precious")
    (made(scratch, 1) / "7").mkdir()
    scratch.path(2).symlink_to(victim.parent)

    scratch.drop(1, attempt=7)
    scratch.drop(2, attempt=7)
    sweep_all(scratch)

    assert "precious" == (victim / "file").read_text()
    assert [] == list(scratch.path(1).iterdir())


def test_a_place_that_was_left_as_it_was_stays(scratch):
    """An attempt that leaves nothing costs no directory: the next one works in the same."""
    place = made(scratch, 1) / str(PLACE)
    place.mkdir(mode=0o700)
    found = place.stat().st_ino

    scratch.drop(1, PLACE)

    assert not scratch.dirty
    assert found == place.stat().st_ino


def _file(place):
    (place / "file").touch()


def _mode(place):
    place.chmod(0o755)


def _link(place):
    place.rmdir()
    place.symlink_to(place.parent)


@pytest.mark.parametrize("change", [_file, _mode, _link], ids=["file", "mode", "link"])
def test_a_place_that_was_changed_goes(scratch, change):
    """Whatever an attempt left, the next one of the cell does not find it."""
    place = made(scratch, 1) / str(PLACE)
    place.mkdir(mode=0o700)
    change(place)

    scratch.drop(1, PLACE)
    sweep_all(scratch)

    assert [] == list(scratch.path(1).iterdir())


def test_depth_and_modes_do_not_stop_it(scratch):
    """A very deep tree and directories without any permission go like everything else."""
    path = made(scratch, 1)
    here = os.open(path, os.O_RDONLY)
    for _ in range(2_000):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    (path / "locked").mkdir()
    (path / "locked" / "file").touch()
    (path / "locked").chmod(0)

    scratch.drop(1)
    sweep_all(scratch)

    assert [] == list(scratch.root.iterdir())


def test_one_sweep_is_bounded(scratch):
    """A directory with many files does not hold up the loop: each sweep deletes a piece."""
    path = made(scratch, 1)
    for number in range(100):
        (path / str(number)).touch()
    scratch.drop(1)

    scratch.sweep(30)

    assert 70 == sum(len(files) for _, _, files in os.walk(scratch.root))
    assert scratch.dirty


def test_the_root_goes_with_the_worker(scratch):
    """What was not dropped yet is deleted too."""
    (made(scratch, 1) / "file").touch()

    scratch.close()

    assert not Path(scratch.root).exists()


def test_what_a_killed_worker_left_is_deleted_by_the_next(tmp_path):
    """Only a root that nobody has locked, of this user, under our name."""
    living = Scratch(tmp_path)
    dead = tmp_path / "benteng-scratch-dead"
    dead.mkdir()
    (dead / "file").touch()
    (tmp_path / "benteng-other").mkdir()
    (tmp_path / "benteng-scratch-link").symlink_to(tmp_path / "benteng-other")

    next_one = Scratch(tmp_path)
    sweep_all(next_one)

    assert not dead.exists()
    assert living.root.is_dir()
    assert (tmp_path / "benteng-other").is_dir()
    next_one.close()
    living.close()
