"""Many callers, one flush: who is answered by which batch, with what, and what an interruption or an end does."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from benteng.errors import Busy, Refused, StoreError, StoreUnavailable
from benteng.flusher import Flusher
from tests.support.interrupts import interrupted_after
from tests.support.waiting import until

SECONDS_MAX = 30


class Desk:
    """What is flushed to: notes each batch; its first flush waits until it is let go."""

    def __init__(self):
        self.batches = []
        self.threads = []
        self.started = threading.Event()
        self.go = threading.Event()

    def flush(self, questions):
        """Answer each number with its double; the first batch waits."""
        self.batches.append(list(questions))
        self.threads.append(threading.get_ident())
        self.started.set()
        assert self.go.wait(SECONDS_MAX)
        return [said_of(question) for question in questions]


def said_of(question):
    """Return the double of a number, or an error for a negative one."""
    return 2 * question if question >= 0 else Refused("T-test", f"{question} is negative")


@pytest.fixture
def desk():
    """Return a desk."""
    return Desk()


@pytest.fixture
def flusher(desk):
    """Return a flusher to the desk; whatever a test leaves behind is let go."""
    flusher = Flusher(desk.flush, batch_max=100, waiting_max=20)
    yield flusher
    desk.go.set()
    flusher.close()


@pytest.fixture
def interruptible():
    """Let SIGINT interrupt, as at a terminal: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def threads(desk):
    """Return threads that call; they end once the desk is let go."""
    with ThreadPoolExecutor(32) as threads:
        yield threads
        desk.go.set()


def queue_up(flusher, desk, threads, questions):
    """Have a first caller flush, and others wait in this order; return the first one's future, and theirs."""
    first = threads.submit(flusher.call, 0)
    assert desk.started.wait(SECONDS_MAX)
    futures = []
    for number, question in enumerate(questions, 1):
        futures.append(threads.submit(flusher.call, question))
        until(lambda number=number: flusher.waiting == number)
    return first, futures


def test_lone_caller_flushes_in_its_own_thread(flusher, desk):
    """Who finds nobody flushing pays for no hop to another thread."""
    desk.go.set()

    assert flusher.call(7) == 14
    assert [threading.get_ident()] == desk.threads


def test_who_comes_during_a_flush_shares_the_next(flusher, desk, threads):
    """Nobody waits for a timer: one flush for the first, one for all who came meanwhile, in their order."""
    first, others = queue_up(flusher, desk, threads, range(1, 11))

    desk.go.set()

    assert first.result(SECONDS_MAX) == 0
    assert [2 * n for n in range(1, 11)] == [each.result(SECONDS_MAX) for each in others]
    assert [[0], list(range(1, 11))] == desk.batches


def test_batch_is_bounded(desk, threads):
    """A crowd is flushed in batches of the most that the store takes."""
    flusher = Flusher(desk.flush, batch_max=4)
    _, others = queue_up(flusher, desk, threads, range(1, 11))

    desk.go.set()

    assert [2 * n for n in range(1, 11)] == [each.result(SECONDS_MAX) for each in others]
    assert [1, 4, 4, 2] == [len(batch) for batch in desk.batches]


def test_error_reaches_its_own_caller_alone(flusher, desk, threads):
    """What is wrong with one question is raised to who asked it."""
    _, (one, bad, two) = queue_up(flusher, desk, threads, (1, -1, 2))

    desk.go.set()

    assert [2, 4] == [one.result(SECONDS_MAX), two.result(SECONDS_MAX)]
    with pytest.raises(Refused, match="-1 is negative"):
        bad.result(SECONDS_MAX)


def test_failed_flush_reaches_its_batch_and_no_other(desk, threads):
    """When the store is away, those who asked hear of it; the next ones ask again."""

    def flush(questions):
        said = desk.flush(questions)
        if 1 in questions:
            raise StoreUnavailable("away")
        return said

    flusher = Flusher(flush, batch_max=2)
    _, others = queue_up(flusher, desk, threads, (1, 2, 3))
    desk.go.set()

    errors = [each.exception(SECONDS_MAX) for each in others]

    assert [StoreUnavailable, StoreUnavailable, type(None)] == [type(error) for error in errors]
    assert others[2].result() == 6


def test_too_many_callers_are_told_busy(flusher, desk, threads):
    """The queue has an end; who is beyond it hears so at once."""
    queue_up(flusher, desk, threads, range(1, 21))

    with pytest.raises(Busy, match="20 callers"):
        flusher.call(21)


def test_coroutines_are_flushed_together(flusher, desk):
    """Coroutines of one loop are one batch behind the first, and the loop is not blocked meanwhile."""

    async def crowd():
        tasks = [asyncio.create_task(flusher.ask(n)) for n in range(10)]
        await asyncio.to_thread(desk.started.wait, SECONDS_MAX)
        desk.go.set()
        return await asyncio.gather(*tasks)

    assert [2 * n for n in range(10)] == asyncio.run(crowd())
    assert list(range(10)) == [n for batch in desk.batches for n in batch]
    assert threading.get_ident() not in desk.threads


def test_cancelled_coroutine_takes_nobody_along(flusher, desk):
    """Cancelled before its batch: not asked. Cancelled during it: asked once. All others get their own answer, once."""

    async def crowd():
        first = asyncio.create_task(flusher.ask(0))
        await asyncio.to_thread(desk.started.wait, SECONDS_MAX)
        tasks = [asyncio.create_task(flusher.ask(n)) for n in range(1, 6)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        first.cancel()
        await asyncio.sleep(0)
        desk.go.set()
        return await asyncio.gather(first, *tasks, return_exceptions=True)

    first, one, cancelled, *rest = asyncio.run(crowd())

    assert [asyncio.CancelledError] * 2 == [type(first), type(cancelled)]
    assert [2, 6, 8, 10] == [one, *rest]
    assert [[0], [1, 3, 4, 5]] == desk.batches


def test_several_loops_and_threads_share_one_flusher(flusher, desk, threads):
    """Each gets its own answers, on its own loop."""
    desk.go.set()

    async def some(start):
        return await asyncio.gather(*(flusher.ask(n) for n in range(start, start + 5)))

    loops = [threads.submit(asyncio.run, some(start)) for start in (0, 5)]
    calls = [threads.submit(flusher.call, n) for n in (10, 11, 12)]

    assert [2 * n for n in range(10)] == [n for loop in loops for n in loop.result(SECONDS_MAX)]
    assert [20, 22, 24] == [call.result(SECONDS_MAX) for call in calls]
    assert sorted(n for batch in desk.batches for n in batch) == list(range(13))


def test_close_waits_for_those_who_wait(flusher, desk, threads):
    """At the end nobody is left without an answer, and nobody new gets in."""
    first, others = queue_up(flusher, desk, threads, (1, 2))
    closing_ = threads.submit(flusher.close)
    until(lambda: flusher.is_closed)

    with pytest.raises(StoreError, match="closed"):
        flusher.call(3)
    with pytest.raises(TimeoutError):
        closing_.result(0.2)  # it has not ended: somebody still waits
    desk.go.set()
    closing_.result(SECONDS_MAX)

    assert [0, 2, 4] == [each.result(SECONDS_MAX) for each in (first, *others)]


def test_interrupted_leader_leaves_nobody_waiting(desk, threads):
    """When the thread that flushes is interrupted, those of its batch hear that nobody knows, and the next goes on."""

    def flush(questions):
        said = desk.flush(questions)
        if 1 in questions:
            raise KeyboardInterrupt
        return said

    with closing(Flusher(flush, batch_max=2)) as flusher:
        _, others = queue_up(flusher, desk, threads, (1, 2, 3))
        desk.go.set()

        assert isinstance(others[0].exception(SECONDS_MAX), KeyboardInterrupt)
        assert isinstance(others[1].exception(SECONDS_MAX), StoreUnavailable)
        assert others[2].result(SECONDS_MAX) == 6


def test_interrupted_before_it_waits_it_leaves_nobody_waiting(flusher, desk):
    """Ctrl-C may come between joining and waiting: who would have led then does not lead for ever."""
    with interrupted_after("Flusher._join"):
        flusher.call(1)
    desk.go.set()

    assert 4 == flusher.call(2)
    assert [[2]] == desk.batches


@pytest.mark.usefixtures("interruptible")
def test_interrupted_waiter_is_not_asked_for(flusher, desk, threads):
    """Ctrl-C while waiting takes the question back, and the others go on."""
    first, others = queue_up(flusher, desk, threads, (1,))
    main = threading.get_ident()
    threads.submit(lambda: (until(lambda: flusher.waiting == 2), signal.pthread_kill(main, signal.SIGINT)))

    with pytest.raises(KeyboardInterrupt):
        flusher.call(2)
    desk.go.set()

    assert [0, 2] == [each.result(SECONDS_MAX) for each in (first, *others)]
    assert [[0], [1]] == desk.batches
