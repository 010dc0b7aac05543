"""Treat rows one by one, so that a damaged one is left as it was and never stops those beside it (reliability.md, I15).

A job whose rows do not fit together is not repaired: the audit says so, at a bounded rate, and health() finds it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from benteng.errors import StoreDamaged
from benteng.store.sqlite import refusals
from benteng.store.sqlite.store import Tx

Answer = TypeVar("Answer")
RULE = "S-damaged"


def apart(tx: Tx, act: Callable[[], Answer], *, job_id: str, type_name: str = "") -> tuple[Answer | None, bool]:
    """Return what `act` returns and True, or None and False when it met damage: then nothing of it has happened."""
    try:
        with tx.savepoint():
            return act(), True
    except (StoreDamaged, sqlite3.IntegrityError) as error:
        if not tx.alive:
            raise
        refusals.record(
            tx,
            type_name=type_name,
            origin=tx.origin,
            rule=RULE,
            reason="the rows of a job do not fit together; it was left as it is",
            job_id=job_id,
            detail=str(error),
        )
        return None, False
