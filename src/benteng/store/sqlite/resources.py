"""Locks on resources: taken all or none with the claim, freed with the job, and handed on without a lost wake-up.

A freed key wakes one waiter, which becomes ready and carries the key's baton (`waits_for` of a ready job). Whoever
takes a baton out of `ready` without holding its key hands it on with `wake`; `sweep` finds what still sleeps beside a
free key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benteng.audit import Event
from benteng.clock import SECOND
from benteng.errors import StoreDamaged
from benteng.lifecycle import State
from benteng.store.sqlite import control
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import as_array

_RESOURCE = statements("resource")
BATON_SECONDS = 5
"""A woken job that nobody has claimed for so long (its pool is down) no longer keeps the others asleep."""


def ensure(tx: Tx, keys: Sequence[str]) -> None:
    """Make the rows of resources that nobody has named before."""
    tx.many_named(_RESOURCE["ensure"], [{"key": key} for key in keys])


def busy(tx: Tx, keys: Sequence[str]) -> str | None:
    """Return the first of the keys that somebody holds, or None when all are free."""
    if not keys:
        return None
    row = tx.one(_RESOURCE["busy"], {"keys": as_array(keys)})
    return None if row is None else row["key"]


def take(tx: Tx, keys: Sequence[str], *, job_id: str, fence: int) -> None:
    """Make the job the holder of all the keys, which are free. The fence in a row never goes back."""
    if not keys:
        return
    ensure(tx, keys)
    taken = tx.run(_RESOURCE["take"], {"keys": as_array(keys), "job_id": job_id, "fence": fence})
    if taken != len(keys):
        raise StoreDamaged("a resource has a fence from the future. Stop, and look for an older copy of the ledger")


def park(tx: Tx, row: Row, key: str, keys: Sequence[str]) -> None:
    """Let a ready job wait for a busy key; a baton for another key goes to the next in line."""
    tx.run(_RESOURCE["park"], {"seq": row["seq"], "key": key})
    tx.note(Event.BLOCKED, row, state_from=State.READY, state_to=State.BLOCKED, resources=tuple(keys), detail=key)
    if row["waits_for"] and row["waits_for"] != key:
        wake(tx, [row["waits_for"]])


def release(tx: Tx, job_ids: Sequence[str]) -> None:
    """Free what jobs held and wake the next of each."""
    if not job_ids:
        return
    wake(tx, [row["key"] for row in tx.changed(_RESOURCE["release"], {"job_ids": as_array(job_ids)})])


def close(tx: Tx, job_id: str) -> None:
    """Keep what an uncertain job held until a person has resolved it."""
    tx.run(_RESOURCE["close"], {"job_id": job_id})


def open_again(tx: Tx, job_id: str) -> None:
    """Free what a resolved job kept closed and wake the next of each."""
    wake(tx, [row["key"] for row in tx.changed(_RESOURCE["open"], {"job_id": job_id})])


def hand_on(tx: Tx, row: Row) -> None:
    """Give on what a job that stops had: its resources when it ran, its baton when it was woken."""
    if row["state"] == State.RUNNING:
        release(tx, [row["id"]])
    elif row["state"] == State.READY and row["waits_for"]:
        wake(tx, [row["waits_for"]])


def wake(tx: Tx, keys: Iterable[str]) -> int:
    """Make the next waiter that may start ready, for each key that is free; return how many."""
    return sum(_wake_one(tx, key) for key in sorted(keys))


def sweep(tx: Tx, n: int) -> int:
    """Wake a waiter of up to n keys that are free while somebody sleeps; return how many."""
    asked = {"stale": tx.now - BATON_SECONDS * SECOND, "limit": n, **control.not_claimable(tx)}
    return wake(tx, [row["key"] for row in tx.all(_RESOURCE["sleeping"], asked)])


def _wake_one(tx: Tx, key: str) -> int:
    row = tx.one(_RESOURCE["waiter"], {"key": key, **control.not_claimable(tx)})
    if row is None:
        return 0
    tx.run(_RESOURCE["wake"], {"seq": row["seq"], "now": tx.now})
    tx.note(Event.WOKEN, row, state_from=State.BLOCKED, state_to=State.READY, detail=key)
    return 1
