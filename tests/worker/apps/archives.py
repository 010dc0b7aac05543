"""Job types that unpack an artifact, and one whose artifact is exchanged while it works with its copy."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.context import Context
from benteng.contract import Artifact, Contract, Slug, Target
from benteng.policy import Effect, Tier

app = Benteng()


class Use(Contract):
    name: Slug
    host: Target
    artifact: Artifact


def options(tier: Tier) -> dict[str, Any]:
    """What the types have in common."""
    return {
        "tier": tier,
        "pool": f"unpack-{tier}",
        "effect": Effect.REPEATABLE,
        "operation": ("name",),
        "resources": ("host",),
        "file_bytes_max": 1 << 20,
        "attempts_max": 2,
        "crashes_max": 1,
        "lease_seconds": 5.0,
    }


def tree(ctx: Context, step: Use) -> dict[str, Any]:
    """Unpack, and return what came out: modes and sizes by path."""
    root = ctx.extract(ctx.artifact(step.artifact))
    found = {str(path.relative_to(root)): path.lstat() for path in root.rglob("*")}
    return {"inside": root.is_relative_to(ctx.scratch)} | {
        name: [oct(stat.S_IMODE(info.st_mode)), info.st_size]
        for name, info in found.items()
        if stat.S_ISREG(info.st_mode)
    }


@app.job("low@1", **options(Tier.LOW))
def low(step: Use, ctx: Context) -> dict[str, Any]:
    """Unpack at LOW."""
    return tree(ctx, step)


@app.job("medium@1", **options(Tier.MEDIUM))
def medium(step: Use, ctx: Context) -> dict[str, Any]:
    """Unpack at MEDIUM."""
    return tree(ctx, step)


@app.job("high@1", **options(Tier.HIGH))
def high(step: Use, ctx: Context) -> dict[str, Any]:
    """Unpack at HIGH."""
    return tree(ctx, step)


@app.job("hold@1", **options(Tier.MEDIUM))
def hold(step: Use, ctx: Context) -> dict[str, Any]:
    """Take a copy, wait until the test has exchanged the artifact, and read the copy."""
    path = ctx.artifact(step.artifact)
    mode = oct(stat.S_IMODE(path.stat().st_mode))
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"copied pid={os.getpid()}\n")
    os.close(os.open(Path(os.environ["EFFECTS"]).parent / "go", os.O_RDONLY))
    read, again = path.read_text(), ""
    try:
        ctx.artifact(step.artifact)
    except Exception as error:  # noqa: BLE001 - its name is what the test wants
        again = type(error).__name__
    return {"mode": mode, "read": read, "again": again, "kept": path.exists() and path.read_text() == read}
