from __future__ import annotations

import pytest

from benteng.testing.conformance import PARTS, StoreConformance
from benteng.testing.sqlite import SqliteLedger


class TestSqlite(StoreConformance):
    """The embedded store keeps every promise of the store contract."""

    @pytest.fixture
    def ledger(self, tmp_path):
        """A fresh embedded ledger with a test clock."""
        ledger = SqliteLedger(tmp_path)
        yield ledger
        ledger.close()


def test_no_promise_hides_another():
    """No two classes of the suite have a test of the same name: both would not run."""
    names = [name for part in PARTS for name in vars(part) if name.startswith("test_")]

    assert len(names) == len(set(names))
    assert set(names) == {name for name in dir(StoreConformance) if name.startswith("test_")}
