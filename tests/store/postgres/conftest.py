"""Ledgers with a test clock for the tests of this directory."""

from __future__ import annotations

import pytest

from benteng.testing.bench import Bench
from benteng.testing.invariants import check_ledger
from benteng.testing.postgres import fresh


@pytest.fixture
def ledger(postgres):
    """A fresh ledger in a database of its own."""
    ledger = fresh(postgres.dsn)
    yield ledger
    ledger.remove()


@pytest.fixture
def bench(ledger):
    """The ledger with its facets open; the invariants are checked when the test is over."""
    bench = Bench(ledger)
    yield bench
    check_ledger(ledger, bench.journal)


@pytest.fixture
def owner(ledger, postgres):
    """A session of the superuser in the ledger's database, each statement its own transaction."""
    with postgres.connect(dbname=ledger.site.database) as connection:
        yield connection
