"""The keeper: what time does, by the store's clock, by one leader, through every outage."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import SystemRandom

import pytest

from benteng import lockfile
from benteng.app import Benteng
from benteng.gate import Gate, JobSpec
from benteng.keeper.loop import KeeperSettings, pause_seconds
from benteng.keeper.sweeper import Round, sweep
from benteng.store.open import open_consumer, open_keeper, open_operator, open_producer
from benteng.testing.clock import TestClock
from benteng.worker.program import program

app = Benteng()


@app.job("greet@1", lease_seconds=10.0)
def greet(name: str) -> str:
    """Say hello."""
    return name


@pytest.fixture
def clock(tmp_path):
    """A clock that only moves when told."""
    return TestClock(tmp_path / "clock")


@pytest.fixture
def dsn(tmp_path, clock):
    """A ledger that knows the app's types."""
    (tmp_path / "store").mkdir(mode=0o700)
    address = f"sqlite:///{tmp_path}/store/b.db"
    with closing(open_operator(address, clock=clock)) as operator:
        operator.apply_types(lockfile.to_rows(app.registry.policies()), "test")
    return address


def enqueue(dsn, clock, **changes):
    """Let one job in."""
    with closing(open_producer(dsn, clock=clock)) as producer:
        gate = Gate(producer, app.registry, app.registry.policies(), lambda: None)
        return gate.enqueue(JobSpec("greet@1", {"name": "a"}, **changes)).job_id


def test_an_expired_lease_is_taken_back(dsn, clock):
    """By the lease alone: one that is still running is left alone (cases.md C16)."""
    enqueue(dsn, clock)
    with (
        closing(open_consumer(dsn, "default", clock=clock)) as consumer,
        closing(open_keeper(dsn, clock=clock)) as keeper,
    ):
        consumer.claim(1, ["greet@1"])
        clock.advance(9)
        before = sweep(keeper, 5.0)
        clock.advance(2)
        after = sweep(keeper, 5.0)

    assert (0, 1) == (before.reclaimed, after.reclaimed)


def test_due_jobs_become_ready(dsn, clock):
    """And the round says when the next one is due."""
    enqueue(dsn, clock, delay_seconds=3.0)
    with closing(open_keeper(dsn, clock=clock)) as keeper:
        early = sweep(keeper, 5.0)
        clock.advance(3)
        due = sweep(keeper, 5.0)

    assert (0, 1) == (early.ready, due.ready)
    assert 3.0 == pytest.approx(early.next_seconds, abs=0.01)


def test_one_keeper_leads(dsn, clock):
    """The second does nothing until the lease of the first is over."""
    with closing(open_keeper(dsn, clock=clock)) as first, closing(open_keeper(dsn, clock=clock)) as second:
        assert sweep(first, 5.0).leading
        assert not sweep(second, 5.0).leading
        clock.advance(6)
        assert sweep(second, 5.0).leading


def test_the_pause_goes_to_the_next_due(dsn):
    """Never longer than allowed, never a busy loop."""
    settings = KeeperSettings(dsn)

    assert 0.2 == pause_seconds(Round(leading=True, next_seconds=0.2), settings, SystemRandom())
    assert 0.5 == pause_seconds(Round(leading=True, next_seconds=100.0), settings, SystemRandom())
    assert 0.5 == pause_seconds(Round(leading=True, next_seconds=None), settings, SystemRandom())
    assert 0.01 == pause_seconds(Round(leading=True, next_seconds=-1.0), settings, SystemRandom())


class Process:
    """A keeper as a worker starts it."""

    def __init__(self, dsn):
        self.process = subprocess.Popen(
            program("benteng.keeper.loop:main"), stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.stream = self.process.stderr
        self.process.stdin.write(json.dumps({"dsn": dsn, "environment": "dev"}).encode() + b"\n")
        self.process.stdin.flush()
        self.said = b""

    def wait(self, text):
        while text not in self.said:
            assert select.select([self.stream], [], [], 15)[0], self.said
            data = os.read(self.stream.fileno(), 4096)
            assert data, self.said
            self.said += data

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def process(dsn):
    """A running keeper."""
    made = Process(dsn)
    yield made
    made.close()


def test_a_keeper_ends_with_its_worker(process):
    """The pipe that brought its settings is closed by the death of whoever holds it, however that died."""
    process.process.stdin.close()

    assert 0 == process.process.wait(10)
    process.process.stdin = None


def test_a_keeper_ends_when_asked(process, tmp_path):
    """SIGTERM wakes it from its sleep, also while the store is away."""
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    process.wait(b"store_away")

    process.process.send_signal(signal.SIGTERM)

    assert 0 == process.process.wait(10)


def test_a_keeper_survives_the_store_moving_away(process, dsn, tmp_path):
    """It says so once, tries again, and goes on when the store is back (F17)."""
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    store.rename(elsewhere)
    process.wait(b"store_away")
    assert process.process.poll() is None
    elsewhere.rename(store)
    process.wait(b"store_back")

    assert process.process.poll() is None


def test_the_address_is_not_on_the_command_line(process, dsn):
    """Everybody may read arguments."""
    assert dsn.encode() not in Path(f"/proc/{process.process.pid}/cmdline").read_bytes()


def test_the_process_imports_no_user_code():
    """Nothing that could: the modules of the keeper do not reach the app or the gate."""
    names = "('benteng.app', 'benteng.gate', 'runpy')"
    code = f"import sys, benteng.keeper.loop; print([name for name in {names} if name in sys.modules])"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == found.stdout.strip()
