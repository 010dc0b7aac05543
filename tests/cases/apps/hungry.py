"""Job types for the cases that need processes: one that eats memory, one that must not leak descriptors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.contract import Contract, Slug
from benteng.policy import Effect, Tier

app = Benteng()
QUICK: dict[str, Any] = {
    "lease_seconds": 5.0,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.1,
}
SMALL: dict[str, Any] = {"memory_bytes_max": 256 << 20, "attempts_max": 2, "crashes_max": 2}
CHUNK = 16 << 20


class Step(Contract):
    name: Slug


@app.job(
    "glutton@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **(QUICK | SMALL)
)
def glutton(step: Step) -> int:
    """Take four times the memory that the type may have. Pages are not touched: only the limit stops it."""
    return len([bytearray(CHUNK) for _ in range(64)])


@app.job("modest@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **QUICK)
def modest(step: Step) -> str:
    """Do something small."""
    return step.name


@app.job("count@1", **QUICK)
async def count(name: str) -> list[int]:
    """Tell the process and how many descriptors it has open."""
    return [os.getpid(), descriptors()]


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
