"""Job types for tests of the ledger with real workers: LOW, so that a handler may tell what it does by a pipe."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.context import Context
from benteng.contract import Contract, Slug, Target

app = Benteng()
QUICK: dict[str, Any] = {
    "lease_seconds": 1.0,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.2,
    "attempts_max": 25,
    "crashes_max": 10,
}
LONG: dict[str, Any] = QUICK | {"lease_seconds": 9.0}


class Step(Contract):
    name: Slug


class Place(Contract):
    name: Slug
    host: Target


def effect(text: str) -> None:
    """Tell the test one line: what, by which process, at which second since boot."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"{text} pid={os.getpid()} at={time.clock_gettime(time.CLOCK_BOOTTIME):.3f}\n")


def wait_for_go() -> None:
    """Block until the test opens that pipe for writing."""
    os.close(os.open(Path(os.environ["EFFECTS"]).parent / "go", os.O_RDONLY))


@app.job("step@1", **QUICK)
def step(payload: Step, ctx: Context) -> int:
    """Be done at once."""
    effect(f"step {payload.name} {ctx.fence}")
    return ctx.fence


@app.job("block@1", resources=("host",), **QUICK)
def block(payload: Place, ctx: Context) -> int:
    """Hold a host until the test lets go."""
    effect(f"block {payload.name} {ctx.fence}")
    wait_for_go()
    effect(f"done {payload.name} {ctx.fence}")
    return ctx.fence


@app.job("patient@1", resources=("host",), **LONG)
def patient(payload: Place, ctx: Context) -> int:
    """The same, under a longer lease."""
    effect(f"patient {payload.name} {ctx.fence}")
    wait_for_go()
    effect(f"done {payload.name} {ctx.fence}")
    return ctx.fence
