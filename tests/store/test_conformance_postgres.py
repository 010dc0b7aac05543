from __future__ import annotations

from pathlib import Path

import pytest

from benteng.testing.conformance import StoreConformance
from benteng.testing.postgres import fresh, superuser


class TestPostgres(StoreConformance):
    """The PostgreSQL store keeps every promise of the store contract, spoken to as the least logins."""

    @pytest.fixture
    def ledger(self, postgres):
        """A fresh ledger in a database of its own, with a test clock."""
        ledger = fresh(postgres.dsn)
        yield ledger
        ledger.remove()


def test_a_ledger_that_is_removed_takes_its_copies_along(postgres):
    """Also when it was closed before: neither a database nor the directory of a clock is left."""
    ledger = fresh(postgres.dsn)
    made = [ledger, ledger.copy(), ledger.production()]

    ledger.close()
    ledger.remove()

    assert not any(Path(each.site.directory).exists() for each in made)
    with superuser(ledger.site, "postgres") as connection:
        there = {name for (name,) in connection.execute("select datname from pg_database")}
    assert there.isdisjoint(each.site.database for each in made)
