"""Job types that try to get out of their cells, in pools without and with LOW types. Copied beside keys and an .env."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.contract import Contract, Slug, Target
from benteng.policy import Effect, Tier

app = Benteng()
HERE = Path(__file__).parent
QUICK: dict[str, Any] = {
    "lease_seconds": 2.0,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.2,
}


class Try(Contract):
    name: Slug
    host: Target


def _read(path: Path) -> None:
    path.read_bytes()


def _scratch_root() -> Path:
    home = Path(os.environ["HOME"])
    return next(path for path in (home, *home.parents) if path.name.startswith("benteng-"))


def _connect() -> None:
    socket.create_connection(("127.0.0.1", 9), 1)


ATTEMPTS = {
    "store": lambda: _read(HERE.parent / "store" / "benteng.db"),
    "key": lambda: _read(HERE / ".benteng" / "producer.key"),
    "env": lambda: _read(HERE / ".env"),
    "passwd": lambda: _read(Path("/etc/passwd")),
    "app": lambda: _read(HERE / "walls.py"),
    "template": lambda: _read(HERE / "templates" / "mail.txt"),
    "app-write": lambda: (HERE / "walls.py").open("a").close(),
    "scratch": lambda: Path("own").write_text("x"),
    "outside": lambda: (HERE.parent / "outside").write_text("x"),
    "siblings": lambda: list(_scratch_root().iterdir()),
    "network": _connect,
    "thread": lambda: __import__("threading").Thread(target=int).start(),
    "child": lambda: subprocess.run(["/bin/true"], check=True),
}
"""What is tried, by the import and by handlers."""


def attempts() -> dict[str, str]:
    """Return how each ended: `did`, or the name of the exception."""
    ended = {}
    for name, attempt in ATTEMPTS.items():
        try:
            attempt()
            ended[name] = "did"
        except (OSError, subprocess.SubprocessError) as error:
            ended[name] = type(error).__name__
    return ended


AT_IMPORT = attempts() if "benteng-" in os.environ.get("HOME", "") else {}


def report() -> dict[str, object]:
    """Return what was tried, now and at import, and who this is."""
    return {"now": attempts(), "import": AT_IMPORT, "uid": os.getuid(), "pid": os.getpid()}


@app.job("mixed.low@1", pool="mixed", **QUICK)
def mixed_low(name: str) -> None:
    """Make a pool mixed."""


@app.job(
    "mixed@1", pool="mixed", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **QUICK
)
def mixed(step: Try) -> dict[str, object]:
    """Try everything."""
    return report()


@app.job(
    "serial@1", pool="medium", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **QUICK
)
def serial(step: Try) -> dict[str, object]:
    """Try everything."""
    return report()


@app.job(
    "violate.medium@1", pool="medium", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None
)
def violate_medium(step: Try) -> str:
    """Do what at HIGH would end the cell."""
    try:
        os.execv("/bin/true", ["true"])  # noqa: S606 - must be refused
    except PermissionError:
        return "refused"


@app.job(
    "fill@1",
    pool="medium",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    file_bytes_max=1 << 20,
    attempts_max=1,
    crashes_max=1,
    **QUICK,
)
def fill(step: Try) -> None:
    """Fill the scratch with files, by name `open` with files that have no name any more, until ended."""
    kept = []
    for number in range(1000):
        path = Path(f"file-{number % 100}")
        handle = path.open("wb", 0)
        handle.write(bytes(1 << 20))
        if step.name == "open":
            path.unlink()
            kept.append(handle)
        __import__("time").sleep(0.02)


@app.job("single@1", pool="high", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("name",), resources=("host",))
def single(step: Try) -> dict[str, object]:
    """Try everything."""
    return report()


@app.job("violate@1", pool="high", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("name",), resources=("host",))
def violate(step: Try) -> None:
    """Do what no job does by accident."""
    os.execv(sys.executable, [sys.executable, "-c", ""])  # noqa: S606 - must be refused
