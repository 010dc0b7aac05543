"""A project of its own for each test: directory, state, keys; and two ways to run the command line in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from benteng.ops.cli import main

JOBS = """\
from typing import Annotated

import msgspec

from benteng import ADMIT, Benteng, Contract, Effect, Refuse, Slug, Target, Tier

app = Benteng()


@app.job
def greet(name: str, times: int = 1, loud: bool = False) -> str:
    return f"Halo, {name}" * times


class Bill(Contract):
    account: Slug
    host: Target


@app.job("bill@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("account",), resources=("host",))
def bill(payload: Bill) -> None: ...


@app.check(bill)
def not_closed(payload: Bill):
    return Refuse("U-closed", "the account is closed") if payload.account == "closed" else ADMIT


@app.job("charge@1", tier=Tier.MEDIUM, effect=Effect.ONCE, operation=("account",), resources=None)
def charge(payload: Bill) -> None: ...


class Patch(Contract):
    host: Target


@app.job("patch@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("host",), resources=("host",))
def patch(payload: Patch) -> None: ...
"""


@dataclass(frozen=True)
class Ended:
    """What one run of the command line did."""

    code: int
    out: str
    talk: str

    @property
    def document(self):
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self):
        """The JSON documents on stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class Project:
    """A directory with an application, and a state directory of its own."""

    root: Path
    environ: dict[str, str]

    def run(self, *words, stdin=b""):
        """Run `benteng` as a process."""
        done = subprocess.run(
            [sys.executable, "-m", "benteng.ops", *map(str, words)],
            cwd=self.root,
            env=self.environ,
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    def call(self, *words, stdin=None):
        """Run `benteng` in this process: for commands that import no user code."""
        done = CliRunner().invoke(main, [str(word) for word in words], input=stdin)
        return Ended(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An application with a type of each tier, in `dev`."""
    (tmp_path / "root").mkdir()
    for name in [name for name in os.environ if name.startswith("BENTENG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path / "root")
    (tmp_path / "root/jobs.py").write_text(JOBS)
    (tmp_path / "root/benteng.toml").write_text('app = "jobs:app"\n')
    return Project(tmp_path / "root", dict(os.environ))
