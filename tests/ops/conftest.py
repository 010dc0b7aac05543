"""A project of its own for each test: directory, state, keys; and two ways to run the command line in it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from click.testing import CliRunner

from benteng.decide import Disposition
from benteng.ops.cli import main
from benteng.store.open import default_dsn, open_consumer
from benteng.store.records import LeaseProof, Settlement

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


@dataclass
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
        """Run `benteng` in this process, and forget the user's module if the command imported it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", sys.path.copy())
            patch.delitem(sys.modules, "jobs", raising=False)
            done = CliRunner().invoke(main, [str(word) for word in words], input=stdin)
            sys.modules.pop("jobs", None)
        return Ended(done.exit_code, done.stdout, done.stderr)

    @cached_property
    def app(self):
        """The application, imported here under a name of its own: a producer."""
        name = f"jobs_{self.root.parent.name}"
        spec = importlib.util.spec_from_file_location(name, self.root / "jobs.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module.app

    @property
    def dsn(self):
        """The address of the project's ledger."""
        return default_dsn()

    def enqueue(self, job_type, *, actor="svc:test", **payload):
        """Admit one job and return its id."""
        return self.app.enqueue(job_type, payload, actor=actor).job_id

    def claim(self, *types):
        """Start one job of these types as a worker would; its lease is a minute at least."""
        with closing(open_consumer(self.dsn, "default")) as consumer:
            grants = consumer.claim(1, types)
        return grants[0] if grants else None

    def settle(self, grant, disposition, **facts):
        """Say how an attempt ended."""
        proof = LeaseProof(grant.job.id, grant.lease.fence, grant.lease.token)
        with closing(open_consumer(self.dsn, "default")) as consumer:
            (settled,) = consumer.settle([Settlement(proof, disposition, **facts)])
        return settled

    def quarantined(self, job_type, reason, **payload):
        """Admit a job, run it into quarantine, and return its id."""
        job_id = self.enqueue(job_type, **payload)
        grant = self.claim(job_type)
        assert grant is not None
        self.settle(grant, Disposition.QUARANTINE, reason=reason, error="boom", rule="T-test")
        return job_id

    def state(self, job_id):
        """Where a job is, as the command line says."""
        return self.call("jobs", "show", job_id, "--json").document["state"]


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
    project = Project(tmp_path / "root", dict(os.environ))
    yield project
    if "app" in vars(project):
        project.app.close()
