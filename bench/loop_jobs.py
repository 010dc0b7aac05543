"""The application of loop.py: one type that does nothing. Workers import it as a user's module; run loop.py instead."""

from __future__ import annotations

from benteng.app import Benteng

app = Benteng()


@app.job("nothing@1")
def nothing(number: int) -> None:
    """Do nothing."""
