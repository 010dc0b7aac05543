"""A program of the pool's list goes through the broker as its job does: nothing of it knows that there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benteng.worker.sandbox import landlock, probe
from tests.support.fixtures import need
from tests.worker.egress.conftest import POOLS

pytestmark = [
    pytest.mark.skipif(landlock.abi() < landlock.ABI_NET, reason="this kernel can have no egress broker"),
    pytest.mark.skipif(
        "pid_namespace" not in probe.probe(), reason="this host forbids user namespaces, so no job starts a program"
    ),
]
CURL = "/usr/bin/curl"
NO_SUCH_HOST, COULD_NOT_CONNECT = "6: ", "7: "
"""How curl ends when a name is not looked up, and when nobody lets it connect (curl.1, EXIT CODES)."""


@pytest.fixture(autouse=True)
def _curl():
    need("" if Path(CURL).exists() else "there is no curl on this machine")


def with_curl(start, town, pool):
    """Start a worker whose jobs may run curl (LOW ones may as it is), which takes `localhost` to be 127.0.0.1."""
    programs = {} if pool == "low" else {"exec": [CURL]}
    return start(pool, egress=[f"127.0.0.1:{town['https'].port} loopback"], **programs)


@pytest.mark.parametrize("pool", POOLS)
def test_curl_reaches_what_is_listed_and_nothing_else(bed, town, start, pool):
    """With TLS; what is not listed is not reached, by name or address, and the listener there says so too."""
    with_curl(start, town, pool)
    tricks = ("curl", "curl-name", "curl-unlisted", "curl-address")
    jobs = [bed.enqueue(f"{pool}@1", name=what, host=f"web-{what}", what=what) for what in tricks]

    ended = [bed.ended(job) for job in jobs]

    assert {"completed"} == {each.state for each in ended}, [bed.show(job).error for job in jobs]
    listed, name, *others = [json.loads(each.result) for each in ended]
    assert "hello" == listed
    assert name.startswith(NO_SUCH_HOST)
    assert all(said.startswith(COULD_NOT_CONNECT) for said in others), others
    assert 0 == town["unlisted"].connections


@pytest.mark.parametrize("pool", POOLS)
def test_what_a_program_did_is_counted_for_its_job(bed, town, start, pool):
    """The audit's record of the job's end says it."""
    with_curl(start, town, pool)
    job = bed.enqueue(f"{pool}@1", name="counted", host="web-1", what="curl-address")

    bed.ended(job)

    records = [json.loads(line) for line in bed.audit().splitlines()]
    (detail,) = [each["detail"] for each in records if (each["job_id"], each["event"]) == (job, "completed")]
    assert "egress connects=0 refused=1" == detail
