"""What enqueue answers: which job stands for the operation, how it is doing, and what it returned."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from benteng.errors import BentengError
from benteng.lifecycle import TERMINAL, State

if TYPE_CHECKING:
    from benteng.lobby import Lobby
    from benteng.store.records import Receipt as Admitted
    from benteng.store.records import Status

DUPLICATE = "duplicate"
POLL_SECONDS_MIN = 0.01
POLL_SECONDS_MAX = 0.5


class NotCompleted(BentengError):  # noqa: N818 - named by what happened, like the others
    """The job did not complete: it is cancelled, discarded or in quarantine; or the wait was not long enough."""


class Opens(Protocol):
    """An application, as far as a receipt needs one: it may have been closed meanwhile, and is opened again."""

    @property
    def lobby(self) -> Lobby:
        """Where callers wait for the store."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What every receipt says.

    job_id     which job stands for the operation
    state      where it was when it was enqueued
    duplicate  the operation existed already: this is the first job's receipt
    """

    job_id: str
    state: State
    duplicate: bool
    _app: Opens

    @classmethod
    def of(cls, admitted: Admitted, app: Opens) -> Self:
        """Return what a caller gets for what the store said."""
        return cls(admitted.job_id, admitted.state or State.READY, admitted.disposal == DUPLICATE, app)


@dataclass(frozen=True, slots=True)
class Receipt(Answer):
    """What `app.enqueue` answers."""

    def status(self) -> Status:
        """Return how the job is doing now. Raises NotCompleted when the store no longer knows it."""
        return known(self.job_id, self._app.lobby.status(self.job_id))

    def wait(self, timeout_seconds: float = 60.0) -> State:
        """Wait until the job has ended or is in quarantine; return its state. Raises NotCompleted at the timeout."""
        return self._ended(timeout_seconds).state

    def result(self, timeout_seconds: float = 60.0) -> Any:
        """Wait, and return what the handler returned, as JSON values. Raises NotCompleted when it did not complete."""
        return value_of(self._ended(timeout_seconds))

    def _ended(self, timeout_seconds: float) -> Status:
        polls = Polls(timeout_seconds)
        while (pause := polls.pause_after(status := self.status())) is not None:
            time.sleep(pause)
        return status


class Polls:
    """When to look again at a job that somebody waits for, and when to give up."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._end = time.monotonic() + timeout_seconds
        self._pause = POLL_SECONDS_MIN

    def pause_after(self, status: Status) -> float | None:
        """Return how many seconds later to look again; None: it has ended. Raises NotCompleted at the timeout."""
        if status.state in TERMINAL or status.state is State.QUARANTINED:
            return None
        if time.monotonic() >= self._end:
            msg = f"job {status.job_id} is still {status.state} after {self._timeout_seconds} s"
            raise NotCompleted(msg)
        pause, self._pause = self._pause, min(self._pause * 1.5, POLL_SECONDS_MAX)
        return pause


def known(job_id: str, status: Status | None) -> Status:
    """Return a status that must be there. Raises NotCompleted when the store no longer knows the job."""
    if status is None:
        msg = f"job {job_id} is not known to the store"
        raise NotCompleted(msg)
    return status


def value_of(status: Status) -> Any:
    """Return what the handler returned, as JSON values. Raises NotCompleted when the job did not complete."""
    if status.state is not State.COMPLETED:
        msg = f"job {status.job_id} is {status.state}: {status.error or status.reason or 'no reason given'}"
        raise NotCompleted(msg)
    return None if status.result is None else msgspec.json.decode(status.result)
