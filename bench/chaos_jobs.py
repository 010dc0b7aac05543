"""The application of the chaos run: each attempt journals itself outside the store, and some kill their own cell.

Workers import it as a user's module; `chaos.py` copies it next to the run's configuration. Run chaos.py instead.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import msgspec

from benteng.app import Benteng
from benteng.context import Context
from benteng.contract import Contract, Kind, TargetId
from benteng.ops.demo.world import append_durably
from benteng.policy import Effect, Tier

POOL = "chaos"
LEASE_SECONDS = 2.0
LONG_SECONDS = 3 * LEASE_SECONDS
"""Longer than a lease: on a frozen worker such work outlives its lease, unless somebody ends it."""
LONG_TICKS = 40
"""Lines that long work writes on the way, so that an overlap shows at once."""

app = Benteng()


class Work(Contract):
    """One piece of work on a shared resource.

    dies   0 to 99: when below the run's percentage, the first try is killed
    long   works for LONG_SECONDS
    """

    resource: Annotated[TargetId, Kind("host")]
    number: int
    dies: int
    long: bool


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One line of the journal: which work, on what, under which fence, what, and when (CLOCK_MONOTONIC, ns)."""

    number: int
    resource: str
    fence: int
    attempt: int
    what: str
    at: int
    pid: int


@app.job(
    "chaos.work@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    pool=POOL,
    operation=("number",),
    resources=("resource",),
    lease_seconds=LEASE_SECONDS,
    attempts_max=25,
    crashes_max=10,
    backoff_seconds_min=0.05,
    backoff_seconds_base=0.05,
    backoff_seconds_max=0.5,
)
def work(payload: Work, ctx: Context) -> int:
    """Begin, be in the middle of it, and end; each is durable before the next happens."""
    _journal(payload, ctx, "begin")
    for _ in range(LONG_TICKS if payload.long else 0):
        time.sleep(LONG_SECONDS / LONG_TICKS)
        _journal(payload, ctx, "tick")
    time.sleep(float(os.environ["CHAOS_WORK_SECONDS"]))
    _journal(payload, ctx, "middle")
    if ctx.attempt == 1 and payload.dies < int(os.environ["CHAOS_DIES_PERCENT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    _journal(payload, ctx, "end")
    return ctx.fence


def _journal(payload: Work, ctx: Context, what: str) -> None:
    stamp = time.monotonic_ns()
    line = Line(payload.number, payload.resource, ctx.fence, ctx.attempt, what, stamp, os.getpid())
    append_durably(Path(os.environ["CHAOS_JOURNAL"]), msgspec.json.encode(line) + b"\n")
