"""The benchmark's application: the same job at each tier, which marks its slot and does nothing else."""

from __future__ import annotations

from functools import cache

from benteng.app import Benteng
from benteng.contract import Contract
from benteng.ops.bench.marks import Marks
from benteng.policy import Effect, Tier

app = Benteng()
marks = cache(Marks.of_environment)


class Slot(Contract):
    """Which slot to mark."""

    slot: int


@app.job("bench.low@1", pool="low")
def low(slot: int) -> None:
    """Be harmless when doubled."""
    marks().run(slot)


@app.job(
    "bench.medium@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, pool="medium", operation=("slot",), resources=None
)
def medium(payload: Slot) -> None:
    """Have an identity, a signature and a sandboxed cell."""
    marks().run(payload.slot)


@app.job("bench.high@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, pool="high", operation=("slot",), resources=None)
def high(payload: Slot) -> None:
    """Have a cell of its own too."""
    marks().run(payload.slot)
