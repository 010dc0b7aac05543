"""Job types for the worker's tests. What a handler did is written to the effects file, outside scratch and store."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benteng.app import Benteng
from benteng.context import Context
from benteng.contract import Artifact, Contract, Slug, Target
from benteng.policy import Effect, Tier
from benteng.raised import Permanent, Retry, Snooze, Suspicious
from benteng.verdict import ADMIT, Refuse, Verdict

app = Benteng()
QUICK: dict[str, Any] = {
    "lease_seconds": 1.0,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.2,
}
LONG: dict[str, Any] = QUICK | {"lease_seconds": 30.0}
SHORT: dict[str, Any] = QUICK | {"run_seconds_max": 0.5, "grace_seconds": 0.3}


def effect(text: str) -> None:
    """Tell the test one line: what was done, by which process, at which second since boot."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"{text} pid={os.getpid()} at={time.clock_gettime(time.CLOCK_BOOTTIME):.3f}\n")


def wait_for(name: str) -> None:
    """Block until the test opens that pipe for writing: how it lets handlers go on."""
    os.close(os.open(Path(os.environ["EFFECTS"]).parent / name, os.O_RDONLY))


class Step(Contract):
    name: Slug


class Host(Contract):
    name: Slug
    host: Target


@app.job("greet@1", **QUICK)
def greet(name: str) -> str:
    """Say hello."""
    effect(f"greet {name}")
    return f"Halo, {name}"


@app.job("agreet@1", **QUICK)
async def agreet(name: str) -> str:
    """Say hello on the loop."""
    await asyncio.sleep(0)
    effect(f"agreet {name}")
    return f"Halo, {name}"


@app.job("once.low@1", crashes_max=3, **QUICK)
def wide_block(step: Step) -> None:
    """Wait in a thread of the wide cell."""
    effect(f"block {step.name}")
    wait_for("go")


@app.job("wide.kill@1", crashes_max=2, **QUICK)
def wide_kill(step: Step) -> None:
    """Kill the wide cell."""
    effect(f"kill {step.name}")
    if step.name == "later":
        wait_for("go")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job("medium@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **QUICK)
def medium(step: Step, ctx: Context) -> dict[str, object]:
    """Tell where it runs and what it found there, and leave something."""
    effect(f"medium {step.name} {ctx.fence} {ctx.attempt}")
    home, found = os.environ["HOME"], [path.name for path in Path.cwd().iterdir()]
    Path("left").touch()
    return {"pid": os.getpid(), "cwd": str(Path.cwd()), "home": home, "found": found, "fence": ctx.fence}


@app.job("medium.block@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **QUICK)
def medium_block(step: Step, ctx: Context) -> str:
    """Wait in a serial cell."""
    effect(f"block {step.name} {ctx.fence}")
    wait_for("go")
    effect(f"done {step.name} {ctx.fence}")
    return "done"


def in_line(step: Step) -> int:
    """Do what the name says, among others that come one after the other; return the process."""
    effect(f"line {step.name}")
    match step.name.rstrip("0123456789"):
        case "wait":
            wait_for("go")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("no")
        case "child":
            if os.fork() == 0:
                time.sleep(600)
        case "thread":
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


LINE: dict[str, Any] = {"tier": Tier.MEDIUM, "operation": ("name",), "resources": None, **LONG}


@app.job("line@1", effect=Effect.REPEATABLE, crashes_max=1, attempts_max=1, **LINE)
def line(step: Step) -> int:
    """One of several, harmless when it runs again."""
    return in_line(step)


@app.job("line.once@1", effect=Effect.ONCE, **LINE)
def line_once(step: Step) -> int:
    """One of several, with an effect that must not be doubled."""
    return in_line(step)


@app.job("high@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("name",), resources=("host",), **QUICK)
def high(step: Host, ctx: Context) -> dict[str, object]:
    """Tell where it runs."""
    effect(f"high {step.name} {ctx.fence} {ctx.attempt}")
    return {"pid": os.getpid()}


@app.job(
    "poison@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, crashes_max=2, **QUICK
)
def poison(step: Step) -> None:
    """Kill its own process."""
    effect(f"poison {step.name}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job("once@1", tier=Tier.MEDIUM, effect=Effect.ONCE, operation=("name",), resources=None, **QUICK)
def once(step: Step) -> None:
    """Kill its own process, with an effect that must not be doubled."""
    effect(f"once {step.name}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(
    "stubborn@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    attempts_max=1,
    crashes_max=1,
    **SHORT,
)
def stubborn(step: Step) -> None:
    """Ignore being asked to stop."""
    effect(f"stubborn {step.name}")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    while True:
        time.sleep(1)


@app.job(
    "polite@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    attempts_max=1,
    crashes_max=1,
    **SHORT,
)
def polite(step: Step) -> None:
    """Clean up when asked to stop."""
    try:
        time.sleep(60)
    finally:
        effect(f"cleaned {step.name}")


@app.job("daemon@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("name",), resources=("host",), **QUICK)
def daemon(step: Host) -> None:
    """Leave two processes behind: one that left its group, one that also lost its parent."""
    script = "import os,sys,time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    effect(f"daemon {child.stdout.readline().strip()}")
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    effect(f"daemon {os.read(reader, 20).decode()}")


@app.job("leak@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **QUICK)
def leak(step: Step) -> int:
    """Leave a child process in a cell that is meant to be used again."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    effect(f"leak {child.pid}")
    return os.getpid()


@app.job("gil@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **QUICK)
def gil(step: Step) -> str:
    """Hold the interpreter lock for four leases."""
    effect(f"gil {step.name}")
    ctypes.PyDLL(None).usleep(4_000_000)
    effect(f"gil-end {step.name}")
    return "held"


@app.job("ablock@1", **QUICK)
async def ablock(name: str) -> str:
    """Block the event loop for four leases."""
    effect(f"ablock {name}")
    time.sleep(4)  # noqa: ASYNC251 - to block the loop is what it is for
    return "blocked"


@app.job("ahang@1", attempts_max=1, crashes_max=1, **SHORT)
async def ahang(name: str) -> None:
    """Wait for ever, but cancellably."""
    try:
        await asyncio.sleep(600)
    finally:
        effect(f"cancelled {name}")


@app.job("hang@1", attempts_max=1, crashes_max=1, **SHORT)
def hang(name: str) -> None:
    """Wait for ever in a thread of a wide cell."""
    effect(f"hang {name}")
    time.sleep(600)


@app.job(
    "says@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    attempts_max=2,
    crashes_max=2,
    snoozes_max=1,
    **QUICK,
)
def says(step: Step, ctx: Context) -> object:
    """End in the way that the payload names."""
    effect(f"says {step.name} {ctx.attempt}")
    match step.name:
        case "retry":
            raise Retry("later please", after=0.05)
        case "permanent":
            raise Permanent("never")
        case "suspicious":
            raise Suspicious("hm")
        case "snooze":
            raise Snooze(0.05, "not yet")
        case "exit":
            sys.exit(3)
        case "nan":
            return {"x": float("nan")}
        case "large":
            return "x" * 100_000
        case "object":
            return object()
        case "secret":
            print("password=hunter2hunter2")
            raise ValueError("api_key=sk_live_1234567890")
    return None


@app.job(
    "quarrel@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    attempts_max=2,
    crashes_max=2,
    handbacks_max=1,
    **QUICK,
)
def quarrel(step: Step) -> None:
    """Be refused before this."""
    effect(f"quarrel {step.name}")


@app.check(quarrel)
def quarrelsome(step: Step) -> Verdict:
    """Agree at the gate, refuse in the cell."""
    in_cell = "EFFECTS" in os.environ and os.environ.get("HOME", "").find("benteng-") >= 0
    if step.name == "crash" and in_cell:
        os._exit(9)
    return Refuse("T-no", "not in a cell") if in_cell else ADMIT


@app.job(
    "parent@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    successors=("greet@1",),
    **QUICK,
)
def parent(step: Step, ctx: Context) -> None:
    """Add a successor."""
    ctx.progress("half way")
    if step.name == "unlisted":
        ctx.then("agreet@1", {"name": "x"})
    ctx.then("greet@1", {"name": "successor"})


class Patch(Contract):
    artifact: Artifact
    host: Target


@app.job("patch@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("host",), resources=("host",), **QUICK)
def patch(step: Patch, ctx: Context) -> str:
    """Read an artifact."""
    path = ctx.artifact(step.artifact)
    effect(f"patch {path.stat().st_mode & 0o777:o}")
    return path.read_text()


@app.job("links@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("name",), resources=("host",), **QUICK)
def links(step: Host, ctx: Context) -> None:
    """Leave hostile links and a deep tree in the scratch directory."""
    victim = Path(os.environ["EFFECTS"]).parent / "victim"
    (ctx.scratch / "link").symlink_to(victim)
    deep = ctx.scratch
    for _ in range(200):
        deep = deep / "d"
        deep.mkdir()
    (ctx.scratch / "locked").mkdir(mode=0o000)
    with contextlib.suppress(OSError):
        ctx.scratch.rename(ctx.scratch.parent / "renamed")
    effect("links")


@app.job("notes@1", **QUICK)
def notes(name: str, ctx: Context) -> str:
    """Leave a file in the attempt's own directory."""
    (ctx.scratch / name).write_text("a note")
    return str(ctx.scratch)


@app.job("look@1", **QUICK)
def look(name: str) -> dict[str, object]:
    """Wait where a test can look at this process from outside."""
    effect(f"look {os.getppid()}")
    wait_for("go")
    return {"environ": dict(os.environ)}


@app.job("leak.block@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, **QUICK)
def leak_block(step: Step) -> None:
    """Start a process that leaves the group, and block."""
    script = "import os,time; os.setsid(); print('up', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    effect(f"leak-block child={child.pid}")
    wait_for("go")


@app.job(
    "long.block@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    **LONG,
)
def long_block(step: Step) -> None:
    """Wait, under a long lease."""
    effect(f"block {step.name}")
    wait_for("go")
    effect(f"done {step.name}")


@app.job("once.block@1", tier=Tier.MEDIUM, effect=Effect.ONCE, operation=("name",), resources=None, **QUICK)
def once_block(step: Step) -> None:
    """Wait, with an effect that must not be doubled."""
    effect(f"block {step.name}")
    wait_for("go")
