"""The processes beside a pool's cells: its zygote, the warden that makes it, its egress broker. They fall together.

A zygote is started when there is none, later each time; it may import when its sockets have a broker, and make cells
when what it imported was approved. When one of the three is lost, the yard is told, and lets all of them fall.
Trust: nothing that a zygote says; of warden and broker what wire.PERMITTED lets them say.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benteng.policy import TypePolicy
from benteng.redact import clean_line
from benteng.worker import wire
from benteng.worker.asked import DesertedError
from benteng.worker.egress import desk
from benteng.worker.egress.desk import Desk
from benteng.worker.hatchery import Sight
from benteng.worker.means import Means
from benteng.worker.nursery import Nursery, NurseryState
from benteng.worker.watched import Heard, Watched

BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why the zygote says that the app cannot be used."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the crew is of no use any more: what became of its zygote. `ours`: neither it nor a cell is at fault."""

    why: str
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Ears:
    """Who hears what the crew says: the time comes along.

    spawned, exited  a cell runs, or is dead and reaped; they raise ProtocolError for one that cannot be
    seen             how a cell looks from outside
    registered       a flight may connect;  used: what an ended one did
    lost             one of the crew is gone or not to be trusted
    """

    spawned: Callable[[wire.Spawned, float], None]
    exited: Callable[[wire.Exited, float], None]
    seen: Callable[[int, Sight, float], None]
    registered: Callable[[int, float], None]
    used: Callable[[wire.Used], None]
    lost: Callable[[Loss, float], None]


class Crew:
    """One zygote at a time, and whom it needs.

    `reported`: the policies of what the zygote imported, until they are taken. `refused`: why there will be no zygote.
    `deserted`: warden or broker are gone for good.
    """

    def __init__(self, means: Means, selector: selectors.BaseSelector, ears: Ears) -> None:
        self._pool = means.nest.pool
        self._selector = selector
        self._ears = ears
        self._say = means.say
        self.hatchery = means.hatchery
        self.nursery = Nursery(means.nest, means.hatchery)
        connect = means.broker or self._employ
        self.desk = Desk(self._pool, selector, self._broker_ears(), connect) if self._pool.egress else None
        self._zygote: Watched | None = None
        self._warden: Watched | None = None
        self._again_at = 0.0
        self._failures = 0
        self._since = 0.0
        self._approved = False
        self.reported: dict[str, TypePolicy] | None = None
        self.refused: Unusable | None = None
        self.deserted = False

    @property
    def stands(self) -> bool:
        """Whether the zygote has imported the app."""
        return self.nursery.state is NurseryState.READY

    @property
    def works(self) -> bool:
        """Whether the zygote stands and is approved."""
        return self._approved and self.stands

    @property
    def pids(self) -> frozenset[int]:
        """The pids of zygote and broker, if this process is their parent."""
        return self.hatchery.children

    def approve(self) -> None:
        """Let the zygote that reported make cells: what it imported is what was reviewed."""
        self._approved = True

    # ------------------------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Start a zygote that is due, ask for the broker, and give up a zygote that does not finish its import."""
        if self.nursery.state is NurseryState.DOWN and now >= self._again_at and not (self.refused or self.deserted):
            self._start(now)
        if self.desk is not None:
            self.desk.tick(now)
        starting = self.nursery.state is NurseryState.STARTING
        if starting and now - self._since > self._pool.import_seconds:
            self._ears.lost(Loss("took too long to import the app"), now)

    def sweep(self) -> bool:
        """Delete a piece of the scratch that was dropped; tell whether something is left."""
        left = self.hatchery.sweep()
        self._watch_warden()
        return left

    def wakes_at(self) -> float:
        """Return when a zygote is to be started; inf when there is one."""
        return self._again_at if self.nursery.state is NurseryState.DOWN else float("inf")

    # ------------------------------------------------------------------------------------------------------ life, death

    def say(self, message: wire.Guard | wire.End) -> None:
        """Tell the zygote."""
        self.nursery.say(message)
        self._watch_zygote()

    def spawn(self, theirs: socket.socket, message: wire.Spawn) -> None:
        """Ask the zygote for a cell. Its end of the line is sent along and closed here."""
        self.nursery.spawn(theirs, message)
        self._watch_zygote()

    def fall(self, why: str) -> bool:
        """End the zygote and all its cells; tell whether all of them are surely dead.

        Leases are not prolonged meanwhile; orphans fall to who made the zygote.
        """
        self._say("zygote_lost", pid=self.hatchery.pid, why=why)
        if self._zygote is not None:
            self._zygote.leave()
            self._zygote = None
        dead = self.nursery.stop(0.0)
        self._watch_warden()
        return dead

    def rest(self, now: float) -> None:
        """Start no zygote for a while: longer each time that none has made a cell that died."""
        pause = min(BACKOFF_SECONDS * 2 ** min(self._failures, 16), BACKOFF_SECONDS_MAX)
        self._failures += 1
        self._again_at = now + pause

    def dismiss(self) -> None:
        """Hang up on the broker, which ends it."""
        if self.desk is not None:
            self.desk.stop()

    def _start(self, now: float) -> None:
        self._approved = False
        self._since = now
        try:
            line = self.nursery.start()
            if self.desk is not None:
                self.desk.start(now)
        except OSError as error:
            self.nursery.stop(0.0)
            self._start_later(error, now)
            return
        self._zygote = Watched(self._selector, line, self.nursery, Heard(self._hear_zygote, self._lost_zygote))

    def _start_later(self, error: OSError, now: float) -> None:
        if isinstance(error, DesertedError):
            self.deserted = True
        else:
            self._say("warden_away", why=clean_line(str(error)))
            self.rest(now)

    def _employ(self) -> socket.socket:
        """Have a broker started where the cells are, and return the line to it. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.hatchery.employ(theirs)
            except OSError:
                ours.close()
                raise
        return ours

    # ----------------------------------------------------------------------------------------------------------- zygote

    def _watch_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.refresh()

    def _hear_zygote(self, now: float) -> None:
        for message, tail in self.nursery.receive():
            self._take_zygote(message, tail, now)

    def _take_zygote(self, message: Any, tail: bytes, now: float) -> None:
        match message:
            case wire.Listener() if self.desk is not None:
                self.desk.forward(self.nursery.listener())
            case wire.Ready():
                self.reported = self.nursery.ready(tail)
            case wire.Refuse(rule, text):
                self.refused = Unusable(clean_line(rule), clean_line(text))
            case wire.Spawned():
                self._ears.spawned(message, now)
            case wire.Exited():
                self._ears.exited(message, now)
                self._failures = 0
            case _:
                raise wire.ProtocolError("not for a supervisor")

    def _lost_zygote(self, error: wire.ProtocolError | None, now: float) -> None:
        self._lost(error, "ended", "broke the protocol", now)

    def _lost(self, error: wire.ProtocolError | None, ended: str, broke: str, now: float) -> None:
        if error is not None:
            self._say("suspicious", pid=self.hatchery.pid, why=str(error))
        self._ears.lost(Loss(ended if error is None else broke), now)

    # ----------------------------------------------------------------------------------------------------------- warden

    def _watch_warden(self) -> None:
        """Listen to the line of the hatchery, if it has one: each connection has its own."""
        line, known = self.hatchery.line, self._warden
        if known is not None and known.line is not line:
            known.leave()
            known = self._warden = None
        if known is not None:
            known.refresh()
        elif line is not None:
            self._warden = Watched(self._selector, line, self.hatchery, Heard(self._hear_warden, self._lost_warden))

    def _hear_warden(self, now: float) -> None:
        for message in self.hatchery.hear():
            self._take_warden(message, now)

    def _take_warden(self, message: Any, now: float) -> None:
        match message:
            case wire.Holds():
                pass  # the host that was examined, or one that holds no less
            case wire.Hatched():
                self.nursery.configure()
                self._watch_zygote()
            case wire.Seen(number, layers, below, threads):
                self._ears.seen(number, Sight(frozenset(layers), below, threads), now)
            case _:
                raise wire.ProtocolError("not for a supervisor")

    def _lost_warden(self, error: wire.ProtocolError | None, now: float) -> None:
        self._lost(error, "lost its warden", "has a warden that broke the protocol", now)

    # ----------------------------------------------------------------------------------------------------------- broker

    def _broker_ears(self) -> desk.Ears:
        return desk.Ears(self._listening, self._ears.registered, self._ears.used, self._lost_broker)

    def _listening(self) -> None:
        if self.nursery.state is NurseryState.STARTING:
            self.nursery.brokered()
            self._watch_zygote()

    def _lost_broker(self, why: str, now: float) -> None:
        """Nothing may run without it: what it would have refused would not be asked any more."""
        self._say("broker_lost", why=why)
        self._ears.lost(Loss("lost its egress broker", ours=True), now)
