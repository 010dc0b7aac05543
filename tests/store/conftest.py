from __future__ import annotations

import pytest

from benteng.testing.sqlite import SqliteLedger


@pytest.fixture
def ledger(tmp_path):
    """A fresh embedded ledger with a test clock."""
    ledger = SqliteLedger(tmp_path)
    yield ledger
    ledger.close()
