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
from _thread import _count as thread_count  # pyright: ignore[reportPrivateUsage] - threading knows only its own
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from benteng.task import Registry
from benteng.worker import framing, wire
from benteng.worker.attempt import Attempt, Mouth, Stopped, Workshop, current
from benteng.worker.framing import INBOX_BYTES, Inbox
from benteng.worker.pool import TIERS, Kind, Start
from benteng.worker.sandbox import Spec, basic, linux, roots, system
from benteng.worker.scratch import DIRECTORY, PLACE, PRIVATE, directory_of, is_untouched
from benteng.worker.wire import Configure, Line, Spawn

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
    mouth.say(framing.frame(wire.Hello(layers)))
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
    inbox = Inbox(Line.TO_SERIAL_CELL)
    while serial.listen(sock, inbox):
        for message, tail in inbox.messages():
            if isinstance(message, wire.Shelf):
                serial.put_up()
                continue
            for attempt in _attempts(message, tail, shop):
                serial.make(attempt)
                if once:
                    wait_for_end(sock)
                    return


def _attempts(message: wire.Grants, tail: bytes, shop: Workshop) -> Iterator[Attempt]:
    for work, payload, secrets in framing.parts(message.works, tail):
        yield Attempt(work, payload, shop, secrets)


def wait_for_end(sock: socket.socket) -> None:
    """Stay until the supervisor hangs up: it looks at the dead attempt's processes first."""
    while sock.recv(4096):
        pass


class Serial:
    """One attempt at a time, on the main thread, where a signal can reach it; then what lies on the shelf."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._attempt: Attempt | None = None
        self._descriptors: list[int] = []
        self._shelf: socket.socket | None = None
        self._root = -1
        self._inbox = Inbox(Line.TO_SERIAL_CELL)
        self._said: list[bytes] = []
        self._aloud = False

    def listen(self, sock: socket.socket, inbox: Inbox) -> bool:
        """Receive once; False at the end of the line. What comes first may bring the descriptor of a shelf."""
        if self._shelf is not None:
            return inbox.fill(sock)
        data, descriptors, _, _ = socket.recv_fds(sock, min(inbox.room, INBOX_BYTES), 1)
        self._descriptors += descriptors
        inbox.accept(data)
        return bool(data)

    def put_up(self) -> None:
        """Take from a shelf from now on."""
        self._shelf = socket.socket(fileno=self._descriptors.pop())
        self._root = os.open(self._shop.scratch, DIRECTORY)

    def make(self, attempt: Attempt | None) -> None:
        """Make an attempt, and then those on the shelf, as long as each leaves nothing; say how the last ended aloud.

        Each start is said before it and each end before the next start, by one call.
        """
        while attempt is not None:
            if attempt.loads:
                self._murmur()  # its judgement runs code of the user's
            ended = self._one(attempt)
            self._said += framing.ended_frames([ended])
            attempt = self._following() if self._is_clean(ended[0]) else None
        os.chdir(self._shop.scratch)
        self._shop.mouth.say(*self._said)
        self._said.clear()
        self._aloud = False

    def _one(self, attempt: Attempt) -> tuple[wire.Ending, bytes]:
        """Judge, say that it starts, run; return how it ended."""
        refused = attempt.judge()
        if refused is not None:
            return refused, b""
        if attempt.job_type is not None:
            basic.bound(attempt.job_type.policy.limits, hard=False)
        attempt.settle_in()
        self._said.append(attempt.started())
        self._murmur()
        self._attempt = attempt
        ended = self._run(attempt)
        self._attempt = None
        return ended

    def _run(self, attempt: Attempt) -> tuple[wire.Ending, bytes]:
        try:
            return attempt.run()
        except Stopped:  # it came between two lines of ours
            return attempt.stopped()

    def _murmur(self) -> None:
        """Say what is to be said without waking the supervisor; aloud where that cannot be, and all that follows."""
        data = b"".join(self._said)
        self._said.clear()
        if not data:
            return
        if self._shelf is not None and not self._aloud and len(data) <= INBOX_BYTES:
            try:
                self._shelf.send(data, socket.MSG_DONTWAIT)
            except OSError:
                pass
            else:
                return
        self._aloud = True
        self._shop.mouth.say(data)

    def _is_clean(self, ending: wire.Ending) -> bool:
        """Whether the next attempt may begin here before the supervisor has looked: nothing is left of this one.

        Neither a child nor a thread of Python's, nor a file where attempts work.
        """
        if self._shelf is None or ending.how is not wire.How.COMPLETED or thread_count() != 0:
            return False
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return is_untouched(str(PLACE), self._root)
        return False

    def _following(self) -> Attempt | None:
        """Take the next attempt from the shelf, if one lies there."""
        if self._shelf is None:
            return None
        try:
            self._inbox.accept(self._shelf.recv(INBOX_BYTES, socket.MSG_DONTWAIT))
        except OSError:
            return None
        for message, tail in self._inbox.messages():
            return next(_attempts(message, tail, self._shop))
        return None

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
