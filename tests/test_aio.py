"""`app.aio` and many threads, end to end against the embedded store: nothing is lost, doubled or mixed up."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from benteng.aio import AsyncReceipt
from benteng.app import Benteng
from benteng.contract import Contract, Slug, Target
from benteng.decide import Disposition
from benteng.errors import Conflict, KeyringError, PolicyError, Refused
from benteng.gate import JobSpec
from benteng.lifecycle import State
from benteng.receipt import NotCompleted
from benteng.store.open import open_consumer
from benteng.store.records import LeaseProof, Settlement
from benteng.verdict import ADMIT, Refuse

SECONDS_MAX = 30


class Order(Contract):
    """A contract with an identity."""

    target: Target
    step: Slug = "one"


@pytest.fixture
def dsn(tmp_path):
    """Return the address of a fresh store."""
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def app(tmp_path, dsn):
    """Return an application with a LOW type, and others with an operation, a demanded signature and a loader."""
    (tmp_path / "benteng.toml").write_text(f'dsn = "{dsn}"\n')
    (tmp_path / "benteng.toml").chmod(0o600)
    app = Benteng(config=tmp_path)

    @app.job
    def greet(name: str) -> str:
        return name

    @app.job("order@1", operation=("target",))
    def order(payload: Order) -> None: ...

    @app.job("sealed@1", signed=True)
    def sealed(payload: Order) -> None: ...

    @app.job("looked@1")
    def looked(payload: Order) -> None: ...

    @app.evidence("answer")
    def answer(payload: Order) -> bool:
        ASKED.set()
        return ANSWERED.wait(SECONDS_MAX)

    @app.check("looked@1", needs="answer")
    def answered(payload, came):
        return ADMIT if came else Refuse("T-answer", "nobody answered")

    with closing(app):
        yield app


ASKED, ANSWERED = threading.Event(), threading.Event()
"""What the loader is for, and what it waits for."""


def test_each_coroutine_gets_its_own_receipt(app):
    """A crowd of coroutines enqueues as many jobs, each once."""

    async def crowd():
        return await asyncio.gather(
            *(app.aio.enqueue("greet", {"name": f"n{n}"}, request_id=f"r{n}") for n in range(50))
        )

    receipts = asyncio.run(crowd())

    assert 50 == len({each.job_id for each in receipts})
    assert not any(each.duplicate for each in receipts)
    assert 50 == len(app.status([each.job_id for each in receipts]))


def test_what_one_lacks_stops_no_other(app):
    """A refusal, a conflict, a demand that the ledger does not meet and a missing key: each reaches its own caller."""

    async def crowd():
        enqueue = app.aio.enqueue
        await enqueue("order", {"target": "web-1"})
        return await asyncio.gather(
            enqueue("greet", {"name": "ana"}),
            enqueue("greet", {"nam": "ana"}),
            enqueue("order", {"target": "web-1", "step": "two"}),
            enqueue("greet", {"name": "ben"}, durability="D2"),
            enqueue("sealed", {"target": "web-2"}),
            enqueue("order", {"target": "web-1"}),
            return_exceptions=True,
        )

    good, refused, conflict, weak, unsigned, again = asyncio.run(crowd())

    assert isinstance(good, AsyncReceipt)
    assert (Refused, Conflict) == (type(refused), type(conflict))
    assert ("P-unknown", "S-durability") == (refused.rule, weak.rule)
    assert (PolicyError, KeyringError) == (type(weak), type(unsigned))
    assert again.duplicate


def test_same_operation_at_once_is_one_job(app):
    """Coroutines and threads that race for one operation get one job's receipt."""

    async def crowd():
        return await asyncio.gather(*(app.aio.enqueue("order", {"target": "web-1"}) for _ in range(10)))

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(app.enqueue, "order", {"target": "web-1"}) for _ in range(4)]
        receipts = [*asyncio.run(crowd()), *(call.result(SECONDS_MAX) for call in calls)]

    assert 1 == len({each.job_id for each in receipts})
    assert [False] == [each.duplicate for each in receipts if not each.duplicate]


def test_loaders_do_not_run_in_the_event_loop(app):
    """An evidence loader may do I/O, even wait for what another coroutine does."""

    async def work():
        looking = asyncio.create_task(app.aio.enqueue("looked", {"target": "web-1"}))
        await asyncio.to_thread(ASKED.wait, SECONDS_MAX)
        ANSWERED.set()
        return await looking

    assert asyncio.run(work()).state is State.READY


def test_receipt_waits_without_blocking_the_loop(app, dsn):
    """A coroutine waits for the result while another one works."""

    async def work():
        receipt = await app.aio.enqueue("greet", {"name": "ana"})
        waiting = asyncio.create_task(receipt.result(SECONDS_MAX))
        await asyncio.to_thread(complete_one, dsn, receipt.job_id, b'"Halo"')
        return await waiting, await receipt.status()

    result, status = asyncio.run(work())

    assert result == "Halo"
    assert status.state is State.COMPLETED


def complete_one(dsn, job_id, result):
    """Do what a worker does: claim a job, and complete it."""
    with closing(open_consumer(dsn, "default")) as consumer:
        (grant,) = consumer.claim(1, ["greet@1"])
        assert job_id == grant.job.id
        proof = LeaseProof(job_id, grant.lease.fence, grant.lease.token)
        consumer.settle([Settlement(proof, Disposition.COMPLETE, result=result)])


def test_wait_has_an_end(app):
    """A job that nobody works on is not waited for for ever, and a cancelled one has no result."""

    async def work():
        receipt = await app.aio.enqueue("greet", {"name": "ana"})
        with pytest.raises(NotCompleted, match="still ready"):
            await receipt.wait(0)
        assert await app.aio.cancel(receipt.job_id, "a test") is State.CANCELLED
        assert await receipt.wait() is State.CANCELLED
        with pytest.raises(NotCompleted, match="is cancelled"):
            await receipt.result()
        assert [receipt.job_id] == [each.job_id for each in await app.aio.status([receipt.job_id])]

    asyncio.run(work())


def test_enqueue_many_keeps_the_order_beyond_one_commit(app):
    """More than the store takes at a time: several commits, one answer for each job, in order."""
    specs = [JobSpec("greet", {"name": f"n{n}"}) for n in range(1_001)]
    specs[1_000] = JobSpec("greet", {"nam": "x"})

    answers = asyncio.run(app.aio.enqueue_many(specs))

    assert 1_000 == len({said.job_id for said in answers if isinstance(said, AsyncReceipt)})
    assert isinstance(answers[1_000], Refused)


def test_threads_get_their_own_receipts(app):
    """Threads share commits, and each gets the receipt of its own job."""
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: (n, app.enqueue("order", {"target": f"web-{n}"}).job_id), range(40)))

    again = {n: app.enqueue("order", {"target": f"web-{n}"}) for n, _ in made}

    assert 40 == len({job_id for _, job_id in made})
    assert dict(made) == {n: receipt.job_id for n, receipt in again.items()}


def test_application_is_used_on_both_sides_of_a_fork(app):
    """A child opens its own store; the parent's goes on."""
    app.enqueue("greet", {"name": "before"})
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writes, app.enqueue("greet", {"name": "child"}).job_id.encode())
        finally:
            os._exit(0)
    os.close(writes)

    job_id = os.read(reads, 100).decode()
    os.close(reads)
    os.waitpid(child, 0)

    assert [job_id] == [each.job_id for each in app.status([job_id])]
    assert app.enqueue("greet", {"name": "after"}).state is State.READY


def test_close_answers_those_who_wait_and_the_next_use_opens_again(app):
    """Nobody is left behind by a close, and an application may be used after it."""
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(app.enqueue, "greet", {"name": f"n{n}"}) for n in range(8)]
        jobs = [call.result(SECONDS_MAX).job_id for call in calls]
    app.close()

    assert 8 == len(app.status(jobs))
