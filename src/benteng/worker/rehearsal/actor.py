"""The observed cell of a rehearsal: it imports the app, runs one attempt, and is seen in each call that matters.

As a cell it has no credential, no descriptor but its line, the pool's uid, environment and limits. What is not in force
are the walls: it reads, writes, runs and connects for real, but for the files that nobody may have, which lie outside
what Landlock gives it. Trust: nothing of what it runs; its own words are hints for a person.
"""

from __future__ import annotations

import array
import contextlib
import inspect
import json
import os
import signal
import socket
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import msgspec

from benteng import inert
from benteng.errors import Malformed, PolicyError
from benteng.guard.integrity import identity_of
from benteng.job import sha256_hex
from benteng.policy import Tier
from benteng.task import Registry
from benteng.worker import cell as cells
from benteng.worker import framing, wire, zygote
from benteng.worker.attempt import Attempt, Mouth, Workshop
from benteng.worker.framing import Inbox
from benteng.worker.pool import TIERS
from benteng.worker.rehearsal import watch
from benteng.worker.sandbox import Spec, basic, capabilities, landlock, roots, syscalls
from benteng.worker.scratch import directory_of
from benteng.worker.wire import Configure, Line, Spawn, Work

HINTS_MAX: Final = 1_000
HINT_CHARS_MAX: Final = 256
FILES_ONLY: Final = landlock.ABI_TRUNCATE
"""Landlock up to this version knows nothing but files: connects and signals are to be seen, not refused."""

STDLIB: Final = sysconfig.get_path("stdlib")
PACKAGES: Final = sysconfig.get_path("purelib")


def main() -> NoReturn:
    """Be the observed cell. Descriptor 0 is the line; the arguments: our parent, and what nobody may have."""
    inert.mark()
    parent, secrets = int(sys.argv[2]), [Path(each) for each in json.loads(sys.argv[3])]
    line = socket.socket(fileno=os.dup(0))
    try:
        _be(line, parent, secrets)
    except BaseException:  # noqa: BLE001 - as a cell: whatever it was, it ends here
        os._exit(cells.CRASH_STATUS)
    os._exit(0)


def _be(line: socket.socket, parent: int, secrets: list[Path]) -> None:
    inbox = Inbox(Line.TO_NEW_ZYGOTE)
    configure: Configure = _next(inbox, line)[0]
    inbox.line = Line.TO_ZYGOTE
    spawn: Spawn = _next(inbox, line)[0]
    inbox.line = Line.TO_CELL
    scratch = directory_of(Path(configure.scratch), spawn.cell)
    hints = _shut_in(line, parent, configure, spawn, secrets)
    sock = socket.socket(fileno=basic.KEPT)
    _tell_variables(hints)
    _tell_names(hints)
    os.chdir(configure.cwd)
    registry = _loaded(configure, hints)
    cells.settle_in(str(scratch))
    cells.capture()
    shop = Workshop(registry, Mouth(sock), scratch, configure.artifacts)
    shop.mouth.say(framing.frame(wire.Hello(())))
    message, tail = _next(inbox, sock)
    for work, payload, given in framing.parts(message.works, tail):
        _attempt(shop, work, payload, given)
    cells.wait_for_end(sock)


def _next(inbox: Inbox, line: socket.socket) -> tuple[Any, bytes]:
    """Return the next message on a line, which waits."""
    while True:
        for found in inbox.messages():
            return found
        if not inbox.fill(line):
            os._exit(0)


def _attempt(shop: Workshop, work: Work, payload: bytes, given: dict[str, str]) -> None:
    job_type = shop.registry.types.get(work.type)
    if job_type is not None:
        with contextlib.suppress(Malformed):  # what does not fit is refused by the judgement, as in a cell
            payload = job_type.shape.parse(payload).canonical
            key = identity_of(job_type.policy, work.type, payload)
            work = msgspec.structs.replace(work, payload_sha256=sha256_hex(payload), operation_key=key)
    serial = cells.Serial(shop)
    signal.signal(signal.SIGTERM, serial.stop)
    serial.make(Attempt(work, payload, shop, given))


# ------------------------------------------------------------------------------------------------------------ the walls


def _shut_in(line: socket.socket, parent: int, configure: Configure, spawn: Spawn, secrets: list[Path]) -> int:
    """Be who the pool is, keep away from the secrets, and be seen; return where hints go. Raises OSError."""
    if configure.uid is not None and configure.gid is not None and os.getuid() == 0:
        capabilities.become(configure.uid, configure.gid)
    basic.enter(Spec(parent, line.detach(), spawn.limits, spawn.width, configure.scratch))
    tier = TIERS[spawn.kind]
    if tier is not Tier.LOW:
        capabilities.drop()
    grants = roots.around(secrets, configure.scratch)
    landlock.restrict(grants, min(landlock.abi(), FILES_ONLY))
    return _seen(tier, own_uid=configure.own_uid)


def _seen(tier: Tier, *, own_uid: bool) -> int:
    """Begin to be observed: from here on nothing may be opened until the observer has the listener."""
    arch = syscalls.this_arch()
    if arch is None:
        raise OSError("the numbers of this machine's system calls are not known")
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    code = watch.program(tier, arch, own_uid=own_uid)
    sock = socket.socket(fileno=os.dup(basic.KEPT))
    listener = watch.install(code)
    rights = array.array("i", [listener, reader])
    sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    for number in (listener, reader):  # the handler must not answer for itself
        os.close(number)
    sock.close()
    return writer


def _loaded(configure: Configure, hints: int) -> Registry:
    try:
        return zygote.load_app(configure)
    except PolicyError as error:
        _hint(hints, {"rule": error.rule, "refused": error.reason[:2048]})
        os._exit(cells.CRASH_STATUS)


# -------------------------------------------------------------------------------------------------------------- hints


def _hint(pipe: int, said: dict[str, object]) -> None:
    """Tell the observer what no system call shows; when the pipe is full, nothing."""
    with contextlib.suppress(OSError):
        os.write(pipe, json.dumps(said).encode() + b"\n")


def _tell_variables(pipe: int) -> None:
    """Tell which environment variables are asked for by name, by code that is not Python's own."""
    told = set[str]()
    base: Any = type(os.environ)

    def getitem(self: Any, name: str) -> str:
        if name not in told and len(told) < HINTS_MAX and not _is_python(inspect.currentframe()):
            told.add(name)
            _hint(pipe, {"variable": name[:HINT_CHARS_MAX]})
        return base.__getitem__(self, name)

    os.environ.__class__ = type("Environ", (base,), {"__getitem__": getitem})


def _is_python(frame: FrameType | None) -> bool:
    """Whether the first caller outside of `os` and the abstract mapping is a module of the standard library."""
    while frame is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    name = "" if frame is None else frame.f_code.co_filename
    return name.startswith("<frozen") or (name.startswith(STDLIB) and not name.startswith(PACKAGES))


_BETWEEN: Final = frozenset(
    {__file__, os.__file__, "<frozen os>", "<frozen _collections_abc>", f"{STDLIB}/_collections_abc.py"}
)


def _tell_names(pipe: int) -> None:
    """Tell which host names are looked up through Python: the calls show addresses only."""
    told = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal told
        if event == "socket.getaddrinfo" and told < HINTS_MAX:
            told += 1
            _hint(pipe, {"host": str(arguments[0])[:HINT_CHARS_MAX], "port": str(arguments[1])[:16]})

    sys.addaudithook(hook)
