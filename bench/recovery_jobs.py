"""The application of recovery.py: work under the limits that a type has when its author writes none.

Workers import it as a user's module; `recovery.py` copies it next to the run's configuration. Run recovery.py instead.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from benteng.app import Benteng
from benteng.context import Context
from benteng.contract import Contract
from benteng.ops.demo.world import append_durably
from benteng.policy import Effect, Tier

POOL = "recovery"
HELD_SECONDS = 120.0
"""How long a first try works if nobody kills it: longer than any recovery."""

app = Benteng()


class Piece(Contract):
    """One piece of work."""

    number: int


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One line of the journal: which work began, which attempt, when (CLOCK_MONOTONIC, ns)."""

    number: int
    attempt: int
    at: int


@app.job(
    "recovery.work@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    pool=POOL,
    operation=("number",),
    resources=None,
)
def work(payload: Piece, ctx: Context) -> int:
    """Begin; the first try goes on until its worker is killed."""
    line = Line(payload.number, ctx.attempt, time.monotonic_ns())
    append_durably(Path(os.environ["RECOVERY_JOURNAL"]), msgspec.json.encode(line) + b"\n")
    if ctx.attempt == 1:
        time.sleep(HELD_SECONDS)
    return ctx.attempt
