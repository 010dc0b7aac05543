from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

from hypothesis import settings

from benteng.testing.machine import check_store
from benteng.testing.sqlite import SqliteLedger

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
LIVES = settings(max_examples=2_000 if LONG else 40, stateful_step_count=60)


MEMORY = Path("/dev/shm")  # every verb is synced: a disk makes a life ten times longer


def test_any_life_of_the_store_is_one_of_the_model(tmp_path):
    """Whatever is asked in whatever order, the embedded store answers and shows what a model of a few dicts does."""

    @contextmanager
    def opened():
        ledger = SqliteLedger(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else tmp_path))
        yield ledger
        ledger.remove()

    check_store(opened, LIVES)
