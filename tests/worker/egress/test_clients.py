"""Clients as people use them, unchanged, through the broker; what is not listed is refused, and the job says why."""

from __future__ import annotations

import json

import pytest

from benteng.worker.sandbox import landlock
from tests.worker.apps import egress as app
from tests.worker.egress.conftest import POOLS

pytestmark = pytest.mark.skipif(landlock.abi() < landlock.ABI_NET, reason="this kernel can have no egress broker")
CLIENTS = sorted(app.CLIENTS)


def ended(bed, pool, what, name):
    """Run a job and return its status."""
    return bed.ended(bed.enqueue(f"{pool}@1", name=name, host="web-1", what=what))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("pool", POOLS)
def test_a_client_works_unchanged(shared, worker, pool, client):
    """By name, with TLS and certificates, blocking and on an event loop, at every tier."""
    worker(pool)

    found = ended(shared, pool, client, client)

    assert "completed" == found.state, shared.show(found.job_id).error
    assert "hello" == json.loads(found.result)


@pytest.mark.parametrize("trick, said", [("unlisted", "localhost:{}"), ("address", "127.0.0.1:{}")])
@pytest.mark.parametrize("pool", POOLS)
def test_what_is_not_listed_is_refused_by_its_rule(shared, town, worker, pool, trick, said):
    """The server is not reached, the handler gets "permission denied", and the job's error says what to add."""
    worker(pool)
    target = said.format(town["unlisted"].port)

    found = ended(shared, pool, trick, trick)

    error = shared.show(found.job_id).error
    assert "quarantined" == found.state
    assert "Permission denied" in error
    assert f'blocked by pool {pool}: connect {target} is not on the allow-list; add "{target}" to egress' in error
    assert 0 == town["unlisted"].connections


@pytest.mark.parametrize("pool", POOLS)
def test_an_unlisted_name_is_unknown(shared, worker, pool):
    """Clients are told that there is no such host, and the job's error says what to add."""
    worker(pool)

    found = ended(shared, pool, "name", "a-name")

    error = shared.show(found.job_id).error
    assert "gaierror" in error
    assert f"blocked by pool {pool}: the name evil.example.org is not on the allow-list" in error


def test_connects_are_counted_and_bounded(bed, town, start):
    """The budget is an attempt's; what is over it is refused (at both addresses of the name), and all is told."""
    worker = start("medium", egress_connects_per_job=7)
    before = town["quiet"].connections

    found = ended(bed, "medium", "many", "budget")

    counted = worker.wait("egress", job=found.job_id)
    assert ("7", "2") == (counted["connects"], counted["refused"])
    assert "more than 7 connects; raise egress_connects_per_job" in bed.show(found.job_id).error
    assert 7 == town["quiet"].reached(before + 7) - before
