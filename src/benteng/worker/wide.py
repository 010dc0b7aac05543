"""Many attempts in one cell, for LOW: threads that are added when they are needed, and one event loop for `async def`.

The reader judges what needs no user code for judging and says all those starts in one frame. How attempts ended is said
by the thread that ends one and finds nothing more to do, for all others too; the reader says it when that takes long.
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
from typing import Any

from benteng.worker import framing, wire
from benteng.worker.attempt import Attempt, Mouth, Workshop
from benteng.worker.framing import Inbox
from benteng.worker.wire import Ending, Line

STILL_MILLISECONDS = 2
"""So long an attempt waits for a thread before there are more, and so long one that ended may wait to be said."""

GROWTH = 3
"""So many threads are added for each that there is, at most: as many as the work that waits."""

ENDINGS_MAX = 1000
"""As many as one frame may tell: wire.Ended."""


def serve(sock: socket.socket, shop: Workshop, width: int) -> None:
    """Make attempts, up to `width` at a time, until the line ends."""
    Wide(shop, width).read(sock)


class Wide:
    """The threads of a wide cell and what goes between them."""

    def __init__(self, shop: Workshop, width: int) -> None:
        self._shop = shop
        self._width = width
        self._todo: queue.SimpleQueue[tuple[Attempt, bool]] = queue.SimpleQueue()
        self._ends = Ends(shop.mouth)
        self._threads = 0
        self._loop: Loop | None = None
        self._grow(1)

    def read(self, sock: socket.socket) -> None:
        """Take frames; look after work that has waited for a thread, and after ends that nobody has said."""
        inbox = Inbox(Line.TO_CELL)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while True:
            waiting = self._todo.qsize()
            if (waiting or self._ends) and not poll.poll(STILL_MILLISECONDS):
                self._ends.say()
                self._relieve(waiting)
                continue
            if not inbox.fill(sock):
                return
            for message, tail in inbox.messages():
                self._take(message, tail)

    def _relieve(self, before: int) -> None:
        """Add threads, unless half of what waited was taken meanwhile: short work needs none, on any machine."""
        waiting = self._todo.qsize()
        if waiting > before // 2:
            self._grow(min(waiting, GROWTH * self._threads, self._width - self._threads))

    def _take(self, message: Any, tail: bytes) -> None:
        if isinstance(message, wire.Stop):
            if self._loop is not None:
                self._loop.cancel(message.handle)
            return
        attempts = [Attempt(work, payload, self._shop) for work, payload, _ in framing.parts(message.works, tail)]
        ready = [each for each in attempts if not each.loads and self._admits(each)]
        if ready:
            self._shop.mouth.say(framing.frame(wire.Started(tuple(each.work.handle for each in ready))))
        for each in ready:
            self._start(each, judged=True)
        for each in attempts:
            if each.loads:
                self._start(each, judged=False)
        if len(ready) < len(attempts):  # what was refused has ended
            self._ends.say()

    def _admits(self, attempt: Attempt) -> bool:
        refused = attempt.judge()
        if refused is not None:
            self._ends.add((refused, b""))
        return refused is None

    def _start(self, attempt: Attempt, *, judged: bool) -> None:
        if judged and attempt.job_type is not None and attempt.job_type.is_async:
            self._on_loop(attempt)
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
            attempt, judged = self._todo.get()
            self._make(attempt, judged=judged)
            if self._todo.empty():
                self._ends.say()

    def _make(self, attempt: Attempt, *, judged: bool) -> None:
        if not judged:
            if not self._admits(attempt):
                return
            self._shop.mouth.say(attempt.started())
            if attempt.job_type is not None and attempt.job_type.is_async:
                self._on_loop(attempt)
                return
        self._ends.add(contextvars.copy_context().run(attempt.run))


class Ends:
    """How attempts ended, until it is said.

    Whoever adds one while work waits may leave it to others: to those who take that work, or to the reader, who looks
    again soon as long as work waits or an end does. So each is said, and none waits behind the long work of another.
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
