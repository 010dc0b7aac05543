"""The keeper's process: round after round until it is told to stop. It outlives every outage of the store.

One of several keepers leads, by a leased row; the others look now and then whether it still does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from contextlib import closing
from dataclasses import dataclass
from random import Random, SystemRandom
from types import FrameType
from typing import NoReturn, Protocol

import msgspec

from benteng.errors import BentengError, StoreDamaged, StoreError, StoreUnavailable
from benteng.keeper.sweeper import Round, sweep
from benteng.redact import clean_line
from benteng.store.open import open_keeper

LEAD_SECONDS = 5.0
PAUSE_SECONDS_MAX = 0.5
PAUSE_SECONDS_MIN = 0.01
BACKOFF_SECONDS_MAX = 2.0
SETTINGS_BYTES_MAX = 65_536
OK, INTERNAL, REFUSED = 0, 70, 78


class Say(Protocol):
    """Tells what happened."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Tell it."""
        ...


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """What a keeper is started with. pause_seconds_max: how long it may sleep with nothing due."""

    dsn: str
    environment: str = "dev"
    pause_seconds_max: float = PAUSE_SECONDS_MAX
    lead_seconds: float = LEAD_SECONDS


def run_keeper(settings: KeeperSettings, say: Say, *, until_closed: int | None = None) -> int:
    """Keep until SIGTERM or SIGINT, or until the other end of a descriptor is closed.

    Returns the exit code: 0, 70 damaged store, 78 refused settings.
    """
    with closing(Bell(until_closed)) as bell:
        try:
            return _keep(settings, bell, say, SystemRandom())
        except StoreError as error:
            say("store_damaged", why=clean_line(str(error)))
            return INTERNAL
        except BentengError as error:
            say("refused", why=clean_line(str(error)))
            return REFUSED


def main() -> NoReturn:
    """Be a keeper that a worker started: settings as a line of JSON on stdin, which ends when the worker does."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as pipe:  # unbuffered: select must see the end
        settings = msgspec.json.decode(pipe.readline(SETTINGS_BYTES_MAX), type=KeeperSettings)
    sys.exit(run_keeper(settings, _say, until_closed=sys.stdin.fileno()))


class Bell:
    """Wakes the loop when a signal arrives or its owner is gone, so that no sleep delays the end."""

    def __init__(self, until_closed: int | None = None) -> None:
        self.rung = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched = [self._reader] if until_closed is None else [self._reader, until_closed]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ring)

    def wait(self, seconds: float) -> None:
        """Sleep, at most until it rings."""
        if not self.rung:
            ready, _, _ = select.select(self._watched, [], [], seconds)
            self.rung = bool(ready)

    def close(self) -> None:
        """Give back the pipe."""
        os.close(self._reader)
        os.close(self._writer)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.rung = True
        with contextlib.suppress(OSError):
            os.write(self._writer, b".")


def _keep(settings: KeeperSettings, bell: Bell, say: Say, rng: Random) -> int:
    failures = 0
    while not bell.rung:
        try:
            with closing(open_keeper(settings.dsn, environment=settings.environment)) as store:
                while not bell.rung:
                    done = sweep(store, settings.lead_seconds)
                    failures = _recovered(failures, say)
                    _tell(done, say)
                    bell.wait(pause_seconds(done, settings, rng))
        except StoreDamaged:
            raise
        except StoreUnavailable as error:
            if not failures:
                say("store_away", who="keeper", why=clean_line(str(error)))
            failures += 1
            bell.wait(min(PAUSE_SECONDS_MAX * failures, BACKOFF_SECONDS_MAX) * (0.5 + rng.random()))
    return OK


def pause_seconds(done: Round, settings: KeeperSettings, rng: Random) -> float:
    """Return how long to sleep after a round: to the next due job or lease, jittered, never longer than allowed."""
    longest = settings.pause_seconds_max
    if not done.leading:
        return min(longest, settings.lead_seconds / 3) * (0.75 + rng.random() / 2)
    if done.next_seconds is None:
        return longest
    return min(longest, max(PAUSE_SECONDS_MIN, done.next_seconds))


def _recovered(failures: int, say: Say) -> int:
    if failures:
        say("store_back", who="keeper")
    return 0


def _tell(done: Round, say: Say) -> None:
    if done.reclaimed or done.expired:
        say("kept", reclaimed=done.reclaimed, ready=done.ready, woken=done.woken, expired=done.expired)


def _say(event: str, /, **fields: object) -> None:
    shown = " ".join(f"{name}={value}" for name, value in fields.items())
    with contextlib.suppress(OSError):
        print(f"keeper: {event} {shown}", file=sys.stderr, flush=True)  # noqa: T201 - talk goes to stderr
