"""The lock file on disk: round trip, atomic replacement, refusals."""

from __future__ import annotations

import pytest

from benteng import lockfile
from benteng.errors import PolicyError
from benteng.policy import Tier
from tests.guard_cases import job_type


def test_what_is_written_is_read_back(tmp_path):
    """The file holds every field of every policy."""
    policies = {"patch.apply@1": job_type(Tier.HIGH).policy}
    path = tmp_path / "benteng.lock"

    lockfile.write(path, policies)

    assert policies == lockfile.read(path)
    assert policies == lockfile.from_rows(lockfile.to_rows(policies))


def test_an_absent_file_has_no_types(tmp_path):
    """Before the first lock nothing is reviewed."""
    assert {} == lockfile.read(tmp_path / "benteng.lock")


def test_writing_leaves_nothing_else_behind(tmp_path):
    """The replacement is atomic: one file, readable by all, writable by its owner."""
    path = tmp_path / "benteng.lock"
    lockfile.write(path, {})
    lockfile.write(path, {"patch.apply@1": job_type().policy})

    assert [path] == list(tmp_path.iterdir())
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    """When the disk fails in the middle, the reviewed file is still whole."""
    path = tmp_path / "benteng.lock"
    lockfile.write(path, {})
    before = path.read_bytes()

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lockfile.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        lockfile.write(path, {"patch.apply@1": job_type().policy})

    assert before == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change, rule",
    [
        (lambda text: text.replace(b'"version": 1', b'"version": 9'), "L-version"),
        (lambda text: text.replace(b'"attempts_max": 3', b'"attempts_max": 99'), "F-attempts"),
        (lambda text: text.replace(b'"signed": true', b'"signed": false'), "F-signed"),
        (lambda text: text.replace(b'"patch.apply@1": {', b'"other@1": {'), "L-name"),
        (lambda text: text.replace(b'"tier"', b'"tear"'), "L-format"),
        (lambda text: text[:100], "L-format"),
    ],
    ids=["version", "attempts", "unsigned", "renamed", "unknown", "torn"],
)
def test_an_edited_file_below_the_floor_is_refused(tmp_path, change, rule):
    """The lock file may tighten; below the floor of its tier it is refused."""
    path = tmp_path / "benteng.lock"
    lockfile.write(path, {"patch.apply@1": job_type(Tier.HIGH).policy})
    text = change(path.read_bytes())
    path.write_bytes(text)

    with pytest.raises(PolicyError) as caught:
        lockfile.read(path)

    assert caught.value.rule == rule
