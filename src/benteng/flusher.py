"""Many callers, one at the store: who asks while a flush is under way is answered by the next one.

No timer: a flush begins when the one before it has returned, so a lone caller waits for nobody and a crowd shares one
commit. A thread that finds nobody flushing does it itself, without a hop, and then the first of those who wait goes on;
callers on event loops are served by one thread. Each gets its own answer or its own error, and nobody another's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from benteng.errors import BentengError, Busy, StoreError, StoreUnavailable

if TYPE_CHECKING:
    import asyncio

Q = TypeVar("Q")
A = TypeVar("A")

WAITING_MAX = 10_000
"""Callers that may wait at a time. One more is told Busy, and nothing of it was stored."""


class Flusher(Generic[Q, A]):
    """Takes questions one by one from any thread and any event loop, and asks them together.

    flush        returns one answer for each question, in order; an answer that is an error is raised to that caller
                 alone, and what `flush` raises to every caller of its batch
    batch_max    most questions in one flush
    waiting_max  most callers that wait; beyond it Busy

    Not for use across a fork: the child makes its own.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Q]], Sequence[A | BentengError]],
        *,
        batch_max: int,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._flush = flush
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._idle = threading.Condition(threading.Lock())
        self._queue: deque[_Waiter[Q, A]] = deque()
        self._led = False
        self._closed = False
        self._server: ThreadPoolExecutor | None = None

    def call(self, question: Q) -> A:
        """Ask from a thread, which waits. Raises the question's own error, Busy, and StoreError after `close`."""
        waiter = _ThreadWaiter[Q, A](question)
        try:
            self._join(waiter)
            waiter.wait()
            if waiter.leads:
                self._flush_once()
        finally:
            self._leave(waiter)
        return waiter.result()

    async def ask(self, question: Q) -> A:
        """Ask from an event loop. Raises as `call`.

        Cancelled before its batch is taken, the question is never asked; after that it may have been.
        """
        waiter = _LoopWaiter[Q, A](question)
        self._join(waiter)
        return await waiter.future

    @property
    def waiting(self) -> int:
        """How many wait for the flush after the one that is under way."""
        return len(self._queue)

    @property
    def is_closed(self) -> bool:
        """Whether nobody is let in any more."""
        return self._closed

    def close(self) -> None:
        """Let those who wait be answered, take nobody else, and end the thread. Safe to call twice."""
        with self._idle:
            self._closed = True
            while self._led:
                self._idle.wait()
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()

    def _join(self, waiter: _Waiter[Q, A]) -> None:
        with self._idle:
            if self._closed:
                raise StoreError("the application was closed while it was in use. Try again")
            if len(self._queue) >= self._waiting_max:
                raise Busy(f"{self._waiting_max} callers wait for the store already. Send fewer at a time")
            self._queue.append(waiter)
            if not self._led:
                self._led = True
                self._hand_over(waiter)

    def _leave(self, waiter: _ThreadWaiter[Q, A]) -> None:
        """Let the next one lead. A thread that was interrupted while it waited is not asked for any more."""
        with self._idle:
            if not waiter.is_answered and waiter in self._queue:
                self._queue.remove(waiter)
        if waiter.leads:
            self._pass_on()

    def _pass_on(self) -> None:
        with self._idle:
            if self._queue:
                self._hand_over(self._queue[0])
            else:
                self._led = False
                self._idle.notify_all()

    def _hand_over(self, waiter: _Waiter[Q, A]) -> None:
        """Make a waiter lead, or the thread for one on an event loop. Called with the lock held."""
        if isinstance(waiter, _ThreadWaiter):
            waiter.lead()
            return
        if self._server is None:
            self._server = ThreadPoolExecutor(1, thread_name_prefix="benteng-flusher")
        try:
            self._server.submit(self._flush_all)
        except RuntimeError:  # the interpreter is ending, and starts nothing any more
            self._led = False
            batch, self._queue = list(self._queue), deque()
            _deliver(batch, [StoreError("the interpreter is ending: the job was not sent")] * len(batch))

    def _flush_all(self) -> None:
        while self._queue:
            self._flush_once()
        self._pass_on()

    def _flush_once(self) -> None:
        """Ask for those at the front of the queue, and answer every one of them, whatever happens."""
        with self._idle:
            taken = [self._queue.popleft() for _ in range(min(self._batch_max, len(self._queue)))]
        batch = [waiter for waiter in taken if not waiter.is_gone]
        said: Sequence[A | Exception] = [StoreUnavailable(INTERRUPTED)] * len(batch)
        try:
            if batch:
                said = self._flush([waiter.question for waiter in batch])
        except Exception as error:  # noqa: BLE001 - it belongs to those who asked, and is raised there
            said = [error] * len(batch)
        finally:
            _deliver(batch, said)


INTERRUPTED = "the thread that asked for several callers was interrupted: this may have been stored, or not. Ask again"


class _ThreadWaiter(Generic[Q, A]):
    """A thread that waits for its answer, or for its turn to lead."""

    def __init__(self, question: Q) -> None:
        self.question = question
        self.leads = False
        self.is_gone = False
        self._said: list[A | Exception] = []
        self._bell = threading.Lock()
        self._bell.acquire()

    def wait(self) -> None:
        """Wait for the answer or for the lead, whichever comes first."""
        self._bell.acquire()

    def lead(self) -> None:
        """Be the one who flushes next."""
        self.leads = True
        self._bell.release()

    def answer(self, said: A | Exception) -> None:
        """Take the answer, from whichever thread flushes."""
        self._said.append(said)
        if not self.leads:
            self._bell.release()

    @property
    def is_answered(self) -> bool:
        """Whether the answer has come."""
        return bool(self._said)

    def result(self) -> A:
        """Return the answer, or raise the error that it is."""
        (said,) = self._said
        if isinstance(said, Exception):
            raise said
        return said


class _LoopWaiter(Generic[Q, A]):
    """A coroutine that waits for its answer."""

    def __init__(self, question: Q) -> None:
        import asyncio

        self.question = question
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[A] = self.loop.create_future()

    @property
    def is_gone(self) -> bool:
        """Whether it was cancelled."""
        return self.future.cancelled()


_Waiter = _ThreadWaiter[Q, A] | _LoopWaiter[Q, A]


def _deliver(batch: Sequence[_Waiter[Q, A]], said: Sequence[A | Exception]) -> None:
    """Answer each waiter; an event loop is woken once for all of its own."""
    of_loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], A | Exception]]] = {}
    for waiter, each in zip(batch, said, strict=True):
        if isinstance(waiter, _ThreadWaiter):
            waiter.answer(each)
        else:
            of_loops.setdefault(waiter.loop, []).append((waiter.future, each))
    for loop, answers in of_loops.items():
        with suppress(RuntimeError):  # a loop that was closed has nobody who waits
            loop.call_soon_threadsafe(_resolve, answers)


def _resolve(answers: Sequence[tuple[asyncio.Future[Any], object]]) -> None:
    for future, said in answers:
        if future.done():  # cancelled meanwhile
            continue
        if isinstance(said, Exception):
            future.set_exception(said)
        else:
            future.set_result(said)
