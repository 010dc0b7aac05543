"""What a supervisor does while the ledger works on its turn: everything else."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from benteng.gate import JobSpec
from tests.support.site import Site
from tests.worker.bed import APPS, field

SLOW = """
create function public.slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.2); return null; end';
create trigger slow after update on benteng.job for each statement execute function public.slow()
"""
"""A claim takes longer than cells do."""

WAITS = "select 1 from pg_locks where not granted and relation = 'benteng.control'::regclass"


@pytest.fixture
def site(tmp_path, postgres, app_registry):
    """A ledger with a worker that runs one job, so that it has something to go on with."""
    made = Site(tmp_path, postgres, app_registry("overlap"), APPS / "overlap.py")
    yield made
    made.close()


@pytest.fixture
def restless(tmp_path, postgres, app_registry):
    """A ledger that takes its time for each claim, and has many jobs."""
    made = Site(tmp_path, postgres, app_registry("restless"), APPS / "restless.py")
    with made.superuser() as connection:
        connection.execute(SLOW)
    yield made
    made.close()


@contextlib.contextmanager
def turn_under_way(site):
    """Make a job ready that only a claim sees which a lock keeps waiting; the way on is free behind the block."""
    later = site.gate.enqueue(JobSpec("hold@1", {"name": "b"}, actor="svc:test", delay_seconds=3_600)).job_id
    with site.superuser() as holder, holder.transaction():
        holder.execute("lock table benteng.control in exclusive mode")
        holder.execute("update benteng.job set state = 'ready', due_at = now() where id = %s", [later])
        site.until(lambda: waiting(site))
        yield later


def waiting(site):
    """Whether somebody waits for the lock."""
    with site.superuser() as connection:
        return connection.execute(WAITS).fetchone()


def test_cells_are_heard_while_the_ledger_works(site):
    """A cell that dies is known as dead although an answer of the ledger is still to come."""
    worker = site.worker()
    site.enqueue("hold@1", name="a")
    cell = int(field(site.effect("hold a"), "pid"))

    with turn_under_way(site):
        os.kill(cell, signal.SIGKILL)
        worker.wait("cell_died")

        assert waiting(site)
        assert not worker.all("store_away")

    site.effect("hold b")


def test_what_a_claim_brings_into_a_drain_is_handed_back(site):
    """Told to end while it asks for more, a worker gives back what it gets then, unstarted and unspent."""
    worker = site.worker()
    running = site.enqueue("hold@1", name="a")
    site.effect("hold a")

    with turn_under_way(site) as late:
        worker.process.send_signal(signal.SIGTERM)
        worker.wait("draining")
        site.go()

    assert "completed" == site.ended(running).state
    assert 0 == worker.process.wait(30)  # told once: a second signal would meet it as it ends
    view = site.show(late)
    assert ("ready", 0, 1) == (view.state, view.attempts, view.handbacks)
    assert not site.count("hold b")


def test_a_worker_leaves_although_an_answer_is_still_to_come(site):
    """Told twice to end, it goes when its time is over, and what the ledger then answers is nobody's any more."""
    worker = site.worker()
    running = site.enqueue("hold@1", name="a")
    site.effect("hold a")

    with turn_under_way(site):
        worker.process.send_signal(signal.SIGTERM)
        worker.wait("draining")
        worker.process.send_signal(signal.SIGTERM)
        worker.wait("left_unsettled")

    assert 75 == worker.stop()
    assert "running" == site.show(running).state


def test_a_ledger_that_is_never_at_rest_prolongs_leases_too(restless):
    """Turn follows on turn for longer than a lease lasts, and an attempt that runs all the while keeps its own."""
    running = restless.enqueue("keep@1", name="a")
    restless.enqueue_many("tick@1", [{"number": number} for number in range(1_000)])

    worker = restless.worker("default", "--concurrency", "64")
    restless.effect("keep a")
    restless.until(lambda: left(restless) == 1, seconds=120)
    restless.go()

    assert ("completed", 1) == (restless.ended(running).state, restless.show(running).attempts)
    assert not worker.all("lease_ends")


BROKEN = """
create table public.broken ();
insert into public.broken default values;
create function public.at_commit() returns trigger language plpgsql security definer as $$begin
  if exists (select from public.broken) then raise exception 'no' using errcode = '57014'; end if;
  return null;
end$$;
create constraint trigger at_commit after update on benteng.job deferrable initially deferred for each row
when (new.state = 'running') execute function public.at_commit()
"""
"""What a claim would start is told, and then its commit fails."""


def test_what_a_failed_commit_would_have_started_reaches_no_cell(site):
    """A worker gets ready what it is told, and when that is not kept nobody has run: the next claim starts it, once."""
    with site.superuser() as connection:
        connection.execute(BROKEN)
    worker = site.worker()
    job = site.enqueue("hold@1", name="a")
    worker.wait("store_away")
    with site.superuser() as connection:
        connection.execute("delete from public.broken")

    site.effect("hold a")
    site.go()

    assert ("completed", 1) == (site.ended(job).state, site.show(job).attempts)
    assert 1 == site.count("hold a")
    assert 0 == worker.stop()


def left(site):
    """How many jobs are not done."""
    with site.superuser() as connection:
        return connection.execute("select count(*) from benteng.job").fetchone()[0]
