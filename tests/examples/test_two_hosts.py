"""The example of two hosts, with a server of its own: what it tells must be what DESIGN promises."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.support.fixtures import need

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_hosts"


@pytest.fixture
def example(monkeypatch):
    """The example's modules, which are run as a script elsewhere."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield importlib.import_module("two_hosts"), importlib.import_module("network")
    for name in ("network", "two_hosts"):
        sys.modules.pop(name)


def test_a_host_that_is_cut_off_is_replaced_and_harmless(example, cluster):
    """Takeover by a higher fence, the old cell dead before, its late settlement refused, and work on it goes on."""
    two_hosts, network = example
    need(network.why_not())
    server = cluster(settings={"listen_addresses": "*"})
    with (server.data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 10.83.0.0/16 scram-sha-256\n")
    with server.connect() as connection:
        connection.execute("select pg_reload_conf()")

    with network.Network() as hosts:
        story = two_hosts.run(server.dsn(), server.port, hosts)

    assert 2 == len(set(story.namespaces))
    assert story.first < story.second
    assert story.cut_at < story.last_word < story.taken_over
    assert story.last_word - story.cut_at < 3.0
    assert f"fence={story.first}" in story.refused
    assert ("completed", [story.second]) == (story.state, story.ends)
    assert story.back_seconds < 10.0
