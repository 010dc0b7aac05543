"""Where callers wait for the gate together: threads and coroutines, single jobs and questions about them.

Each caller reads its own spec, and runs the type's evidence loaders, while another one's flush is under way; what can
change in the ledger is asked after that, in the flush (gate.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benteng.flusher import Flusher
from benteng.gate import Gate, JobSpec, Prepared
from benteng.store.contract import BATCH_MAX
from benteng.store.records import Receipt, Status


class Lobby:
    """One open gate, for many callers at a time."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._admissions = Flusher[Prepared, Receipt](gate.admit, batch_max=BATCH_MAX)
        self._statuses = Flusher[str, Status | None](self._statuses_of, batch_max=BATCH_MAX)

    def enqueue(self, spec: JobSpec) -> Receipt:
        """Admit one job for a thread. Raises as `Gate.enqueue`, and Busy when too many wait."""
        return self._admissions.call(self.gate.prepare(spec))

    async def enqueue_awaited(self, spec: JobSpec) -> Receipt:
        """Admit one job for a coroutine: loaders, which may do I/O, run in a thread."""
        slow = self.gate.registry.has_loaders(spec.type)
        prepared = await asyncio.to_thread(self.gate.prepare, spec) if slow else self.gate.prepare(spec)
        return await self._admissions.ask(prepared)

    def status(self, job_id: str) -> Status | None:
        """Return how a job of this origin is doing."""
        return self._statuses.call(job_id)

    async def status_awaited(self, job_id: str) -> Status | None:
        """Return how a job of this origin is doing, for a coroutine."""
        return await self._statuses.ask(job_id)

    def close(self) -> None:
        """Let those who wait be answered, then give back the store's connection."""
        self._admissions.close()
        self._statuses.close()
        self.gate.producer.close()

    def _statuses_of(self, job_ids: Sequence[str]) -> list[Status | None]:
        found = {status.job_id: status for status in self.gate.producer.status(job_ids)}
        return [found.get(job_id) for job_id in job_ids]
