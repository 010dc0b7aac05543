"""Job types with secrets: one uses its own in every way that could leave a trace, others try to get at it."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benteng.app import Benteng
from benteng.context import Context
from benteng.contract import Contract, Slug, Target
from benteng.errors import PolicyError
from benteng.policy import Effect, Tier
from benteng.raised import Permanent, Retry, Snooze, Suspicious
from benteng.worker import framing, wire
from benteng.worker.attempt import current
from benteng.worker.sandbox import basic

app = Benteng()
QUICK: dict[str, Any] = {
    "lease_seconds": 2.0,
    "backoff_seconds_min": 0.05,
    "backoff_seconds_base": 0.05,
    "backoff_seconds_max": 0.2,
    "attempts_max": 2,
    "crashes_max": 1,
}
MEDIUM: dict[str, Any] = QUICK | {
    "pool": "vault",
    "tier": Tier.MEDIUM,
    "effect": Effect.REPEATABLE,
    "operation": ("name",),
    "resources": None,
}
HIGH: dict[str, Any] = MEDIUM | {"tier": Tier.HIGH, "resources": ("host",)}


class Use(Contract):
    name: Slug
    host: Target


class Note(Contract):
    name: Slug
    text: str


def forms(secret: str) -> dict[str, object]:
    """Return a secret as people and libraries write it."""
    raw = secret.encode()
    return {
        "raw": secret,
        "inside": f"Authorization: {secret};",
        "url": quote(secret, safe=""),
        "json": json.dumps(secret),
        "hex": raw.hex(),
        **{f"base64-{shift}": base64.b64encode(b"u:"[:shift] + raw + b"!").decode() for shift in range(3)},
        secret: "key",
    }


def tell(line: str) -> None:
    """Write one line to the test, outside of what the worker sees."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"{line}\n")


def wait_for(name: str) -> None:
    """Block until the test opens that pipe."""
    os.close(os.open(Path(os.environ["EFFECTS"]).parent / name, os.O_RDONLY))


def use(step: Use, ctx: Context) -> dict[str, object]:
    """Use the secret, tell the test its digest, and leave it everywhere else."""
    import hashlib

    secret = ctx.secret("stripe")
    written = forms(secret)
    for value in written.values():
        print(value)
    for character in secret:
        print(character, end="")
    print()
    print("x" * 7990 + secret)
    logging.getLogger("app").warning("using %s", secret)
    print(base64.b64encode(secret.encode()).decode(), file=sys.stderr)
    ctx.progress("half way with " + secret)
    tell(f"used {step.name} sha256={hashlib.sha256(secret.encode()).hexdigest()} found={found()} pid={os.getpid()}")
    if step.name.startswith("wait"):
        wait_for(step.name)
    return written


@app.job("use.medium@1", secrets=("stripe",), **MEDIUM)
def use_medium(step: Use, ctx: Context) -> dict[str, object]:
    """Use it in a MEDIUM cell."""
    return use(step, ctx)


@app.job("use.high@1", secrets=("stripe",), **HIGH)
def use_high(step: Use, ctx: Context) -> dict[str, object]:
    """Use it in a HIGH cell."""
    return use(step, ctx)


@app.job("use.async@1", secrets=("stripe", "pem"), **MEDIUM)
async def use_async(step: Use, ctx: Context) -> str:
    """Print a secret of several lines."""
    print(ctx.secret("pem"))
    await asyncio.sleep(0)
    return ctx.secret("pem")


ENDS: dict[str, Any] = {
    "retry": lambda text: Retry(text, after=0.05),
    "permanent": Permanent,
    "suspicious": Suspicious,
    "snooze": lambda text: Snooze(3600.0, text),
    "unknown": RuntimeError,
    "long": lambda text: RuntimeError("y" * 2030 + text),
    "worded": lambda text: RuntimeError(f"cannot log in with password={text}"),
    "named": lambda text: type(text, (Exception,), {})("named"),
}


@app.job("fail@1", secrets=("stripe",), **MEDIUM)
def fail(step: Use, ctx: Context) -> None:
    """Raise something with the secret in its text."""
    raise ENDS[step.name](ctx.secret("stripe"))


@app.job("hostile@1", secrets=("stripe",), **MEDIUM)
def hostile(step: Use, ctx: Context) -> None:
    """Write frames past the cell's own scrubbing, then die."""
    import socket

    secret = ctx.secret("stripe")
    line = socket.socket(fileno=os.dup(basic.KEPT))
    attempt = current.get()
    assert attempt is not None
    handle = attempt.work.handle
    frames = [framing.frame(wire.Log(handle, secret)), framing.frame(wire.Progress(handle, secret))]
    text = json.dumps(secret).replace(secret[:2], "".join(f"\\u{ord(each):04x}" for each in secret[:2]), 1)
    result = f'{{"name":"n","text":{text}}}'.encode()
    ends = {
        "result": (wire.Ending(handle, wire.How.COMPLETED, result_bytes=len(result)), result),
        "garbage": (wire.Ending(handle, wire.How.COMPLETED, result_bytes=len(secret)), secret.encode()),
        "error": (wire.Ending(handle, wire.How.PERMANENT, text=secret, rule=secret, field=secret, fix=secret), b""),
        "successor": (wire.Ending(handle, wire.How.COMPLETED, successors=(wire.Next("note@1", len(result)),)), result),
    }
    line.sendall(b"".join([*frames, *framing.ended_frames([ends[step.name]])]))
    time.sleep(60)


@app.job("note@1", **MEDIUM)
def note(step: Note) -> None:
    """Be a successor."""


@app.job("leak@1", secrets=("stripe",), successors=("note@1",), **MEDIUM)
def leak(step: Use, ctx: Context) -> None:
    """Put the secret into the ledger as a successor's payload."""
    ctx.then("note@1", {"name": "n", "text": f"key {ctx.secret('stripe')}"})


@app.job("forge@1", secrets=("stripe",), successors=("note@1",), **MEDIUM)
def forge(step: Use, ctx: Context) -> None:
    """As hostile, of a type that may have successors."""
    hostile(step, ctx)


@app.job("ask@1", secrets=("stripe",), **MEDIUM)
def ask(step: Use, ctx: Context) -> str:
    """Ask for a secret that the type does not list."""
    return ctx.secret("pem")


@app.job("plain@1", **MEDIUM)
def plain(step: Use, ctx: Context) -> dict[str, object]:
    """Look for a secret of others: by asking, and in all that this process has in its memory."""
    try:
        asked = ctx.secret("stripe")
    except PolicyError as error:
        asked = error.rule
    return {"asked": asked, "found": found(), "pid": os.getpid()}


def found() -> int:
    """Return how many texts there are in this process with the middle of the secret in them."""
    tracked = gc.get_objects()
    texts = [each for one in tracked for each in gc.get_referents(one) if isinstance(each, str)]
    return sum(1 for text in texts if "4eC39H" in text and len(text) > 6)


@app.job("trap@1", **MEDIUM)
def trap(step: Use) -> int:
    """Leave a trap for whoever comes next in this process: every secret is told to the test."""
    asked = Context.secret

    def spied(self: Context, name: str) -> str:
        value = asked(self, name)
        tell(f"trapped {len(value)}")
        return value

    Context.secret = spied  # type: ignore[method-assign]
    return os.getpid()
