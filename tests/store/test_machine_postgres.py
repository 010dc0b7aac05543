from __future__ import annotations

import os
from contextlib import contextmanager

from hypothesis import settings

from benteng.testing.machine import check_store
from benteng.testing.postgres import fresh

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
LIVES = settings(max_examples=500 if LONG else 8, stateful_step_count=60)


def test_any_life_of_the_store_is_one_of_the_model(postgres):
    """Whatever is asked in whatever order, the PostgreSQL store answers and shows what a model of a few dicts does."""

    @contextmanager
    def opened():
        ledger = fresh(postgres.dsn)
        yield ledger
        ledger.remove()

    check_store(opened, LIVES)
