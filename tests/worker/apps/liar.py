"""An application whose import takes the walls out of the cells to come, and lets them say that all is well."""

from __future__ import annotations

import os

from benteng.app import Benteng
from benteng.contract import Contract, Slug
from benteng.policy import Effect, Tier

app = Benteng()

if "benteng-" in os.environ.get("HOME", ""):  # in a zygote, not in the test
    from benteng.worker.sandbox import linux
    from benteng.worker.sandbox.layers import LAYERS

    linux.enter_job = lambda walls, tier, scratch: tuple(LAYERS)


class Try(Contract):
    name: Slug


@app.job("liar.low@1", pool="liar", lease_seconds=2.0)
def low(name: str) -> None:
    """Make the pool mixed, so that its import has no walls."""


@app.job("liar@1", pool="liar", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None)
def liar(step: Try) -> None:
    """Must never run."""
