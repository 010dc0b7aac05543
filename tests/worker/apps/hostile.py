"""Handlers that break the rules of the wire: each writes to the cell's line what a cell may not say."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from pathlib import Path

import msgspec

from benteng.app import Benteng
from benteng.contract import Contract, Slug, Target
from benteng.policy import Effect, Tier
from benteng.worker.attempt import current

app = Benteng()
LINE = 3
HEADER = struct.Struct(">BII")


class Step(Contract):
    name: Slug


def frame(message: list[object], tail: bytes = b"", *, version: int = 1) -> bytes:
    """Return any message as a frame."""
    header = msgspec.msgpack.encode(message)
    return HEADER.pack(version, len(header), len(tail)) + header + tail


def ended(handle: int, how: str = "completed", **fields: object) -> list[object]:
    """Return an end, with any values."""
    return ["Ended", [ending(handle, how, **fields)]]


def ending(handle: int, how: str = "completed", **fields: object) -> list[object]:
    """Return how one attempt ended, with any values."""
    values = {"text": "", "rule": "", "field": "", "fix": "", "after": None, "size": 0, "next": []} | fields
    return [handle, how, *values.values()]


def own_handle() -> int:
    """Return this attempt's handle, out of the memory of its cell."""
    attempt = current.get()
    assert attempt is not None
    return attempt.work.handle


def hostile(name: str) -> bytes:
    """Return the bytes of one attack."""
    me = own_handle()
    attacks = {
        "length": HEADER.pack(1, 0xFFFFFFFF, 0xFFFFFFFF),
        "version": frame(["Log", me, "x"], version=2),
        "garbage": b"\x01\x00\x00\x00\x05\x00\x00\x00\x00hello",
        "zygote": frame(["Spawned", 1, 1]),
        "hello": frame(["Hello", ["group"]]),
        "grants": frame(["Grants", []]),
        "foreign": frame(ended(me + 1000)),
        "started": frame(["Started", [me]]),
        "nobody": frame(["Ended", []]),
        "unstarted": frame(ended(me, "refused")),
        "extra": frame([*ended(me), "more"]),
        "extra-ending": frame(["Ended", [[*ending(me), None, False, "more"]]]),
        "sizes": frame(ended(me, size=5), b"abc"),
        "result": frame(ended(me, size=100_000), b"1" * 100_000),
        "failed-result": frame(ended(me, "permanent", size=1), b"1"),
        "successor": frame(ended(me, size=4, next=[["greet@1", 2]]), b"null{}"),
        "nan": frame(ended(me, "retry", after=float("nan"))),
        "inf": frame(ended(me, "snoozed", after=float("inf"))),
        "negative": frame(ended(me, "retry", after=-1.0)),
        "tail": frame(["Log", me, "x"], b"tail"),
        "deep": HEADER.pack(1, 200_000, 0) + b"\x91" * 200_000,
        "flood": frame(["Log", me, "x" * 8000]) * 40,
        "strays": frame(["Log", me + 1000, "x"]) * 2000,
        "progress": frame(["Progress", me, "x"]) * 20_000,
        "line": frame(["Log", me, "x" * 10_000_000]),
        "foreign-started": frame(["Started", [me + 1000]]),
        "many-started": frame(["Started", [*range(1001)]]),
        "zero": HEADER.pack(1, 0, 0),
        "all-tail": HEADER.pack(1, 1, 256 * 1024),
        "bytes-for-text": frame(["Log", me, b"x"]),
        "huge-handle": frame(["Log", 1 << 63, "x"]),
        "guard": frame(["Guard", []]),
    }
    return attacks[name]


@app.job(
    "hostile@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    attempts_max=1,
    crashes_max=1,
    lease_seconds=5.0,
)
def attack(step: Step) -> str:
    """Attack, and then behave as if nothing had been."""
    if step.name == "truncated":
        os.write(LINE, HEADER.pack(1, 1000, 0) + b"begin")
        os._exit(0)
    if step.name == "descriptors":
        line = socket.socket(fileno=os.dup(LINE))
        for _ in range(10):
            socket.send_fds(line, [frame(["Log", own_handle(), "x"])], [0, 1, 2] * 8)
        return "sent"
    data = hostile(step.name)
    while data:
        data = data[os.write(LINE, data) :]
    return "survived"


def _endless(name: str) -> None:
    """Go on for ever: only a kill ends it."""
    me = own_handle()
    said = {"flood-of-output": frame(["Log", me, "x" * 8000]), "trickle": b"\x00"}[name]
    if name == "trickle":
        os.write(LINE, HEADER.pack(1, 256 * 1024, 0))
    while True:
        os.write(LINE, said)
        if name == "trickle":
            time.sleep(0.01)


@app.job(
    "endless@1",
    tier=Tier.MEDIUM,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=None,
    attempts_max=1,
    crashes_max=1,
    lease_seconds=5.0,
    run_seconds_max=1.0,
)
def endless(step: Step) -> None:
    """Say something for ever."""
    _endless(step.name)


def shelf() -> socket.socket:
    """Return this cell's end of its shelf, found among its descriptors."""
    for number in range(LINE + 1, 32):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(number))
            if found.type == socket.SOCK_SEQPACKET:
                return found
    raise AssertionError("no shelf")


def handle_in(packet: bytes) -> int:
    """Return the handle of the attempt that a packet grants."""
    _, header, _ = HEADER.unpack_from(packet)
    return msgspec.msgpack.decode(packet[HEADER.size : HEADER.size + header])[1][0][0]


@app.job("greedy@1", tier=Tier.MEDIUM, effect=Effect.ONCE, operation=("name",), resources=None, lease_seconds=30.0)
def greedy(step: Step) -> str:
    """Be the only one that runs of those that were put before this cell, or tell that one ran."""
    with Path(os.environ["EFFECTS"]).open("w") as pipe:
        pipe.write(f"greedy {step.name} \n")
    match step.name.rstrip("0123456789"):
        case "takes":
            with contextlib.suppress(BlockingIOError):  # the worker has taken the rest back
                for _ in range(3):
                    shelf().recv(1 << 16, socket.MSG_DONTWAIT)
            os._exit(3)
        case "keeps":
            shelf().recv(1 << 16, socket.MSG_DONTWAIT)
        case "looks":
            packet = shelf().recv(1 << 16, socket.MSG_DONTWAIT | socket.MSG_PEEK)
            os.write(LINE, frame(["Started", [handle_in(packet)]]))
            time.sleep(0.05)
            os._exit(0)
        case "shuts":
            shelf().shutdown(socket.SHUT_RDWR)
        case "blocks":
            shelf().setblocking(True)
    return "survived"


@app.job("talks@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, lease_seconds=5.0)
def talks(step: Step) -> str:
    """Print a line of ten megabytes, as a careless job does."""
    print("x" * 10_000_000)
    return step.name


class Claim(Contract):
    name: Slug
    host: Target


@app.job(
    "claims@1",
    tier=Tier.HIGH,
    effect=Effect.REPEATABLE,
    operation=("name",),
    resources=("host",),
    attempts_max=3,
    lease_seconds=5.0,
)
def claims(claim: Claim) -> None:
    """Be ended by the kernel for a violation, having said almost all of an end that is better than that."""
    result = b"null" if claim.name == "completed" else b""
    said = frame(ended(own_handle(), claim.name, size=len(result)), result)
    os.write(LINE, said[:-1])
    os.execv("/bin/true", ["true"])  # noqa: S606 - the violation


@app.job(
    "lies@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("name",), resources=("host",), lease_seconds=30.0
)
def lies(claim: Claim) -> None:
    """Say a whole end when the test lets it, and then be ended by the kernel for a violation."""
    effects = Path(os.environ["EFFECTS"])
    with effects.open("w") as pipe:
        pipe.write(f"lies pid={os.getpid()}\n")
    os.close(os.open(effects.parent / "go", os.O_RDONLY))
    os.write(LINE, frame(ended(own_handle(), size=4), b"null"))
    os.execv("/bin/true", ["true"])  # noqa: S606 - the violation


@app.job("good@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("name",), resources=None, lease_seconds=5.0)
def good(step: Step) -> str:
    """Do what one should."""
    return step.name
