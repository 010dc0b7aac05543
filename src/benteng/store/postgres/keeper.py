"""The keeper's verbs: what time does to jobs, and tightening."""

from __future__ import annotations

import secrets

from benteng.errors import Busy
from benteng.evidence import Control
from benteng.lifecycle import QuarantineReason, State
from benteng.store.postgres.connection import Ledger, Place
from benteng.store.postgres.producer import bounded
from benteng.store.postgres.wire import FLOAT8, INT8, TEXT
from benteng.store.records import Facet, Reclaimed, Staged


class PostgresKeeper(Ledger):
    """See store.contract.Keeper."""

    facet = Facet.KEEPER
    waits = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._holder = secrets.token_hex(16)

    def lead(self, name: str, seconds: float) -> bool:
        """See Keeper.lead."""
        (row,) = self.call("lead", TEXT(name), TEXT(self._holder), FLOAT8(seconds), repeatable=True)
        return row["lead"]

    def reclaim(self, n: int) -> list[Reclaimed]:
        """See Keeper.reclaim."""
        return [
            Reclaimed(str(row["job_id"]), State(row["state"]), row["reason"] and QuarantineReason(row["reason"]))
            for row in self.call("reclaim", INT8(n))
        ]

    def stage(self, n: int) -> Staged:
        """See Keeper.stage."""
        (row,) = self.call("stage", INT8(n), repeatable=True)
        return Staged(**row)

    def tighten(self, control: Control) -> None:
        """See Keeper.tighten."""
        tighten(self, control)

    def purge(self, n: int) -> int:
        """See Keeper.purge."""
        (row,) = self.call("purge", INT8(n))
        return row["purge"]


def tighten(ledger: Ledger, control: Control) -> None:
    """Set a switch. Raises Busy when it is set, but a claim that was under way may still start something."""
    asked = (control.scope.value, bounded(control.name), control.mode.value, bounded(control.reason))
    (row,) = ledger.call("tighten", *map(TEXT, asked), repeatable=True)
    if not row["tighten"]:
        raise Busy("the switch is set, but a claim that had begun before did not end in time. Set it again to be sure")
