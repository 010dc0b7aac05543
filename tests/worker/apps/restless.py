"""Job types of a worker whose ledger is never at rest."""

from __future__ import annotations

import os
from pathlib import Path

from benteng.app import Benteng

app = Benteng()


@app.job("keep@1", lease_seconds=6.0)
def keep(name: str) -> None:
    """Run until the test lets go, under a lease that ends before."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"keep {name}\n")
    os.close(os.open(Path(os.environ["EFFECTS"]).parent / "go", os.O_RDONLY))


@app.job("tick@1")
def tick(number: int) -> None:
    """Be done."""
