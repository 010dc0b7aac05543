"""The dependency locks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from scripts import lock

ROOT = Path(__file__).resolve().parents[2]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\Z")


def requirements(name):
    """Map each requirement of a lock to its hash options."""
    text = (ROOT / f"requirements/{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "--only-binary"))]
    return {line.split(" --hash")[0].strip(): re.findall(r"--hash=\S+", line) for line in lines}


@pytest.mark.parametrize("name", lock.LOCKS)
def test_every_requirement_is_pinned_and_hashed(name):
    """Nothing is installed that was not named by version and content."""
    locked = requirements(name)

    assert locked
    assert [] == [line for line in locked if not re.match(r"[a-z0-9.-]+==[^=*\s;]+( ;|\Z)", line)]
    assert [] == [line for line, hashes in locked.items() if not hashes or not all(map(HASH.match, hashes))]


@pytest.mark.parametrize("name", lock.LOCKS)
def test_a_lock_holds_no_address(name):
    """No index, no URL, no local path: the machine's own configuration decides where packages come from."""
    text = (ROOT / f"requirements/{name}.txt").read_text()

    assert [] == re.findall(r"://|@ |index-url|find-links|trusted-host|^-e|file:", text)


def test_the_locks_belong_to_pyproject():
    """A dependency changed in pyproject.toml is locked in the same commit."""
    assert 0 == lock.check()


def test_setup_runs_no_build_script():
    """Only wheels are installed: no package's build code runs on a developer's machine."""
    assert all("--only-binary :all:\n" in (ROOT / f"requirements/{name}.txt").read_text() for name in lock.LOCKS)


def test_the_build_backend_is_in_the_lock():
    """The editable install needs nothing that is not locked."""
    names = {line.partition("==")[0] for line in requirements("dev")}

    assert {"hatchling", "editables"} <= names


def test_the_core_depends_on_what_the_design_names():
    """A fifth core dependency is a decision (ADR), not an accident."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert ["click", "cronsim", "cryptography", "msgspec"] == sorted(
        re.split(r"[^a-z]", requirement)[0] for requirement in project["dependencies"]
    )
