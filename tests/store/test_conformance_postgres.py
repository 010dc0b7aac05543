from __future__ import annotations

import pytest

from benteng.testing.conformance import StoreConformance
from benteng.testing.postgres import fresh


class TestPostgres(StoreConformance):
    """The PostgreSQL store keeps every promise of the store contract, spoken to as the least logins."""

    @pytest.fixture
    def ledger(self, postgres):
        """A fresh ledger in a database of its own, with a test clock."""
        ledger = fresh(postgres.dsn)
        yield ledger
        ledger.remove()
