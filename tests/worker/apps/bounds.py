"""Job types that take too much, of each tier, in pools of their own. Copied beside greed.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.contract import Contract, Slug, Target
from benteng.policy import Effect, Tier

app = Benteng()
QUICK: dict[str, Any] = {
    "lease_seconds": 30.0,
    "attempts_max": 1,
    "crashes_max": 1,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.2,
}
SHORT: dict[str, Any] = QUICK | {"run_seconds_max": 0.2, "grace_seconds": 0.1}
SMALL: dict[str, Any] = QUICK | {"file_bytes_max": 1 << 20}
MEDIUM: dict[str, Any] = {
    "tier": Tier.MEDIUM,
    "effect": Effect.REPEATABLE,
    "operation": ("name",),
    "resources": None,
}
HIGH: dict[str, Any] = MEDIUM | {"tier": Tier.HIGH, "resources": ("host",)}


class Take(Contract):
    name: Slug
    host: Target


def effect(text: str) -> None:
    """Tell the test that it begins."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"{text} pid={os.getpid()}\n")


def take(pool: str, way: str) -> None:
    """Take too much, in that way, until ended."""
    import greed

    effect(f"{pool} takes {way}")
    greed.WAYS[way](greed.FILE_PAUSE_SECONDS)


@app.job("low.burn@1", pool="low", **SHORT)
def low_burn(name: str) -> None:
    """Take processors."""
    take("low", name)


@app.job("medium.burn@1", pool="medium", **MEDIUM, **SHORT)
def medium_burn(step: Take) -> None:
    """Take processors."""
    take("medium", step.name)


@app.job("high.burn@1", pool="high", **HIGH, **SHORT)
def high_burn(step: Take) -> None:
    """Take processors."""
    take("high", step.name)


@app.job("medium.fill@1", pool="medium", **MEDIUM, **SMALL)
def medium_fill(step: Take) -> None:
    """Take disk."""
    take("medium", step.name)


@app.job("high.fill@1", pool="high", **HIGH, **SMALL)
def high_fill(step: Take) -> None:
    """Take disk."""
    take("high", step.name)


@app.job("programs.fork@1", pool="programs", **HIGH, **QUICK)
def programs_fork(step: Take) -> None:
    """Take processes, where it may make them."""
    take("programs", step.name)
