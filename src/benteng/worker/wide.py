"""Many attempts in one cell, for LOW: threads that are added when they are needed, and one event loop for `async def`.

The thread that reads a frame judges what needs no user code for judging, says all those starts in one frame, and makes
them itself: handing work over is two more processors to wake. The main thread, which runs no user code, looks whether
that one is away for long: then it reads, says how others ended, and adds threads for the work that waits.
Trust: as cell.py. Residents of a wide cell are not shut off from each other; LOW means that this may be so.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import select
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from benteng.worker import framing, wire
from benteng.worker.attempt import Attempt, Mouth, Workshop
from benteng.worker.framing import Inbox
from benteng.worker.wire import Ending, Line

STILL_SECONDS = 0.002
"""So long, and at most twice that, nobody reads, an attempt waits for a thread, or one that ended waits to be said."""

REST_LOOKS = 8
"""So often the main thread finds that nothing has come, before it sleeps until something does."""

GROWTH = 3
"""So many threads are added for each that there is, at most: as many as the work that waits."""

ENDINGS_MAX = 1000
"""As many as one frame may tell: wire.Ended."""


Todo = tuple[Attempt, bool]
"""An attempt, and whether it was judged."""


def serve(sock: socket.socket, shop: Workshop, width: int) -> None:
    """Make attempts, up to `width` at a time, until the line ends."""
    Wide(sock, shop, width).look_after()


class Wide:
    """The threads of a wide cell and what goes between them. Who reads holds `_reading`, and nobody works with it."""

    def __init__(self, sock: socket.socket, shop: Workshop, width: int) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._shop = shop
        self._width = width
        self._todo: queue.SimpleQueue[Todo] = queue.SimpleQueue()
        self._ends = Ends(shop.mouth)
        self._threads = 0
        self._loop: Loop | None = None
        self._reading = threading.Lock()
        self._inbox = Inbox(Line.TO_CELL)
        self._frames = 0
        self._bell = Bell()
        self._asleep = False
        self._over: list[BaseException | None] = []

    def look_after(self) -> None:
        """Have the line read until it ends, and what waits looked after. Raises what a thread met that read it."""
        self._grow(1)
        seen = looks = waiting = 0
        while not self._over:
            if looks >= REST_LOOKS:
                self._rest(seen)
            self._bell.wait(STILL_SECONDS)
            looks = looks + 1 if self._frames == seen and self._reading.locked() else 0
            if self._frames == seen:
                self._step_in(waiting)
            seen, waiting = self._frames, self._todo.qsize()
        for error in filter(None, self._over):
            raise error

    def _rest(self, seen: int) -> None:
        """Sleep until something comes."""
        self._asleep = True
        if self._frames == seen and not self._over:
            self._bell.wait()
        self._asleep = False

    def _step_in(self, before: int) -> None:
        """Do what waits for whoever took the last frame, who has been away for a while."""
        self._ends.say()
        self._relieve(before)
        if not self._reading.acquire(blocking=False):
            return
        if (self._todo.empty() and not self._ends) or self._poll.poll(0):
            self._receive(None)
        else:
            self._reading.release()

    def _receive(self, mine: list[Todo] | None) -> None:
        """Take what comes, as the one who reads; the first attempt in it goes into `mine`. Note when that is over."""
        try:
            if not self._inbox.fill(self._sock):
                self._end(None)
            self._frames += 1
            for message, tail in self._inbox.messages():
                self._take(message, tail, mine)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the cell ends by it: on the main thread
            self._end(error)
        finally:
            self._reading.release()
        if self._asleep:
            self._bell.ring()

    def _end(self, error: BaseException | None) -> None:
        self._over.append(error)
        self._bell.ring()

    def _relieve(self, before: int) -> None:
        """Add threads, unless half of what waited was taken meanwhile: short work needs none, on any machine."""
        waiting = self._todo.qsize()
        if waiting > before // 2:
            self._grow(min(waiting, GROWTH * self._threads, self._width - self._threads))

    def _take(self, message: Any, tail: bytes, mine: list[Todo] | None = None) -> None:
        if isinstance(message, wire.Stop):
            if self._loop is not None:
                self._loop.cancel(message.handle)
            return
        attempts = [Attempt(work, payload, self._shop) for work, payload, _ in framing.parts(message.works, tail)]
        ready = [each for each in attempts if not each.loads and self._admits(each)]
        if ready:
            self._shop.mouth.say(framing.frame(wire.Started(tuple(each.work.handle for each in ready))))
        for each in ready:
            self._start(each, mine, judged=True)
        for each in attempts:
            if each.loads:
                self._start(each, mine, judged=False)
        if len(ready) < len(attempts):  # what was refused has ended
            self._ends.say()

    def _admits(self, attempt: Attempt) -> bool:
        refused = attempt.judge()
        if refused is not None:
            self._ends.add((refused, b""))
        return refused is None

    def _start(self, attempt: Attempt, mine: list[Todo] | None, *, judged: bool) -> None:
        if judged and attempt.job_type is not None and attempt.job_type.is_async:
            self._on_loop(attempt)
        elif mine is not None and not mine:
            mine.append((attempt, judged))
        else:
            self._todo.put((attempt, judged))

    def _on_loop(self, attempt: Attempt) -> None:
        if self._loop is None:
            self._loop = Loop(self._ends)
        self._loop.run(attempt)

    def _grow(self, count: int) -> None:
        for _ in range(count):
            _thread(self._work)
        self._threads += count

    def _work(self) -> None:
        while True:
            attempt, judged = self._next()
            self._make(attempt, judged=judged)
            if self._todo.empty():
                self._ends.say()

    def _next(self) -> Todo:
        """Return what to make; where nothing waits and nobody reads, read for it."""
        mine: list[Todo] = []
        while not mine and not self._over and self._todo.empty() and self._reading.acquire(blocking=False):
            self._receive(mine)
        return mine[0] if mine else self._todo.get()

    def _make(self, attempt: Attempt, *, judged: bool) -> None:
        if not judged:
            if not self._admits(attempt):
                return
            self._shop.mouth.say(attempt.started())
            if attempt.job_type is not None and attempt.job_type.is_async:
                self._on_loop(attempt)
                return
        self._ends.add(contextvars.copy_context().run(attempt.run))


class Bell:
    """Wakes the one who waits for it; rung before, the next wait is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, seconds: float = -1) -> None:
        """Wait until it rings, so long at most; -1: until it rings."""
        self._lock.acquire(timeout=seconds)

    def ring(self) -> None:
        """Ring."""
        with suppress(RuntimeError):  # it rang already
            self._lock.release()


class Ends:
    """How attempts ended, until it is said.

    Whoever adds one while work waits may leave it to others: to those who take that work, or to the main thread, which
    looks again soon. So each is said, and none waits behind the long work of another.
    """

    def __init__(self, mouth: Mouth) -> None:
        self._mouth = mouth
        self._lock = threading.Lock()
        self._kept: deque[tuple[Ending, bytes]] = deque()

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, ended: tuple[Ending, bytes]) -> None:
        """Keep one."""
        self._kept.append(ended)

    def say(self) -> None:
        """Say all that are kept, in as few frames as they fit in."""
        with self._lock:
            while batch := [self._kept.popleft() for _ in range(min(len(self._kept), ENDINGS_MAX))]:
                self._mouth.say(*framing.ended_frames(batch))


class Loop:
    """One event loop on a thread of its own. Our tasks start eagerly (3.12); the loop's factory is untouched."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._will_say = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        _thread(self._loop.run_forever)

    def run(self, attempt: Attempt) -> None:
        """Run an async handler."""
        self._loop.call_soon_threadsafe(self._spawn, attempt)

    def cancel(self, handle: int) -> None:
        """Cancel an attempt if it still runs."""
        self._loop.call_soon_threadsafe(self._cancel, handle)

    def _spawn(self, attempt: Attempt) -> None:
        task = self._task(attempt)
        if not task.done():
            self._tasks[attempt.work.handle] = task

    def _task(self, attempt: Attempt) -> asyncio.Task[None]:
        if sys.version_info >= (3, 12):
            return asyncio.Task(self._one(attempt), loop=self._loop, eager_start=True)
        return self._loop.create_task(self._one(attempt))

    async def _one(self, attempt: Attempt) -> None:
        ended = await attempt.run_async()
        self._tasks.pop(attempt.work.handle, None)
        self._ends.add(ended)
        if not self._will_say:  # once for all that end in this round of the loop
            self._will_say = True
            self._loop.call_soon(self._say)

    def _say(self) -> None:
        self._will_say = False
        self._ends.say()

    def _cancel(self, handle: int) -> None:
        task = self._tasks.get(handle)
        if task is not None:
            task.cancel()


def _thread(target: Any) -> None:
    threading.Thread(target=target, daemon=True).start()
