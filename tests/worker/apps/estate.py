"""Job types for the tests of processes that have users, or containers, of their own."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from benteng import Benteng, Contract, Effect, Slug, Target, Tier

app = Benteng()
QUICK: dict[str, Any] = {
    "lease_seconds": 3.0,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.2,
}
STRICT: dict[str, Any] = QUICK | {"effect": Effect.REPEATABLE, "operation": ("name",)}


class Step(Contract):
    name: Slug
    host: Target


def effect(text: str) -> None:
    """Tell the test one line: what was done, by which process."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"{text} pid={os.getpid()}\n")


def wait_for_go() -> None:
    """Block until the test opens the pipe for writing."""
    os.close(os.open(Path(os.environ["EFFECTS"]).parent / "go", os.O_RDONLY))


@app.job("low.peek@1", pool="low", **QUICK)
def low_peek(name: str) -> str:
    """Wait where a test can look at this process."""
    effect(f"low.peek {name}")
    wait_for_go()
    return name


@app.job("high.peek@1", pool="high", tier=Tier.HIGH, resources=("host",), **STRICT)
def high_peek(step: Step) -> str:
    """Wait where a test can look at this process."""
    effect(f"high.peek {step.name}")
    wait_for_go()
    return step.name


@app.job("high.brief@1", pool="high", tier=Tier.HIGH, resources=("host",), run_seconds_max=2.0, **STRICT)
def high_brief(step: Step) -> str:
    """Wait, not for long, and do what must not be done twice."""
    effect(f"high.brief {step.name}")
    wait_for_go()
    effect(f"done {step.name}")
    return step.name


@app.job("high.run@1", pool="high", tier=Tier.HIGH, resources=("host",), **STRICT)
def high_run(step: Step) -> str:
    """Leave a file in the scratch directory, and end."""
    Path(step.name).write_bytes(b"x" * 4096)
    effect(f"high.run {step.name}")
    return str(Path.cwd())


@app.job("serial@1", pool="high", tier=Tier.MEDIUM, resources=None, **STRICT)
def serial(step: Step) -> int:
    """Say which process this is: cells are used again."""
    return os.getpid()


@app.job("call@1", pool="high", tier=Tier.MEDIUM, resources=None, **STRICT)
def call(step: Step) -> str:
    """Connect to the port that the name ends with."""
    with socket.create_connection(("localhost", int(step.name.partition("-")[2])), 10) as sock:
        return sock.recv(100).decode()


@app.job(
    "fill@1",
    pool="high",
    tier=Tier.MEDIUM,
    resources=None,
    attempts_max=1,
    crashes_max=1,
    file_bytes_max=1 << 16,
    **STRICT,
)
def fill(step: Step) -> None:
    """Fill the scratch directory with many small files, and stay."""
    for number in range(64):
        Path(str(number)).write_bytes(b"x" * (1 << 16))
    effect(f"fill {step.name}")
    wait_for_go()
