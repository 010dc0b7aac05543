"""The keeper's verbs: what time does to jobs, and tightening."""

from __future__ import annotations

import secrets
from functools import partial

from benteng import lifecycle
from benteng.audit import Event
from benteng.clock import SECOND
from benteng.evidence import Control
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import Effect
from benteng.store.contract import BATCH_MAX
from benteng.store.records import Facet, Reclaimed, Staged
from benteng.store.sqlite import moves, refusals, resources, switches
from benteng.store.sqlite.apart import apart
from benteng.store.sqlite.connection import Place
from benteng.store.sqlite.moves import counts_of
from benteng.store.sqlite.policies import policy_of
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Ledger, Row, Tx
from benteng.store.sqlite.text import bounded

_LEAD = statements("lead")
_RECLAIM = statements("reclaim")
_STAGE = statements("stage")
_PURGE = statements("purge")
TALLY_MINUTES = 7 * 24 * 60


class SqliteKeeper(Ledger):
    """See store.contract.Keeper."""

    facet = Facet.KEEPER

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._holder = secrets.token_hex(16)

    def lead(self, name: str, seconds: float) -> bool:
        """See Keeper.lead."""
        with self.writing() as tx:
            lease_until = tx.after(seconds)
            asked = {"name": bounded(name), "holder": self._holder, "lease_until": lease_until, "now": tx.now}
            return bool(tx.changed(_LEAD["take"], asked))

    def reclaim(self, n: int) -> list[Reclaimed]:
        """See Keeper.reclaim."""
        with self.writing() as tx:
            rows = tx.all(_RECLAIM["expired"], {"now": tx.now, "limit": min(n, BATCH_MAX)})
            answers = [apart(tx, partial(_reclaim, tx, row), **_named(row))[0] for row in rows]
            return [answer for answer in answers if answer is not None]

    def stage(self, n: int) -> Staged:
        """See Keeper.stage."""
        limit = min(n, BATCH_MAX)
        with self.writing() as tx:
            refusals.sum_up(tx)
            expired = _expire(tx, limit)
            ready = _make_ready(tx, limit)
            return Staged(ready, resources.sweep(tx, limit), expired, _seconds_to_next(tx))

    def tighten(self, control: Control) -> None:
        """See Keeper.tighten."""
        with self.writing() as tx:
            switches.tighten(tx, control)

    def purge(self, n: int) -> int:
        """See Keeper.purge."""
        with self.writing() as tx:
            asked = {"now": tx.now, "limit": min(n, BATCH_MAX)}
            results = tx.run(_PURGE["results"], asked)
            operations = tx.run(_PURGE["operations"], asked | {"limit": asked["limit"] - results})
            tx.run(_PURGE["tallies"], {"minute": tx.now // (60 * SECOND) - TALLY_MINUTES})
            if results or operations:
                tx.say(Event.PURGED, detail=f"{results} results and {operations} operations past their retention")
            return results + operations


def _reclaim(tx: Tx, row: Row) -> Reclaimed:
    policy = policy_of(tx, row["type"])
    spent = moves.with_crash(counts_of(row))
    used_up = spent.crashes >= policy.limits.crashes_max or spent.attempts >= policy.limits.attempts_max
    reason = None
    if policy.effect is Effect.ONCE:
        reason = QuarantineReason.UNCERTAIN
        state = moves.quarantine(tx, row, reason, error=LEASE_ENDED, counts=spent)
    elif row["cancel_asked"]:
        state = moves.cancel(tx, row, "as asked; its lease ended", counts=spent)
    elif used_up:
        reason = QuarantineReason.CRASHED
        state = moves.quarantine(tx, row, reason, error=LEASE_ENDED, counts=spent)
    else:
        step = lifecycle.Event.RECLAIM
        alone = bool(row["alone"])
        state = moves.back(tx, row, Event.RECLAIMED, step, counts=spent, alone=alone, error=LEASE_ENDED)
    return Reclaimed(row["id"], state, reason)


LEASE_ENDED = "the lease ended without a word from the worker"


def _expire(tx: Tx, limit: int) -> int:
    rows = tx.all(_STAGE["late"], {"now": tx.now, "limit": limit})
    return sum(apart(tx, partial(_expire_one, tx, row["seq"]), **_named(row))[1] for row in rows)


def _expire_one(tx: Tx, seq: int) -> None:
    # A waiter that was woken by the one before it is `ready` now: the row is read again.
    row = tx.one(_STAGE["row"], {"seq": seq})
    if row is not None:
        moves.quarantine(tx, row, QuarantineReason.EXPIRED, error="not started in time")


def _named(row: Row) -> dict[str, str]:
    return {"job_id": row["id"], "type_name": row["type"]}


def _make_ready(tx: Tx, limit: int) -> int:
    rows = tx.all(_STAGE["due"], {"now": tx.now, "limit": limit})
    for row in rows:
        tx.run(_STAGE["make_ready"], {"seq": row["seq"]})
        state_to = lifecycle.advance(State(row["state"]), lifecycle.Event.STAGE)
        tx.note(Event.STAGED, row, state_from=row["state"], state_to=state_to)
    return len(rows)


def _seconds_to_next(tx: Tx) -> float | None:
    row = tx.one(_STAGE["next"])
    return None if row is None or row["at"] is None else max(0.0, (row["at"] - tx.now) / SECOND)
