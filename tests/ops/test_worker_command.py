"""`benteng worker` and `benteng keeper` as processes, with everything that people do around them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

MARK = """\
import json, os
with open(os.path.join(os.path.dirname(__file__), "imports"), "a") as stream:
    stream.write(json.dumps([os.getpid(), sorted(os.environ), dict(os.environ).get("BENTENG_DSN", "")]) + "\\n")

"""


@contextmanager
def process(project, *words):
    """A long-running command with its events as JSON lines; killed in the end if it has not ended."""
    started = subprocess.Popen(
        [sys.executable, "-m", "benteng.ops", *words, "--log", "json"],
        bufsize=0,  # else a second line waits in the buffer, where select does not see it
        cwd=project.root,
        env=dict(os.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert started.stderr is not None
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()
        started.stderr.close()


def wait_for(started, event):
    """Read the events of a process up to this one, and return it."""
    while select.select([started.stderr], [], [], 60)[0]:
        line = started.stderr.readline()
        assert line, f"ended before {event}"
        if line.startswith(b"{") and (told := json.loads(line))["event"] == event:
            return told
    raise AssertionError(f"no {event} in time")


def test_enqueue_worker_why_end_to_end(project, monkeypatch):
    """A job goes in, runs, its result comes out, the worker drains on SIGTERM, and never imported the code."""
    jobs = project.root / "jobs.py"
    jobs.write_text(MARK + jobs.read_text())
    monkeypatch.setenv("BENTENG_DSN", project.dsn)

    with process(project, "worker", "jobs:app") as worker:
        wait_for(worker, "ready")
        imported = [json.loads(line) for line in (project.root / "imports").read_text().splitlines()]
        ended = project.run("enqueue", "greet", "name=dunia", "--wait", "30")
        job_id = ended.out.split()[0]
        why = project.call("why", job_id)
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(30)

    assert (0, '"Halo, dunia"') == (ended.code, ended.out.splitlines()[1])
    assert "is completed" in why.out
    assert 0 == code
    assert worker.pid not in [pid for pid, _, _ in imported]
    assert len(imported) >= 2  # the child that describes, and the zygote
    assert [] == [names for _, names, dsn in imported if dsn or any(name.startswith("BENTENG") for name in names)]


def test_a_worker_needs_a_pool_that_has_types(project):
    """Exit 78 before anything starts."""
    assert 78 == project.run("worker", "--pool", "nothing").code


def test_a_refused_worker_lingers_until_it_is_ended(project):
    """Who starts whatever ends, at once, has no refused start in the log but one for each so long."""
    with process(project, "worker", "--pool", "nothing", "--linger", "3600") as worker:
        wait_for(worker, "refused")
        assert worker.stderr is not None
        assert b"it stays for 3600 s" in worker.stderr.readline()
        assert not select.select([worker.stderr], [], [], 2)[0]  # it would be readable at its end

        worker.send_signal(signal.SIGTERM)

        assert 78 == worker.wait(60)


def test_a_refused_worker_lingers_no_longer_than_it_is_told(project):
    """Then it ends as refused."""
    assert 78 == project.run("worker", "--pool", "nothing", "--linger", "0.01").code


@pytest.mark.parametrize(
    "config,code,said",
    [
        ('app = "jobs:app"\nenvironment = "prod"\n', 78, "the lock file has no job type"),
        ('app = "nothing:app"\n', 78, "[N-app]"),
        ('app = "jobs"\n', 78, "[N-app]"),
    ],
    ids=["prod-unlocked", "no-module", "no-reference"],
)
def test_a_worker_that_may_not_start_says_why(project, config, code, said):
    """One line, exit 78."""
    (project.root / "benteng.toml").write_text(config)

    ended = project.run("worker")

    assert (code, "") == (ended.code, ended.out)
    assert said in ended.talk


def test_a_keeper_alone_makes_due_jobs_ready(project):
    """In the foreground, until SIGTERM; and `jobs watch` tells each change as it comes."""
    receipt = project.app.enqueue("greet", {"name": "a"}, delay_seconds=0.5)

    with process(project, "keeper") as keeper, watching(project, receipt.job_id) as lines:
        last = next(state for line in lines if (state := json.loads(line)["state"]) != "scheduled")
        keeper.send_signal(signal.SIGTERM)
        code = keeper.wait(30)

    assert ("scheduled", "ready") == (receipt.state, last)
    assert 0 == code


@contextmanager
def watching(project, job_id):
    """The lines that `jobs watch` writes, as they come."""
    words = ["jobs", "watch", job_id, "--jsonl"]
    started = subprocess.Popen(
        [sys.executable, "-m", "benteng.ops", *words], cwd=project.root, env=dict(os.environ), stdout=subprocess.PIPE
    )
    assert started.stdout is not None
    try:
        yield started.stdout
    finally:
        started.kill()
        started.wait()
        started.stdout.close()
