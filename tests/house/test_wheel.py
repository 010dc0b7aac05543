"""What users install."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from this tree with the locked backend and without network."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


def test_the_wheel_holds_the_whole_package(wheel):
    """SQL, Lua and py.typed are shipped with the code that needs them."""
    source = ROOT / "src"
    files = {str(f.relative_to(source)) for f in (source / "benteng").rglob("*") if f.is_file()}

    shipped = {name for name in wheel.namelist() if name.startswith("benteng/")}

    assert {name for name in files if "__pycache__" not in name} == shipped


def test_the_wheel_holds_nothing_else(wheel):
    """No tests, no scripts, no top-level surprises in a user's environment."""
    roots = {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()}

    assert {"benteng"} == roots


def test_the_wheel_names_its_licence_and_command(wheel):
    """Apache-2.0 travels along, and so does the `benteng` command."""
    names = [name.rpartition("/")[2] for name in wheel.namelist()]

    assert "LICENSE" in names
    entry_points = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert b"benteng = benteng.ops.cli:main" in wheel.read(entry_points)
