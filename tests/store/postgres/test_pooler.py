"""Behind pgbouncer in transaction mode, with one pool for each login: the same promises, found by polling alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benteng.testing.conformance.admit import AdmitPromises
from benteng.testing.conformance.claim import ClaimPromises
from benteng.testing.conformance.extend import ExtendPromises
from benteng.testing.conformance.keeper import ReclaimPromises
from benteng.testing.conformance.settle import SettlePromises, TurnPromises
from benteng.testing.postgres import LOGINS, fresh
from tests.support.fixtures import need
from tests.support.pooler import Pooler, why_no_pooler
from tests.support.servers import PostgresServer
from tests.support.site import FACETS, STEPS, Site, registry_of

JOBS = 500


def pooled(server, users):
    """Return a pooler before a server of our own; fail or skip where there is none."""
    need(why_no_pooler())
    if not isinstance(server, PostgresServer):
        pytest.skip("the server is not ours: a pooler for it would need its passwords")
    return Pooler(server, ["postgres", *users])


@pytest.fixture(scope="module")
def pooler(postgres):
    """A pooler for the logins of the conformance suite."""
    with pooled(postgres, [login.name for login in LOGINS]) as pooler:
        yield pooler


class Pooled:
    """The suite of a store, asked through the pooler."""

    @pytest.fixture
    def ledger(self, postgres, pooler):
        """A fresh ledger whose facets all go through the pooler."""
        ledger = fresh(postgres.dsn)
        direct = ledger.site
        ledger.site = replace(
            direct, address=pooler.dsn("{user}", "{database}").replace("%7B", "{").replace("%7D", "}")
        )
        yield ledger
        ledger.close()
        ledger.site = direct
        ledger.remove()


class TestPooled(Pooled, ClaimPromises, ExtendPromises, TurnPromises):
    """What a worker is promised holds for sessions that are only lent."""


@pytest.mark.long
class TestPooledToo(Pooled, AdmitPromises, SettlePromises, ReclaimPromises):
    """And what the others are promised."""


def test_a_worker_runs_jobs_through_a_pooler(tmp_path, postgres):
    """Hundreds of jobs, a few server connections a login, nothing listened for, nothing lost or done twice."""
    direct = Site(tmp_path, postgres, registry_of(STEPS), STEPS)
    logins = [direct.login(facet, "default" if facet == "consumer" else "") for facet in FACETS]
    with pooled(postgres, logins) as pooler:
        direct.address = pooler.dsn
        direct.producer.close()
        direct.open()
        worker, _ = direct.worker(), direct.keep()
        jobs = direct.enqueue_many("step@1", [{"name": f"n{n}"} for n in range(JOBS)])
        listening = "select count(*) from pg_stat_activity where query ilike 'listen%'"

        direct.until(lambda: direct.count("step") >= JOBS)
        states = {direct.ended(job).state for job in jobs[:: JOBS // 10]}

        with direct.superuser() as owner:
            done = owner.execute("select count(*), sum(attempts) from benteng.operation where ended = 'completed'")
            assert (JOBS, JOBS) == done.fetchone()
            assert (0,) == owner.execute(listening).fetchone()
        assert {"completed"} == states
        assert 0 == worker.stop()
        direct.close()
