"""What every part of the suite stands on: a fresh bench for each test, and the ledger checked after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benteng.testing.bench import Bench
from benteng.testing.invariants import check_ledger
from benteng.testing.ledger import Twin


class Promises:
    """Promises about a store. A subclass provides the fixture `ledger`; every test ends with the invariants."""

    @pytest.fixture
    def ledger(self) -> Iterator[Twin]:
        """A fresh ledger; to be provided by whoever runs the suite."""
        raise NotImplementedError("provide a fixture `ledger`: see docs/reference/conformance.md")

    @pytest.fixture
    def bench(self, ledger: Twin) -> Iterator[Bench]:
        """The ledger with its facets open; the invariants are checked when the test is over."""
        bench = Bench(ledger)
        yield bench
        check_ledger(ledger, bench.journal)
