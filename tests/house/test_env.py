"""`make env`: builds once, refuses clearly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import env

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """The environment's paths in a scratch directory, with a lock to stamp."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(env, "ROOT", tmp_path)
    monkeypatch.setattr(env, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(env, "STAMP", tmp_path / ".venv/.benteng-stamp")
    monkeypatch.setattr(env, "LOCK", tmp_path / "requirements/dev.txt")
    env.LOCK.write_text("")
    env.VENV.mkdir()
    return tmp_path


def test_an_old_python_is_refused_in_a_sentence(monkeypatch, capsys):
    """Who has only an old Python learns what is needed and how to name another one."""
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))

    assert 1 == env.main()
    assert "3.11 or newer, this is 3.10.4. Try: make env PYTHON=" in capsys.readouterr().err


def test_a_fitting_stamp_is_a_no_op(checkout, monkeypatch):
    """What is built is not built again."""
    monkeypatch.setattr(env, "_build", lambda: pytest.fail("built again"))
    env.STAMP.write_text(env._wanted())

    assert 0 == env.main()


@pytest.mark.parametrize("changed", ["requirements/dev.txt", "pyproject.toml"])
def test_a_changed_input_is_built_again(checkout, monkeypatch, changed):
    """The environment follows the lock and pyproject.toml."""
    built = []
    monkeypatch.setattr(env, "_build", lambda: built.append(1) or 0)
    env.STAMP.write_text(env._wanted())
    (checkout / changed).write_text("changed")

    assert 0 == env.main()
    assert [1] == built


def test_another_python_is_built_again(checkout, monkeypatch):
    """`make test PYTHON=python3.13` after 3.11 does not run on the old one."""
    before = env._wanted()
    monkeypatch.setattr(sys, "version", "3.99")

    assert before != env._wanted()


def test_make_help_names_every_target():
    """`make` alone says what there is to do."""
    done = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True)

    named = [line.split()[1] for line in done.stdout.splitlines()]
    assert {"env", "demo", "test", "check", "bench", "docs", "lint", "format", "types", "layers"} <= set(named)


def test_a_python_without_venv_is_told_what_to_install(tmp_path):
    """Debian ships venv apart: without root, apt or uv the sentence names the package."""
    for name in ("scripts/env.py", "requirements/dev.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "lame").mkdir()
    (tmp_path / "lame/ensurepip.py").write_text("raise ImportError")
    without_tools = {"PYTHONPATH": str(tmp_path / "lame"), "PATH": str(tmp_path)}
    python = getattr(sys, "_base_executable", sys.executable)

    done = subprocess.run([python, tmp_path / "scripts/env.py"], env=without_tools, check=False, capture_output=True)

    assert 1 == done.returncode
    assert b"install it with: sudo apt-get install python3." in done.stderr
    assert b"Traceback" not in done.stderr
