"""An app that starts a thread when it is imported."""

from __future__ import annotations

import threading

from benteng.app import Benteng

app = Benteng()
threading.Thread(target=threading.Event().wait, name="telemetry", daemon=True).start()


@app.job
def greet(name: str) -> str:
    """Say hello."""
    return f"Halo, {name}"
