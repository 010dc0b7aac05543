"""One sandboxed child that runs handlers: it holds its line to the supervisor, and nothing else.

No credential, no job id, no lease token, no descriptor of anybody else. It ends when the line ends or its parent
dies. Trust: the supervisor's frames; nothing of the payloads in them. The handler in it is trusted by nobody (see
wire.PERMITTED).
"""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from benteng.task import Registry
from benteng.worker import wire
from benteng.worker.attempt import Attempt, Mouth, Stopped, Workshop, current
from benteng.worker.pool import TIERS, Kind, Start
from benteng.worker.sandbox import Spec, basic, linux, roots, system
from benteng.worker.scratch import PLACE, PRIVATE, directory_of
from benteng.worker.wire import Configure, Inbox, Line, Spawn

CRASH_STATUS = 70
PLACES = {Kind.WIDE: None, Kind.SERIAL: str(PLACE), Kind.SINGLE: ""}
"""Where in a cell's scratch its attempts work: see Workshop."""


def live(spawn: Spawn, keep: int, parent: int, configure: Configure, load: Callable[[], Registry]) -> NoReturn:
    """Be a cell until the line ends. Never returns into the zygote's code, whatever happens."""
    try:
        scratch = directory_of(Path(configure.scratch), spawn.cell)
        scratch.mkdir(mode=PRIVATE)
        layers = basic.enter(Spec(parent, keep, spawn.limits, spawn.width, str(scratch)))
        if spawn.kind is not Kind.WIDE:
            layers += linux.enter_job(walls_of(configure), TIERS[spawn.kind], str(scratch))
        elif configure.names:
            layers += linux.enter_open_job()
        if spawn.kind is Kind.WIDE:
            system.few_arenas()
        _work(spawn, layers, scratch, configure.artifacts, load)
    except BaseException:  # noqa: BLE001 - a forked copy of the zygote must end here
        os._exit(CRASH_STATUS)
    os._exit(0)


@lru_cache(maxsize=1)
def walls_of(configure: Configure) -> linux.Walls:
    """Return what this pool's processes may touch. Asked first by the zygote, so that its cells know it."""
    return linux.Walls(
        read=_readable(configure),
        listed=(*configure.listed, roots.PACKAGE),
        write=configure.write,
        scratch=configure.scratch,
        own_uid=configure.own_uid,
        shut=configure.shut,
        programs=configure.programs,
        interpreter=sys.executable if configure.start is Start.EXEC else "",
        waive=configure.waive,
        names=dict(configure.names),
    )


def _readable(configure: Configure) -> tuple[str, ...]:
    read = (*configure.read, *(roots.NAMES if configure.names else ()))
    return roots.outermost(read) if configure.programs else roots.readable(read)


def _work(spawn: Spawn, layers: tuple[str, ...], scratch: Path, artifacts: str, load: Callable[[], Registry]) -> None:
    sock = socket.socket(fileno=basic.KEPT)
    sock.setblocking(True)
    mouth = Mouth(sock)
    settle_in(str(scratch))
    shop = Workshop(load(), mouth, scratch, artifacts, PLACES[spawn.kind])
    mouth.say(wire.frame(wire.Hello(layers)))
    if spawn.kind is Kind.WIDE:
        from benteng.worker import wide

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wide.serve(sock, shop, spawn.width)
    else:
        serve(sock, shop, once=spawn.kind is Kind.SINGLE)


def serve(sock: socket.socket, shop: Workshop, *, once: bool) -> None:
    """Make one attempt after the other until the line ends; only one when `once`."""
    serial = Serial(shop)
    signal.signal(signal.SIGTERM, serial.stop)
    inbox = Inbox(Line.TO_CELL)
    while inbox.fill(sock):
        for message, tail in inbox.messages():
            if not isinstance(message, wire.Grants):
                continue
            for work, payload, secrets in wire.parts(message.works, tail):
                serial.attempt(Attempt(work, payload, shop, secrets))
                if once:
                    wait_for_end(sock)
                    return


def wait_for_end(sock: socket.socket) -> None:
    """Stay until the supervisor hangs up: it looks at the dead attempt's processes first."""
    while sock.recv(4096):
        pass


class Serial:
    """One attempt at a time, on the main thread, where a signal can reach it."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._attempt: Attempt | None = None

    def attempt(self, attempt: Attempt) -> None:
        """Judge, say that it starts, run, and say how it ended."""
        refused = attempt.judge()
        if refused is not None:
            self._shop.mouth.say(*wire.ended_frames([(refused, b"")]))
            return
        if attempt.job_type is not None:
            basic.bound(attempt.job_type.policy.limits, hard=False)
        attempt.settle_in()
        self._shop.mouth.say(attempt.started())
        self._attempt = attempt
        ended = self._run(attempt)
        self._attempt = None
        os.chdir(self._shop.scratch)
        self._shop.mouth.say(*wire.ended_frames([ended]))

    def _run(self, attempt: Attempt) -> tuple[wire.Ending, bytes]:
        try:
            return attempt.run()
        except Stopped:  # it came between two lines of ours
            return attempt.stopped()

    def stop(self, number: int, at: object) -> None:
        """Raise Stopped in a handler that runs. A second signal does nothing more; then comes SIGKILL."""
        del number, at
        attempt = self._attempt
        if attempt is not None and attempt.armed:
            attempt.armed = False
            raise Stopped


class Output(io.TextIOBase):
    """What `print` of a handler writes to: lines of the attempt that the running code belongs to."""

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str, /) -> int:
        """Give text to the attempt; output outside an attempt is dropped."""
        attempt = current.get()
        if attempt is not None:
            attempt.write(str(text))
        return len(text)


class _Records(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        attempt = current.get()
        if attempt is not None:
            attempt.write(f"{record.levelname} {record.name}: {record.getMessage()}\n")


def prepare(registry: Registry, *, wide: bool) -> None:
    """Do once, before any cell is forked, what each would do again: load what it needs, work out what stays the same.

    `wide`: LOW cells are to come.
    """
    capture()
    types = registry.types.values()
    if wide:
        import_module("benteng.worker.wide")
    elif any(job_type.is_async for job_type in types):
        import_module("asyncio")
    for job_type in types:
        job_type.shape.free_text  # noqa: B018 - it is kept with the shape


def capture() -> None:
    """Make what handlers print, and log, lines of their attempt."""
    sys.stdout = sys.stderr = Output()
    sys.stdin = io.StringIO()
    logging.basicConfig(handlers=[_Records()], level=logging.INFO, force=True)
    logging.raiseExceptions = False


def settle_in(scratch: str) -> None:
    """Move this process into a directory."""
    os.environ["HOME"] = os.environ["TMPDIR"] = scratch
    os.chdir(scratch)
