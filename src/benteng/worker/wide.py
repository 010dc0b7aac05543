"""Many attempts in one cell, for LOW: threads that are added when they are needed, and one event loop for `async def`.

The reader judges what needs no user code for judging and says all those starts in one frame. Finished attempts go to
one writer, which sends whatever is there in one frame (measured: reference/pipeline.md 4).
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
from typing import Any

from benteng.worker import wire
from benteng.worker.attempt import Attempt, Workshop
from benteng.worker.wire import Ending, Inbox, Line

GROW_MILLISECONDS = 2
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
        self._done: queue.SimpleQueue[tuple[Ending, bytes]] = queue.SimpleQueue()
        self._threads = 0
        self._loop: Loop | None = None
        _thread(self._write)
        self._grow(1)

    def read(self, sock: socket.socket) -> None:
        """Take frames; look after work that has waited for a thread."""
        inbox = Inbox(Line.TO_CELL)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while True:
            waiting = self._todo.qsize() if self._threads < self._width else 0
            if waiting and not poll.poll(GROW_MILLISECONDS):
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
        attempts = [Attempt(work, payload, self._shop) for work, payload, _ in wire.parts(message.works, tail)]
        ready = [each for each in attempts if not each.loads and self._admits(each)]
        if ready:
            self._shop.mouth.say(wire.frame(wire.Started(tuple(each.work.handle for each in ready))))
        for each in ready:
            self._start(each, judged=True)
        for each in attempts:
            if each.loads:
                self._start(each, judged=False)

    def _admits(self, attempt: Attempt) -> bool:
        refused = attempt.judge()
        if refused is not None:
            self._done.put((refused, b""))
        return refused is None

    def _start(self, attempt: Attempt, *, judged: bool) -> None:
        if judged and attempt.job_type is not None and attempt.job_type.is_async:
            self._on_loop(attempt)
        else:
            self._todo.put((attempt, judged))

    def _on_loop(self, attempt: Attempt) -> None:
        if self._loop is None:
            self._loop = Loop(self._done)
        self._loop.run(attempt)

    def _grow(self, count: int) -> None:
        for _ in range(count):
            _thread(self._work)
        self._threads += count

    def _work(self) -> None:
        while True:
            attempt, judged = self._todo.get()
            if not judged:
                if not self._admits(attempt):
                    continue
                self._shop.mouth.say(attempt.started())
                if attempt.job_type is not None and attempt.job_type.is_async:
                    self._on_loop(attempt)
                    continue
            self._done.put(contextvars.copy_context().run(attempt.run))

    def _write(self) -> None:
        while True:
            endings = [self._done.get()]
            try:
                while len(endings) < ENDINGS_MAX:
                    endings.append(self._done.get_nowait())
            except queue.Empty:
                pass
            self._shop.mouth.say(*wire.ended_frames(endings))


class Loop:
    """One event loop on a thread of its own. Our tasks start eagerly (3.12); the loop's factory is untouched."""

    def __init__(self, done: queue.SimpleQueue[tuple[Ending, bytes]]) -> None:
        self._done = done
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
        self._done.put(ended)

    def _cancel(self, handle: int) -> None:
        task = self._tasks.get(handle)
        if task is not None:
            task.cancel()


def _thread(target: Any) -> None:
    threading.Thread(target=target, daemon=True).start()
