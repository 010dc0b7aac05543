"""What may stand in a tracked file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Split, so that this file passes its own test.
REGISTRIES = (
    "pypi." + "org",
    "pythonhosted." + "org",
    "npmjs." + "org",
    "registry." + "yarnpkg",
    "proxy.golang." + "org",
)
DEVELOPER_PATHS = re.compile(
    r"(?<![\w.])/(?:" + "|".join(("home" + "/", "Users" + "/", "root" + "/", "work" + "/")) + ")"
)
# Paths that are data: what a gate must refuse or a sandbox must hide, never a place where something is looked up.
PATHS_AS_DATA = {"tests/house/test_files.py"}


def tracked():
    """Every tracked file that is text, and exists in the work tree."""
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    files = [ROOT / name for name in names.decode().split("\0") if name]
    return [file for file in files if file.is_file() and b"\0" not in file.read_bytes()[:8000]]


@pytest.fixture(scope="module")
def texts():
    """Tracked text files by relative name."""
    return {str(file.relative_to(ROOT)): file.read_text(errors="replace") for file in tracked()}


def test_the_sweep_sees_the_repository(texts):
    """A sweep over nothing would prove nothing."""
    assert {"pyproject.toml", "LICENSE"} <= texts.keys()


@pytest.mark.parametrize("host", REGISTRIES)
def test_no_tracked_file_names_a_package_registry(texts, host):
    """Where packages come from is the machine's configuration, never the repository's."""
    naming = [name for name, text in texts.items() if host in text]

    assert [] == naming


def test_no_tracked_file_holds_a_path_of_a_developers_machine(texts):
    """Nothing depends on where somebody checked the repository out."""
    swept = {name: text for name, text in texts.items() if name not in PATHS_AS_DATA}

    holding = [f"{name}: {found[0]}" for name, text in swept.items() if (found := DEVELOPER_PATHS.search(text))]

    assert [] == holding
