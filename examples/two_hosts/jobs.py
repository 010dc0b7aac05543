"""One job type that must not run on two hosts at once: each attempt writes down when it began, worked and ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benteng import Benteng, Context, Contract, Effect, Target, Tier

app = Benteng()
LEASE_SECONDS = 3.0


class Patch(Contract):
    """What to patch, and for how many tenths of a second that takes."""

    host: Target
    tenths: int


@app.job(
    "patch@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    pool="patch",
    operation=("host",),
    resources=("host",),
    lease_seconds=LEASE_SECONDS,
    backoff_seconds_min=0.05,
    backoff_seconds_base=0.05,
)
def patch(payload: Patch, ctx: Context) -> int:
    """Work for a while, and say so all the time."""
    _note("begin", payload, ctx)
    for _ in range(payload.tenths):
        time.sleep(0.1)
        _note("work", payload, ctx)
    _note("end", payload, ctx)
    return ctx.fence


def _note(what: str, payload: Patch, ctx: Context) -> None:
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
    with Path(os.environ["JOURNAL"]).open("a") as journal:
        journal.write(f"{seconds:.3f} {what} {payload.host} {ctx.fence} {os.getpid()}\n")
