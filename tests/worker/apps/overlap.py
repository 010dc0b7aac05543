"""Job types of a worker whose ledger works while it does: it is slow, or never at rest."""

from __future__ import annotations

import os
from pathlib import Path

from benteng.app import Benteng

app = Benteng()


def effect(text: str) -> None:
    """Tell the test one line, and by which process."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"{text} pid={os.getpid()}\n")


def hold_on(text: str) -> None:
    """Tell the test, and wait until it lets go."""
    effect(text)
    os.close(os.open(Path(os.environ["EFFECTS"]).parent / "go", os.O_RDONLY))


@app.job("hold@1", lease_seconds=60.0)
def hold(name: str) -> None:
    """Run until the test lets go."""
    hold_on(f"hold {name}")


@app.job("keep@1", lease_seconds=6.0)
def keep(name: str) -> None:
    """Run until the test lets go, under a short lease."""
    hold_on(f"keep {name}")


@app.job("tick@1")
def tick(number: int) -> None:
    """Be done."""
