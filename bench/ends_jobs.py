"""The application of ends.py: a HIGH job that ignores every request to end. Run ends.py instead."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from benteng.app import Benteng
from benteng.contract import Contract, Target
from benteng.policy import Effect, Tier

POOL = "ends"
RUN_SECONDS, GRACE_SECONDS = 0.5, 0.5

app = Benteng()


class Piece(Contract):
    """One piece of work."""

    number: int
    host: Target


@app.job(
    "ends.stubborn@1",
    tier=Tier.HIGH,
    effect=Effect.REPEATABLE,
    pool=POOL,
    operation=("number",),
    resources=("host",),
    attempts_max=1,
    crashes_max=1,
    run_seconds_max=RUN_SECONDS,
    grace_seconds=GRACE_SECONDS,
)
def stubborn(payload: Piece) -> None:
    """Say when it began, and go on for ever."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Path(os.environ["ENDS_JOURNAL"]).open("a", encoding="ascii") as journal:
        journal.write(f"{payload.number} {time.monotonic()}\n")
    while True:
        time.sleep(60)
