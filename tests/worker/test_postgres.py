"""Real workers and keepers on PostgreSQL, each with the least login, from the command line and benteng.toml alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benteng.config import load
from benteng.errors import PolicyError
from benteng.gate import JobSpec
from benteng.opening import settle_policies
from benteng.policy import LIMITS, Effect, Tier, TypePolicy
from benteng.worker.launch import WorkerSettings, check
from benteng.worker.pool import Pool
from tests.support.site import Site
from tests.worker.bed import APPS, field, wait_gone

JOBS = APPS / "jobs.py"


@pytest.fixture
def site(tmp_path, postgres, registry):
    """A ledger, and no process yet."""
    made = Site(tmp_path, postgres, registry, JOBS)
    yield made
    made.close()


def test_each_service_needs_its_own_login_alone(site):
    """Producer, worker and keeper each know one address; a job goes the whole way, and time passes for another."""
    worker, keeper = site.worker(), site.keep()
    low, medium = site.enqueue("greet@1", name="dunia"), site.enqueue("medium@1", name="a")
    retried = site.enqueue("says@1", name="retry")  # the keeper makes it ready again

    views = [site.ended(job) for job in (low, medium, retried)]

    assert ["completed", "completed", "quarantined"] == [view.state for view in views]
    assert (b'"Halo, dunia"', 2) == (views[0].result, views[2].attempts)
    assert (0, 0) == (worker.stop(), keeper.stop())
    assert not worker.all("keeper_started")


def test_no_cell_hears_of_the_address(site):
    """Neither environment nor arguments of zygote and cells name the ledger, and no descriptor leads to it."""
    worker = site.worker()
    site.enqueue("look@1", name="a")
    zygote = int(worker.wait("ready")["zygote"])
    line = site.effect("look")
    cell = int(field(line, "pid"))

    for pid in (zygote, cell):
        said = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))
        assert site.dbname.encode() not in said
        assert site.login("consumer", "default").encode() not in said
        assert sockets(worker.pid) & ledger_sockets(site)
        assert not sockets(pid) & ledger_sockets(site)


def sockets(pid: int) -> set[str]:
    """Return the sockets that a process has open, by inode."""
    found = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    return {name for name in found if name.startswith("socket:")}


def ledger_sockets(site: Site) -> set[str]:
    """Return this host's ends of connections to the server: what the workers and this test hold in common with it."""
    own = {name for process in site.processes for name in sockets(process.pid)}
    return own - {name for name in own if name in sockets(os.getpid())}


def test_a_lost_worker_is_replaced_by_another(site):
    """Its lease ends, the keeper takes the job back, the next worker has a higher fence, and the attempt is charged."""
    first, _ = site.worker(), site.keep()
    job = site.enqueue("medium.block@1", name="a")
    line = site.effect("block a")

    first.process.kill()
    assert wait_gone(int(field(line, "pid")))
    site.worker()
    again = site.effect("block a", 2)
    site.go()
    view = site.ended(job)

    assert ("completed", 2) == (view.state, view.attempts)
    assert int(line.split()[2]) < int(again.split()[2])


@pytest.fixture
def settings(tmp_path):
    """Settings of a worker on a server that nobody asks: checking them opens nothing."""
    (tmp_path / "app").mkdir()
    policy = TypePolicy(name="greet@1", tier=Tier.LOW, effect=Effect.REPEATABLE, limits=LIMITS[Tier.LOW])
    return WorkerSettings("postgresql://w@db/q", "jobs:app", {policy.name: policy}, cwd=tmp_path / "app", say=silent)


def silent(event, /, **fields):
    """Tell nobody."""


def test_a_password_file_below_the_code_is_refused(settings, tmp_path, monkeypatch):
    """W-roots: a cell that can read what opens the ledger is as good as the worker."""
    check(settings)
    named = replace(settings, dsn=f"postgresql://w@db/q?passfile={tmp_path}/app/pass")
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "app" / "pgpass"))

    for refused in (named, settings):
        with pytest.raises(PolicyError, match="W-roots"):
            check(refused)


def test_a_variable_that_names_the_ledger_is_refused(settings, monkeypatch):
    """W-env: neither the address nor the password reaches a cell by an environment variable."""
    dsn = "postgresql://w:s3%2Fcret@db/q"
    for value in (f"see {dsn}", "s3/cret"):
        monkeypatch.setenv("SEEN", value)

        with pytest.raises(PolicyError, match="W-env"):
            check(replace(settings, dsn=dsn, pool=Pool(env=("SEEN",))))


@pytest.mark.parametrize(
    "text",
    [
        'dsn = "postgresql://w:word@db/q"',
        'dsn = "postgresql://w@db/q?password=word"',
        '[dsn]\nconsumer = "postgresql://w:word@db/q"',
        '[pool.a]\ndsn = "postgresql://w:word@db/q"',
    ],
)
def test_no_password_in_the_configuration_file(tmp_path, text):
    """N-password: the file lies beside the code, and the error does not repeat the word."""
    file = tmp_path / "benteng.toml"
    file.write_text(text)
    file.chmod(0o600)

    with pytest.raises(PolicyError, match="N-password") as caught:
        load(tmp_path, environ={})

    assert "word@" not in str(caught.value)


def test_a_host_without_an_operators_address_applies_nothing(tmp_path, settings):
    """A producer's or worker's host compares code and lock file, and opens no facet that it has no login for."""
    file = tmp_path / "benteng.toml"
    said = []
    for environment in ("dev", "prod"):
        file.write_text(f'environment = "{environment}"\n[dsn]\nproducer = "postgresql://a@nowhere.invalid/q"\n')
        file.chmod(0o600)
        config = load(tmp_path, environ={})

        assert dict(settings.lock) == settle_policies(config, settings.lock, said.append)

    assert "no operator's address" in said[-1]


def test_hint_that_comes_with_an_answer_is_heeded(site, monkeypatch):
    """Told of a job while it settles the one before, a worker looks at once; this one polls once an hour."""
    monkeypatch.setattr("tests.support.site.POLL_SECONDS", 3_600)
    site.worker().wait("ready")

    for number in range(40):
        site.enqueue("greet@1", name=f"n{number}")
        site.effect(f"greet n{number} ")

    assert site.count("greet ") == 40


def test_job_without_a_hint_is_found_soon_after_another(site, monkeypatch):
    """Whoever enqueues during a claim may give no hint: a worker that just had work looks again, ever less often."""
    monkeypatch.setattr("tests.support.site.POLL_SECONDS", 3_600)
    site.worker().wait("ready")
    spec = JobSpec("greet@1", {"name": "unheard"}, actor="svc:test", delay_seconds=3_600)
    unheard = site.gate.enqueue(spec).job_id

    site.enqueue("greet@1", name="heard")
    site.effect("greet heard ")
    with site.superuser() as connection:
        connection.execute("update benteng.job set state = 'ready', due_at = now() where id = %s", [unheard])

    assert site.effect("greet unheard ")
