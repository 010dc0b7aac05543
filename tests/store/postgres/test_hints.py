"""Hints and polling: who is told, how seldom an idle worker asks, and what is true when no hint comes."""

from __future__ import annotations

import time
from contextlib import closing

import psycopg
import pytest

from benteng.lifecycle import State
from benteng.store.open import open_consumer
from benteng.testing.ledger import LOW, MEDIUM
from tests.support.proxy import DOWN, Proxy
from tests.support.servers import PostgresServer
from tests.support.site import STEPS, Site, by_tcp, registry_of
from tests.support.waiting import until

IDLE_SECONDS = 5.0
CALLS = "select coalesce(sum(calls), 0)::int from pg_stat_user_functions where funcname = 'claim'"


@pytest.fixture
def listener(ledger):
    """A session that hears every notification of the ledger's database."""
    with psycopg.connect(ledger.site.dsn("t_default"), autocommit=True) as connection:
        connection.execute("listen benteng")
        yield connection


def told(listener):
    """Return what was told so far: a round trip brings it along."""
    listener.execute("select 1")
    return sorted(said.payload for said in listener.notifies(timeout=0.2))


def test_a_commit_tells_each_pool_once(bench, listener):
    """Many jobs in one commit are one notification; what waits for its time, or was refused, is none."""
    bench.admit(*(bench.job() for _ in range(20)))

    assert ["default"] == told(listener)


def test_nobody_is_told_while_there_is_something_to_do(bench, listener):
    """Under load nothing is sent, because a transaction that notifies waits for all others that do."""
    bench.admitted()
    bench.admitted()

    assert ["default"] == told(listener)


def test_whom_to_tell_is_found_by_one_look_a_type(bench, owner):
    """Also by a session whose plan was made while the ledger was empty, and is kept although jobs have come."""
    owner.execute("set plan_cache_mode = force_generic_plan")
    owner.execute("select benteng.ring('{}')")
    bench.admit(*(bench.job() for _ in range(200)))
    with owner.transaction():
        owner.execute("select benteng.ring(%s)", [[LOW.name]])
        read = owner.execute("select pg_stat_get_xact_tuples_returned('benteng.job_ready'::regclass)").fetchone()

    assert (1,) == read


def test_held_and_scheduled_jobs_tell_nobody(bench, listener):
    """There is nothing to start; when a scheduled one is due, its staging tells."""
    bench.admitted(entry=State.HELD)
    bench.admitted(MEDIUM, operation="1", available_at=bench.clock() + 5_000_000)
    before = told(listener)
    bench.due(10)

    assert ([], ["default"]) == (before, told(listener))


def test_a_commit_that_rolls_back_tells_nobody(bench, listener, owner):
    """A hint is sent by the commit."""
    owner.execute("begin")
    owner.execute("select benteng.ring(array(select name from benteng.job_type))")
    owner.execute("rollback")

    assert [] == told(listener)


@pytest.mark.parametrize("topic, heard", [("default", True), ("other", False)])
def test_only_its_own_pool_makes_a_session_look(bench, owner, topic, heard):
    """Also when the notification comes with an answer, and wakes no selector."""
    hints = bench.consumer.hints
    owner.execute("select pg_notify('benteng', %s)", [topic])
    bench.claim()

    assert (heard, False) == (hints.heard(), hints.heard())


def test_the_end_of_a_session_makes_it_look(bench, owner):
    """Looking opens another session; a worker that waited for a hint of the one that ended would hear none."""
    hints = bench.consumer.hints
    owner.execute("select pg_terminate_backend(%s, 5000)", [hints.info.backend_pid])

    until(hints.heard)


@pytest.fixture
def site(tmp_path, postgres):
    """A ledger, and a worker that polls every 0.1 s where it is told nothing."""
    site = Site(tmp_path, postgres, registry_of(STEPS), STEPS)
    yield site
    site.close()


def test_an_idle_worker_asks_less_than_once_a_second(site):
    """Counted by the server over seconds in which nothing is to do; a job then starts at once, by its hint."""
    with site.superuser() as owner:
        owner.execute(f"alter database {site.dbname} set track_functions = 'pl'".encode())
        site.worker().wait("ready")
        site.ended(site.enqueue("step@1", name="first"))
        busy = statements(owner)
        site.until(lambda: statements(owner) > busy)  # a session counts late: now the claims of its busy time are in
        began, before = time.monotonic(), statements(owner)
        site.until(lambda: time.monotonic() - began > IDLE_SECONDS)
        asked = statements(owner) - before
    started = time.monotonic()
    site.enqueue("step@1", name="second")
    site.effect("step second")

    assert 1 <= asked <= IDLE_SECONDS
    assert time.monotonic() - started < 1.0


def statements(owner):
    """Return how many claims the ledger has been asked."""
    owner.execute("select pg_stat_clear_snapshot()")
    return owner.execute(CALLS).fetchone()[0]


def test_a_listener_that_was_ended_listens_again(site):
    """After its session was ended the next one listens too: no job waits for a poll from then on."""
    worker = site.worker()
    worker.wait("ready")
    site.ended(site.enqueue("step@1", name="first"))
    with site.superuser() as owner:
        owner.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'benteng-consumer'"
        )
    site.ended(site.enqueue("step@1", name="second"))
    site.until(lambda: idle(site))

    started = time.monotonic()
    site.enqueue("step@1", name="third")
    site.effect("step third")

    assert time.monotonic() - started < 1.0


def idle(site):
    """Return whether the worker's session has listened and rests."""
    with site.superuser() as owner:
        query = "select from pg_stat_activity where application_name = 'benteng-consumer' and state = 'idle'"
        return owner.execute(query).fetchall()


def test_without_hints_polling_finds_everything(tmp_path, postgres):
    """A session that is half open hears nothing and says nothing: the next poll gives it up, and finds the job."""
    if not isinstance(postgres, PostgresServer):
        pytest.skip("the server is not ours: there is no socket to stand before")
    with Proxy(postgres.socket) as proxy:
        address = by_tcp(tmp_path, postgres.password, proxy.host, proxy.port)
        with closing(Site(tmp_path, postgres, registry_of(STEPS), STEPS, address=address)) as site:
            worker = site.worker()
            worker.wait("ready")
            site.producer.close()
            site.address = postgres.dsn
            site.open()
            site.keep()  # a claim whose answer is lost comes back by its lease
            proxy.silence(DOWN)
            job = site.enqueue("step@1", name="a")
            worker.wait("store_away")
            proxy.heal()

            assert "completed" == site.ended(job, 10.0).state


def test_behind_a_pooler_nobody_listens(ledger, postgres, monkeypatch):
    """Where the session is only lent there are no hints: told by a backend that is not the one that answered."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda info: -1))
    with closing(open_consumer(ledger.site.dsn("t_default"), "default")) as consumer:
        assert consumer.hints is None
