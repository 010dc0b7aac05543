"""What real workers do when PostgreSQL goes away: they pause, nothing is lost or done twice, and they come back.

One server that really writes (fsync on), one worker and one keeper for all faults: nobody is started again. Clients go
through a proxy that can be silent.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from contextlib import ExitStack, closing, contextmanager

import pytest
from psycopg import sql

from benteng.errors import StoreUnavailable
from benteng.store.open import open_producer
from benteng.testing.invariants import check_ledger
from tests.support.fixtures import need
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer, why_no_cluster
from tests.support.site import STEPS, Site, by_tcp, registry_of
from tests.worker.bed import field, wait_gone

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
BACK_SECONDS = 10.0
"""How soon after the server is there again work goes on (reliability.md L3)."""


@pytest.fixture(scope="module")
def server():
    """A server that loses nothing when it is killed."""
    need(why_no_cluster())
    with PostgresServer.launch(durable=True) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server):
    """The way to it."""
    with Proxy(server.socket) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def site(tmp_path_factory, server, proxy):
    """A ledger with a worker and a keeper, which run until all tests are over."""
    root = tmp_path_factory.mktemp("loss")
    address = by_tcp(root, server.password, proxy.host, proxy.port)
    made = Site(root, server, registry_of(STEPS), STEPS, address=address)
    made.worker()
    made.keep()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def whole(site, proxy):
    """Before and after each fault work is done, by the same processes; afterwards every invariant holds."""
    assert "completed" == site.ended(site.enqueue("step@1", name="before")).state
    yield
    proxy.heal()
    site.until(lambda: "completed" == site.ended(site.until(lambda: site.enqueue("step@1", name="after"))).state)
    assert [None, None] == [process.process.poll() for process in site.processes[:2]]
    check_ledger(site)


@contextmanager
def enqueuing(site):
    """Enqueue all the while; the list has the ids that were acknowledged."""
    acknowledged: list[str] = []
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            try:
                acknowledged.append(site.enqueue("step@1", name="more"))
            except StoreUnavailable:
                over.wait(0.05)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield acknowledged
    finally:
        over.set()
        thread.join()


def all_completed(site, jobs):
    """Return whether all these jobs are completed."""
    with site.superuser() as connection:
        query = "select count(*) from benteng.operation where job_id = any(%s::uuid[]) and ended = 'completed'"
        return connection.execute(query, [jobs]).fetchone() == (len(jobs),)


def crash(server):
    """Kill the postmaster alone, as the kernel does when memory is out."""
    server.kill()
    server.start()


@pytest.mark.parametrize(
    "fault",
    [pytest.param(lambda server: server.restart("immediate"), id="immediate"), pytest.param(crash, id="kill")],
)
def test_a_restart_loses_nothing_that_was_acknowledged(site, server, fault):
    """Durability class D1: after a crash and a start every acknowledged job is there, and is worked off at once."""
    with enqueuing(site) as acknowledged:
        site.until(lambda: len(acknowledged) >= 20)
        fault(server)
        back = time.monotonic()
        count = len(acknowledged)
        site.until(lambda: len(acknowledged) >= count + 5, BACK_SECONDS)
        settled = time.monotonic() - back

    site.until(lambda: all_completed(site, acknowledged))
    assert settled < BACK_SECONDS


def test_sessions_that_are_ended_at_random_lose_nothing(site):
    """pg_terminate_backend on any session of the ledger, again and again: each job is completed once."""
    query = """
      select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and application_name like 'benteng-%%' order by random() limit 1
    """
    ended = 0
    with enqueuing(site) as acknowledged, site.superuser() as owner:
        while len(acknowledged) < (5_000 if LONG else 100) or ended < 10:
            ended += len(owner.execute(query.encode()).fetchall())
            time.sleep(0.1)  # the pace of the fault itself

    site.until(lambda: all_completed(site, acknowledged))


def test_silence_longer_than_the_lease_ends_the_cell_before_it(site, proxy):
    """No FIN, no answer: the cell is dead before its lease ends, and after healing the job is done by a new attempt."""
    job = site.enqueue("block@1", name="long", host="a")
    line = site.effect("block long")
    before = site.count("block long")

    proxy.silence()
    assert wait_gone(int(field(line, "pid")), 5.0)
    view, now = site.show(job), server_now(site)
    site.until(lambda: server_now(site) > view.lease_until + 1_000_000)
    proxy.heal()
    healed = time.monotonic()
    again = site.effect("block long", before + 1)
    seconds = time.monotonic() - healed
    site.go()

    assert now < view.lease_until
    assert seconds < BACK_SECONDS
    assert int(again.split()[2]) > int(line.split()[2])
    assert "completed" == site.ended(job).state


def server_now(site):
    """Return the server's clock in microseconds."""
    with site.superuser() as connection:
        return connection.execute("select benteng.instant(clock_timestamp())").fetchone()[0]


def test_silence_shorter_than_the_lease_harms_nobody(site, proxy):
    """The worker asks again on a new session and keeps its lease: the same cell ends the same attempt."""
    job = site.enqueue("patient@1", name="short", host="b")
    site.effect("patient short")
    away = len(site.processes[0].all("store_away"))

    proxy.silence()
    site.processes[0].wait("store_away", away + 1)
    proxy.heal()
    site.go()

    view = site.ended(job)
    assert ("completed", 1) == (view.state, view.attempts)


@pytest.fixture
def read_only(server):
    """A server that refuses to write, also for sessions that are open."""

    def setting(statement: str) -> None:
        with server.connect() as connection:
            connection.execute("set default_transaction_read_only = off")
            connection.execute(statement.encode())
            connection.execute("select pg_reload_conf()")

    setting("alter system set default_transaction_read_only = on")
    yield
    setting("alter system reset default_transaction_read_only")


def refuses_to_admit(site):
    """Return whether the gate says that the store cannot be written, for a job that then is not there."""
    with site.superuser() as owner:
        before = count_of(owner)
        try:
            site.enqueue("step@1", name="refused")
        except StoreUnavailable:
            return before == count_of(owner)
    return False


def count_of(owner):
    """Return how many operations there are."""
    return owner.execute("select count(*) from benteng.operation").fetchone()


def test_a_read_only_server_stores_nothing_and_workers_wait(site, read_only):
    """Typed errors for who enqueues; worker and keeper say that the store is away and go on asking."""
    away = [len(process.all("store_away")) for process in site.processes[:2]]

    site.until(lambda: refuses_to_admit(site))

    for process, count in zip(site.processes, away, strict=False):
        process.wait("store_away", count + 1)


def test_a_standby_stores_nothing(site, server):
    """In recovery a ledger is only read: admitting says unavailable, and asking goes on."""
    standby = server.standby(sync=False)
    with closing(open_producer(standby.dsn(site.login("producer"), site.dbname))) as store:
        with pytest.raises(StoreUnavailable):
            store.cancel(["00000000-0000-7000-8000-000000000000"], "no reason")

        assert [] == store.status([])
    standby.close()


@pytest.fixture
def stack():
    """What is to be undone, whatever happens."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def full_disk(site, server, stack):
    """Move the ledger's database to a small disk, and fill that."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs")
    disk = server.home / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", str(disk)], check=True)
    except subprocess.CalledProcessError:
        pytest.skip("may not mount a tmpfs here")
    stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=True)
    os.chown(disk, server.data.stat().st_uid, server.data.stat().st_gid)
    move(site, server, disk)
    filler = disk / "filler"
    yield lambda: fill(filler)
    filler.unlink()
    move(site, server, None)


def move(site, server, disk):
    """Put the database on a disk, or back; whoever uses it is disconnected meanwhile, and comes back by itself."""
    name = sql.Identifier(site.dbname)
    with server.connect() as connection:
        if disk:
            connection.execute(sql.SQL("create tablespace small location {}").format(sql.Literal(str(disk))))
        connection.execute(sql.SQL("alter database {} allow_connections false").format(name))
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", [site.dbname]
        )
        place = sql.Identifier("small" if disk else "pg_default")
        connection.execute(sql.SQL("alter database {} set tablespace {}").format(name, place))
        connection.execute(sql.SQL("alter database {} allow_connections true").format(name))
        if not disk:
            connection.execute("drop tablespace small")


def fill(file):
    """Write until nothing is left."""
    with file.open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def test_a_full_disk_stores_nothing_and_workers_wait(site, full_disk):
    """No space for a new row: a typed error, nothing of the job is there; with space again work goes on."""
    full_disk()
    payloads = [{"name": "x" * 60} for _ in range(500)]

    def refused():
        with site.superuser() as owner:
            before = count_of(owner)
            try:
                site.enqueue_many("step@1", payloads)
            except StoreUnavailable:
                return before == count_of(owner)
        return False

    assert site.until(refused)
