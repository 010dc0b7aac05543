"""An app whose module code makes the zygote hand out its parent instead of a cell."""

from __future__ import annotations

import os

from benteng.app import Benteng

app = Benteng()
real, parent = os.pidfd_open, os.getppid()
os.pidfd_open = lambda pid, flags=0: real(parent, flags)


@app.job
def greet(name: str) -> str:
    """Say hello."""
    return f"Halo, {name}"
