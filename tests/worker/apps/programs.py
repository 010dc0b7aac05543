"""Job types of a pool with a list of programs: what it opens, and what stays shut."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.contract import Contract, Slug, Target
from benteng.policy import Effect, Tier

app = Benteng()
LOADER = "/lib64/ld-linux-x86-64.so.2"
QUICK: dict[str, Any] = {
    "lease_seconds": 2.0,
    "attempts_max": 1,
    "crashes_max": 1,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.2,
}
MEDIUM: dict[str, Any] = {
    "pool": "programs",
    "tier": Tier.MEDIUM,
    "effect": Effect.REPEATABLE,
    "operation": ("name",),
    "resources": None,
} | QUICK
HIGH: dict[str, Any] = MEDIUM | {"tier": Tier.HIGH, "resources": ("host",)}


class Step(Contract):
    name: Slug
    host: Target


def _run(*command: str) -> str:
    """Return what a command wrote, or how it was refused."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except OSError as error:
        return type(error).__name__
    return done.stdout.strip() if done.returncode == 0 else f"status {done.returncode}"


COMMANDS = {
    "listed": ("/usr/bin/env", "-i", "MARK=listed"),
    "unlisted": ("/bin/echo", "x"),
    "by-listed": ("/usr/bin/env", "echo", "x"),
    "by-loader": (LOADER, "/bin/echo", "x"),
    "listed-by-loader": (LOADER, "/usr/bin/env", "-i", "MARK=loader"),
    "of-app": (str(Path(__file__).with_name("helper")), "x"),
    "of-app-by-loader": (LOADER, str(Path(__file__).with_name("helper")), "x"),
}


def report() -> dict[str, str]:
    """Return what each command came to."""
    found = {name: _run(*command) for name, command in COMMANDS.items()}
    places = {
        "scratch": Path.cwd() / "copy",
        "written": Path(os.environ["EFFECTS"]).parent / "outbox" / f"{os.getpid()}",
    }
    return found | {f"of-{name}-by-loader": _run_copy(place) for name, place in places.items()}


def _run_copy(place: Path) -> str:
    """Have the loader run what this job wrote: the bytes of a program that it may read."""
    place.write_bytes(Path("/usr/bin/env").read_bytes())
    return _run(LOADER, str(place), "-i", "MARK=copy")


@app.job("run.medium@1", **MEDIUM)
def run_medium(step: Step) -> dict[str, str]:
    """Run every command."""
    return report()


@app.job("run.high@1", **HIGH)
def run_high(step: Step) -> dict[str, str]:
    """Run every command."""
    return report()


@app.job("run.here@1", **HIGH)
def run_here(step: Step) -> None:
    """Become a program that is not listed: refused, and no violation, since programs may be started here."""
    os.execv("/bin/echo", ["echo", "x"])  # noqa: S606 - must be refused


@app.job("libraries@1", **MEDIUM)
def libraries(step: Step) -> dict[str, object]:
    """Use what loads libraries late."""
    import ctypes.util
    import hashlib
    import sqlite3
    import ssl
    import zoneinfo

    return {
        "ssl": bool(ssl.create_default_context().protocol),
        "sqlite": sqlite3.connect(":memory:").execute("select 1").fetchone()[0],
        "sha3": hashlib.sha3_256(b"").hexdigest()[:4],
        "zone": str(zoneinfo.ZoneInfo("Asia/Jakarta")),
        "idna": "bücher.example".encode("idna").decode(),
        "ctypes": ctypes.CDLL(None).getpid() == os.getpid(),
        "pair": [each.close() for each in socket.socketpair()] == [None, None],
    }


def _daemon() -> None:
    """Leave this process, its session and its group, and hold the pipe open for ever."""
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            os.open(os.environ["EFFECTS"] + "-lasting", os.O_WRONLY)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.write(done, b"x")
            while True:
                signal.pause()
        os._exit(0)
    os.waitpid(pid, 0)
    os.read(ready, 1)


@app.job("daemon.high@1", **HIGH)
def daemon_high(step: Step) -> str:
    """Leave a daemon behind, and end as one should."""
    _daemon()
    return "left"


@app.job("daemon.medium@1", **MEDIUM)
def daemon_medium(step: Step) -> str:
    """Leave a daemon behind, and end as one should."""
    _daemon()
    return "left"


@app.job("pid@1", **MEDIUM)
def pid(step: Step) -> int:
    """Start and end a program, and say which cell this is."""
    _run("/usr/bin/env", "-i")
    return os.getpid()


@app.job("bomb@1", **HIGH)
def bomb(step: Step) -> int:
    """Make processes until no more can be made, and say how many were."""
    made = 0
    try:
        while made < 5_000:
            if os.fork() == 0:
                while True:
                    signal.pause()
            made += 1
    except OSError:
        return made
    return made
