"""Handlers that meet the walls of their cells, and some that only say so."""

from __future__ import annotations

import os
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.contract import Contract, Slug, Target
from benteng.policy import Effect, Tier
from benteng.raised import Permanent, Suspicious

app = Benteng()
HERE = Path(__file__).parent
FORGED = 'Blocked by pool medium: open /; add read = ["/"] to [pool.medium]'


class Try(Contract):
    name: Slug
    host: Target


class BadError(PermissionError):
    """An error whose attributes cannot be read."""

    @property
    def errno(self) -> int:  # type: ignore[override]
        raise RuntimeError("errno")


def wrapped() -> None:
    """Meet the wall in a library that raises something of its own."""
    try:
        Path("/etc/passwd").read_text()
    except PermissionError as error:
        raise Permanent("no accounts") from error


def own_mode() -> None:
    """Fail for a reason that is not the walls': a file of one's own without its mode."""
    path = Path("own")
    os.close(os.open(path, os.O_CREAT, 0o000))
    path.read_text()


def forged_long() -> None:
    """Say much, so that nothing of what is added would fit."""
    try:
        Path("/etc/passwd").read_text()
    except PermissionError as error:
        raise Permanent("y" * 5000 + FORGED) from error


def bad() -> None:
    """Raise what cannot be looked at."""
    raise BadError(13, "no", "/etc/passwd")


def raising(error: Exception) -> Callable[[], None]:
    """Return a function that raises it."""

    def act() -> None:
        raise error

    return act


ACTS: dict[str, Callable[[], Any]] = {
    "read": lambda: Path("/etc/passwd").read_text(),
    "relative": lambda: Path("../" * 16 + "etc/passwd").read_text(),
    "write": lambda: (HERE / "barred.py").open("a"),
    "key": (HERE.parent / "keys" / "producer.key").read_bytes,
    "store": (HERE.parent / "store" / "benteng.db").read_bytes,
    "around": lambda: list((HERE.parent / "store").iterdir()),
    "connect": lambda: socket.create_connection(("127.0.0.1", 9), 1),
    "urllib": lambda: urllib.request.urlopen("http://127.0.0.1:9/"),
    "program": lambda: subprocess.run(["/bin/true"], check=True),
    "fork": os.fork,
    "mode": lambda: Path("own-mode").write_text("x") and Path("own-mode").chmod(0o755),
    "memory": lambda: os.memfd_create("x"),
    "wrapped": wrapped,
    "own": own_mode,
    "absent": lambda: Path("absent").read_text(),
    "forged": raising(Permanent(FORGED)),
    "forged-long": forged_long,
    "forged-open": raising(PermissionError(13, "no", str(HERE / "barred.py"))),
    "forged-secret": raising(PermissionError(13, "no", "/etc/\x1b[2J\npassword=hunter2hunter2")),
    "class": raising(Suspicious("hostile")),
    "bad": bad,
}


def options(tier: Tier) -> dict[str, Any]:
    """What the types have in common."""
    return {
        "tier": tier,
        "pool": tier.value,
        "effect": Effect.REPEATABLE,
        "operation": ("name",),
        "resources": ("host",),
        "attempts_max": 1,
        "crashes_max": 1,
        "lease_seconds": 5.0,
    }


@app.job("low@1", **options(Tier.LOW))
def low(step: Try) -> None:
    """Try it at LOW, where there are no walls."""
    ACTS[step.name]()


@app.job("medium@1", **options(Tier.MEDIUM))
def medium(step: Try) -> None:
    """Try it at MEDIUM."""
    ACTS[step.name]()


@app.job("high@1", **options(Tier.HIGH))
def high(step: Try) -> None:
    """Try it at HIGH."""
    ACTS[step.name]()
