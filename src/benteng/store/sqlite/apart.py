"""Treat rows so that a damaged one is left as it was and never stops those beside it (reliability.md, I15).

A job whose rows do not fit together is not repaired: the audit says so, at a bounded rate, and health() finds it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from benteng.errors import StoreDamaged
from benteng.store.sqlite import refusals
from benteng.store.sqlite.store import Tx

Item = TypeVar("Item")
Answer = TypeVar("Answer")
RULE = "S-damaged"


def apart(tx: Tx, act: Callable[[], Answer], *, job_id: str, type_name: str = "") -> tuple[Answer | None, bool]:
    """Return what `act` returns and True, or None and False when it met damage: then nothing of it has happened."""
    answer, damage = _tried(tx, act)
    if damage:
        refusals.record(
            tx,
            type_name=type_name,
            origin=tx.origin,
            rule=RULE,
            reason="the rows of a job do not fit together; it was left as it is",
            job_id=job_id,
            detail=damage,
        )
    return answer, not damage


def apart_all(
    tx: Tx,
    act: Callable[[Sequence[Item]], list[Answer]],
    items: Sequence[Item],
    alone: Callable[[Item], list[Answer]],
) -> list[Answer]:
    """Return what `act` returns for the items together.

    When that meets damage, each half is treated by itself, until a damaged item is `alone`.
    """
    if len(items) < 2:  # noqa: PLR2004 - a single one
        return alone(items[0]) if items else []
    answers, damage = _tried(tx, lambda: act(items))
    if answers is not None and not damage:
        return answers
    half = len(items) // 2
    return [*apart_all(tx, act, items[:half], alone), *apart_all(tx, act, items[half:], alone)]


def _tried(tx: Tx, act: Callable[[], Answer]) -> tuple[Answer | None, str]:
    """Return what `act` returns, or nothing and the damage that it met."""
    try:
        with tx.savepoint():
            return act(), ""
    except (StoreDamaged, sqlite3.IntegrityError) as error:
        if not tx.alive:
            raise
        return None, str(error) or type(error).__name__
