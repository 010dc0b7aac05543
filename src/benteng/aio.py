"""`app.aio`: the same application for coroutines. Nothing here decides, or talks to a store: the lobby does.

Jobs that many coroutines enqueue at a time are admitted together, by one commit, without a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from benteng.errors import Refused
from benteng.gate import JobSpec
from benteng.lifecycle import State
from benteng.policy import PRIORITY_DEFAULT
from benteng.receipt import Answer, Polls, known, value_of

if TYPE_CHECKING:
    from benteng.app import Benteng
    from benteng.store.records import Status
    from benteng.task import Handler


@dataclass(frozen=True, slots=True)
class AsyncReceipt(Answer):
    """What `await app.aio.enqueue` answers."""

    async def status(self) -> Status:
        """Return how the job is doing now. Raises NotCompleted when the store no longer knows it."""
        return known(self.job_id, await self._app.lobby.status_awaited(self.job_id))

    async def wait(self, timeout_seconds: float = 60.0) -> State:
        """Wait until the job has ended or is in quarantine; return its state. Raises NotCompleted at the timeout."""
        return (await self._ended(timeout_seconds)).state

    async def result(self, timeout_seconds: float = 60.0) -> Any:
        """Wait, and return what the handler returned, as JSON values. Raises NotCompleted when it did not complete."""
        return value_of(await self._ended(timeout_seconds))

    async def _ended(self, timeout_seconds: float) -> Status:
        polls = Polls(timeout_seconds)
        while (  # noqa: ASYNC110 - the store tells nobody when a job has ended
            pause := polls.pause_after(status := await self.status())
        ) is not None:
            await asyncio.sleep(pause)
        return status


class Aio:
    """The verbs of an application for coroutines, on any number of event loops. Made by `app.aio`."""

    def __init__(self, app: Benteng) -> None:
        self._app = app

    async def enqueue(
        self,
        job_type: str | Handler,
        payload: object = None,
        *,
        actor: str = "",
        request_id: str = "",
        priority: int = PRIORITY_DEFAULT,
        delay_seconds: float = 0.0,
        run_at: datetime | None = None,
        durability: str = "D0",
    ) -> AsyncReceipt:
        """Judge a job and let it in, together with those that other coroutines enqueue meanwhile.

        Raises as `app.enqueue`, and Busy when too many wait. Cancelled, it may have been admitted all the same: enqueue
        the same operation again and the receipt says so.
        """
        spec = JobSpec(
            job_type, {} if payload is None else payload, actor, request_id, priority, delay_seconds, run_at, durability
        )
        lobby = self._app.lobby if self._app.is_open else await asyncio.to_thread(lambda: self._app.lobby)
        return AsyncReceipt.of(await lobby.enqueue_awaited(spec), self._app)

    async def enqueue_many(self, specs: Sequence[JobSpec]) -> list[AsyncReceipt | Refused]:
        """Let several jobs in, 250 by each commit, from a thread. Raises as `app.enqueue_many`."""
        answers = await asyncio.to_thread(lambda: self._app.gate.enqueue_many(specs))
        return [said if isinstance(said, Refused) else AsyncReceipt.of(said, self._app) for said in answers]

    async def status(self, job_ids: Sequence[str]) -> list[Status]:
        """Return the jobs of this origin among those asked."""
        return await asyncio.to_thread(self._app.status, job_ids)

    async def cancel(self, job_id: str, reason: str) -> State | None:
        """Cancel a job of this origin and return its state now; None when there was nothing to cancel."""
        return await asyncio.to_thread(self._app.cancel, job_id, reason)
