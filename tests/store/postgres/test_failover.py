"""Failover: what a promoted standby knows, and when its ledger starts jobs again.

Services name both servers in their address and look for the one that writes (`target_session_attrs`), as in production.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import closing, contextmanager
from urllib.parse import urlencode

import msgspec
import pytest

from benteng.errors import FacetError, PolicyError, StoreUnavailable
from benteng.lifecycle import State
from benteng.store.open import open_consumer
from benteng.store.postgres.connection import Place
from benteng.store.postgres.history import raise_fence_epoch
from benteng.store.postgres.producer import PostgresProducer
from benteng.store.records import Admission
from benteng.testing.bench import audit_rows, records
from benteng.testing.invariants import check_ledger
from benteng.testing.ledger import make_job
from tests.support.fixtures import need
from tests.support.servers import PostgresServer, why_no_cluster
from tests.support.site import COMMAND, STEPS, Site, registry_of
from tests.worker.bed import field

BACK_SECONDS = 10.0
EPOCH = 1 << 26


@pytest.fixture
def pair(tmp_path):
    """Make a durable primary with one standby, and a ledger whose services know both."""
    need(why_no_cluster())
    made: list[Site] = []

    @contextmanager
    def begin(*, sync: bool):
        with PostgresServer.launch(durable=True) as primary:
            places = [primary]
            site = Site(tmp_path, primary, registry_of(STEPS), STEPS, address=lambda *who: of(places, *who))
            made.append(site)
            places.append(primary.standby(sync=sync))
            try:
                yield site, primary, places[1]
            finally:
                site.close()

    return begin


def of(places, user, dbname):
    """Return the address of whichever of the servers can be written."""
    if len(places) == 1:
        return places[0].dsn(user, dbname)
    hosts = ",".join(str(each.home) for each in places)
    ports = ",".join(str(each.port) for each in places)
    query = urlencode({"host": hosts, "port": ports, "target_session_attrs": "read-write"})
    return f"postgresql://{user}@/{dbname}?{query}"


def fail_over(site, primary, standby):
    """Kill the primary for ever and promote the standby."""
    primary.kill()
    standby.promote()
    site.server = standby


def until_noted(site, standby):
    """Wait until the keeper has written down, on both, whom commits wait for."""
    query = "select standbys from benteng.history"
    with standby.connect(dbname=site.dbname) as connection:
        site.until(lambda: connection.execute(query).fetchone() == (standby.name,))


def claim(site):
    """Claim as a worker of the pool would."""
    with closing(open_consumer(site.server.dsn(site.login("consumer", "default"), site.dbname), "default")) as store:
        return store.claim(5, ["step@1", "block@1"])


def history(site):
    """Return what the ledger knows of its database's history."""
    with site.superuser() as connection:
        return connection.execute("select timeline, epoch, standbys, claims_from from benteng.history").fetchone()


def test_a_synchronous_standby_goes_on_by_itself(pair):
    """Class D2: everything acknowledged is there, fences begin above all old ones, workers go on without a restart."""
    with pair(sync=True) as (site, primary, standby):
        worker, _ = site.worker(), site.keep()
        until_noted(site, standby)
        site.producer.close()
        site.open()
        running = site.enqueue("block@1", name="held", host="a")
        line = site.effect("block held")
        acknowledged = [site.enqueue("step@1", name="more") for _ in range(30)]

        fail_over(site, primary, standby)
        promoted = time.monotonic()
        later = site.until(lambda: site.enqueue("step@1", name="later"))
        site.ended(later, BACK_SECONDS)
        seconds = time.monotonic() - promoted
        site.go()

        assert ["completed"] * 31 == [site.ended(job).state for job in (*acknowledged, running)]
        assert seconds < BACK_SECONDS
        assert int(field(site.effect("step later"), "pid")) > 0
        assert int(site.effect("step later").split()[2]) > EPOCH > int(line.split()[2])
        assert "00000002" == history(site)[0]
        assert worker.process.poll() is None
        check_ledger(site)


def test_an_asynchronous_standby_waits_for_a_person(pair):
    """Lost is only what never reached it; nothing starts before the epoch was raised, nor while lost leases last."""
    with pair(sync=False) as (site, primary, standby):
        site.producer.close()
        site.open()
        there = site.enqueue("step@1", name="there")
        site.until(lambda: knows(standby, site, there))
        stop_sending(primary)
        missing = site.enqueue("step@1", name="missing")
        fail_over(site, primary, standby)
        site.keeper().stage(100)

        with pytest.raises(StoreUnavailable, match="benteng restore"):
            claim(site)
        fence = raise_fence_epoch(standby.dsn(dbname=site.dbname), "the primary is gone")
        with pytest.raises(StoreUnavailable, match="every lease"):
            claim(site)
        end_the_wait(site)
        (grant,) = claim(site)

        assert (there, True) == (grant.job.id, grant.lease.fence > fence > EPOCH)
        assert [] == site.producer.status([missing])
        check_ledger(site)


def knows(server, site, job_id):
    """Return whether a server has a job."""
    with server.connect(dbname=site.dbname) as connection:
        return bool(connection.execute("select from benteng.job where id = %s", [job_id]).fetchall())


def stop_sending(primary):
    """Freeze the process that sends to the standby, so that what is committed from now on never reaches it."""
    with primary.connect() as connection:
        (pid,) = connection.execute("select pid from pg_stat_replication").fetchone()
    os.kill(pid, signal.SIGSTOP)


def end_the_wait(site):
    """Let the time of the leases that may have been lost pass."""
    with site.superuser() as connection:
        connection.execute("update benteng.history set claims_from = benteng.now()")


def test_a_commit_without_its_standby_is_unknown_and_then_one_job(pair):
    """Class D2 waits rather than lie: the call gives up, and the same admission, asked again, is the same job."""
    with pair(sync=True) as (site, _, standby):
        site.producer.close()
        site.open()
        place = Place(site.producer.place.dsn, "dev", patience_seconds=1.0)
        job = make_job(site.policies["step@1"], origin=site.producer.origin, payload=b'{"name":"a"}')
        standby.stop("immediate")
        with closing(PostgresProducer(place)) as hasty, pytest.raises(StoreUnavailable):
            hasty.admit([Admission(job)])

        standby.start()
        (receipt,) = site.producer.admit([Admission(job)])

        assert (job.id, State.READY) == (receipt.job_id, receipt.state)
        assert [job.id] == [grant.job.id for grant in claim(site)]


@pytest.fixture
def restored(tmp_path, postgres):
    """A ledger that believes to be of another database: as a dump that was restored elsewhere."""
    site = Site(tmp_path, postgres, registry_of(STEPS), STEPS)
    yield site
    site.close()


def move_elsewhere(site):
    """Let the ledger have been made in another cluster."""
    with site.superuser() as connection:
        connection.execute("update benteng.history set system_identifier = '1'")


def test_a_dump_restored_elsewhere_starts_nothing(restored):
    """Its fences may be issued twice: once there, once here. Admitting goes on, and the keeper alone cannot help it."""
    move_elsewhere(restored)
    job = restored.enqueue("step@1", name="a")
    restored.keeper().stage(100)

    with pytest.raises(StoreUnavailable, match="benteng restore"):
        claim(restored)

    assert State.READY is restored.show(job).state


def test_a_worker_waits_for_the_epoch_and_goes_on(restored):
    """No restart: it says that the store is away and why, and takes the job when the epoch was raised."""
    move_elsewhere(restored)
    worker = restored.worker()
    job = restored.enqueue("step@1", name="a")
    said = worker.wait("store_away")

    raise_fence_epoch(restored.server.dsn(dbname=restored.dbname), "moved")
    end_the_wait(restored)

    assert "benteng restore --fence-epoch" in said["why"]
    assert "completed" == restored.ended(job, BACK_SECONDS).state
    check_ledger(restored)


def test_running_attempts_keep_their_jobs_for_a_whole_lease(restored):
    """A lease that was prolonged, and that in the lost history, may last that long: nobody else may start before."""
    job = restored.enqueue("block@1", name="a", host="h")
    (grant,) = claim(restored)
    before = restored.show(job).lease_until
    now = restored.show(job).now

    raise_fence_epoch(restored.server.dsn(dbname=restored.dbname), "restored")

    after = restored.show(job)
    assert (State.RUNNING, grant.lease.fence) == (after.state, after.fence)
    assert after.lease_until >= max(before, now + 1_000_000)
    assert history(restored)[3].timestamp() * 1e6 >= now + 9_000_000  # the longest lease of any type


@pytest.mark.parametrize("above", [0, 1 << 60])
def test_epochs_only_rise(restored, above):
    """Each raise is above the last, also within one minute, and above a number that is known from outside."""
    dsn = restored.server.dsn(dbname=restored.dbname)

    first = raise_fence_epoch(dsn, "one", above=above)
    second = raise_fence_epoch(dsn, "two")

    assert above < first < second


def test_only_the_databases_owner_may_raise_it(restored):
    """It is a verb of no facet: an operator cannot, and without a reason nobody can."""
    with pytest.raises(FacetError):
        raise_fence_epoch(restored.server.dsn(restored.login("operator"), restored.dbname), "please")
    with pytest.raises(PolicyError, match="S-reason"):
        raise_fence_epoch(restored.server.dsn(dbname=restored.dbname), " ")


@pytest.mark.parametrize(
    "standbys, name, waited",
    [
        ("a", "a", True),
        ("2 (a, b)", "b", True),
        ('ANY 2 (a, "B-1")', "b-1", True),
        ("a, b", "b", False),
        ("FIRST 1 (a, b)", "b", False),
        ("ANY 1 (a, b)", "a", False),
        ("*", "a", False),
        ("a", "b", False),
        ("", "", False),
    ],
)
def test_a_ledger_goes_on_alone_only_where_every_commit_had_waited(restored, standbys, name, waited):
    """A standby that was one of several to wait for may lack what was acknowledged: then a person decides."""
    with restored.superuser() as connection:
        assert (waited,) == connection.execute("select benteng.waits_for(%s, %s)", [standbys, name]).fetchone()


def test_the_command_raises_the_epoch(restored):
    """`benteng restore` finds the database by the administrator's variable alone, and says what fences are above."""
    environ = os.environ | {"BENTENG_DBA_DSN": restored.server.dsn(dbname=restored.dbname)}
    command = (*COMMAND, "restore", "--fence-epoch", "--reason", "moved", "--json")

    refused = subprocess.run(command, check=False, capture_output=True, cwd=restored.root)
    done = subprocess.run(command, check=True, capture_output=True, cwd=restored.root, env=environ)

    assert 0 != refused.returncode
    assert msgspec.json.decode(done.stdout)["fence_above"] > EPOCH
    assert "restored" in [each["event"] for each in records(audit_rows(restored.auditor()))]
