"""The servers that tests ask for by name. Without a server: a failure in CI, a skip with its reason elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.servers import PostgresServer, Server, shared, why_no_cluster, why_none


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server of this test process: one for each xdist worker, because roles belong to the whole cluster."""
    need(why_none())
    server = shared()
    yield server
    server.close()


@pytest.fixture
def cluster() -> Iterator[Callable[..., PostgresServer]]:
    """Start clusters of the test's own (`PostgresServer.launch`), to be stopped, killed and replicated."""
    need(why_no_cluster())
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(PostgresServer.launch(**options))


def need(missing: str) -> None:
    """Go on when nothing is missing; fail in CI, where a test that did not run would count as passed."""
    if missing and os.environ.get("CI") == "true":
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
