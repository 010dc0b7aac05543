"""A job type of a worker whose ledger is slow: its lease is long, so the worker is patient."""

from __future__ import annotations

import os
from pathlib import Path

from benteng.app import Benteng

app = Benteng()


def effect(text: str) -> None:
    """Tell the test one line, and by which process."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"{text} pid={os.getpid()}\n")


@app.job("hold@1", lease_seconds=60.0)
def hold(name: str) -> None:
    """Run until the test lets go."""
    effect(f"hold {name}")
    os.close(os.open(Path(os.environ["EFFECTS"]).parent / "go", os.O_RDONLY))
