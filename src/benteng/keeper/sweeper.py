"""One round of what time does: expired leases, due and blocked jobs, retention; each in bounded batches.

Recovery goes by the lease on the job itself, decided by the store's clock; a round that is cut off anywhere is simply
done again (reference/cases.md C13, C16, C17).
"""

from __future__ import annotations

from dataclasses import dataclass

from benteng.store.contract import Keeper

BATCH = 200
ROUNDS_MAX = 50
NAME = "keeper"


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did. next_seconds: how long nothing will be due, None when the store does not know."""

    leading: bool = False
    reclaimed: int = 0
    ready: int = 0
    woken: int = 0
    expired: int = 0
    purged: int = 0
    next_seconds: float | None = None

    @property
    def worked(self) -> bool:
        """Whether anything changed."""
        return bool(self.reclaimed or self.ready or self.woken or self.expired or self.purged)


def sweep(store: Keeper, lead_seconds: float) -> Round:
    """Do a round if this keeper leads. Raises StoreUnavailable; then the next round does the rest."""
    if not store.lead(NAME, lead_seconds):
        return Round()
    reclaimed = _reclaim(store)
    ready, woken, expired, next_seconds = _stage(store)
    return Round(True, reclaimed, ready, woken, expired, store.purge(BATCH), next_seconds)


def _reclaim(store: Keeper) -> int:
    total = 0
    for _ in range(ROUNDS_MAX):
        found = len(store.reclaim(BATCH))
        total += found
        if found < BATCH:
            break
    return total


def _stage(store: Keeper) -> tuple[int, int, int, float | None]:
    ready = woken = expired = 0
    next_seconds: float | None = 0.0
    for _ in range(ROUNDS_MAX):
        staged = store.stage(BATCH)
        ready, woken, expired = ready + staged.ready, woken + staged.woken, expired + staged.expired
        next_seconds = staged.next_seconds
        if staged.ready + staged.woken + staged.expired < BATCH:
            break
    return ready, woken, expired, next_seconds
