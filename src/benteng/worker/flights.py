"""A flight: one claimed job on its way through a cell, as the supervisor sees it, and how that ends as an outcome.

What a cell says can only make things worse than what the supervisor saw itself: an end that its state does not permit
kills the cell, and a dead cell is Crashed whatever it said before, unless it had said the end completely.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from msgspec.structs import replace

from benteng.job import Grant
from benteng.outcome import (
    Completed,
    Crashed,
    Interrupted,
    Judged,
    Lost,
    Outcome,
    Permanent,
    Snoozed,
    Successor,
    Suspicious,
    Transient,
    Unstarted,
)
from benteng.policy import TypePolicy
from benteng.redact import Scrubber, clean_line, patterns
from benteng.store.records import LeaseProof, Settlement
from benteng.verdict import Divert, Hold, Refuse
from benteng.worker import framing, wire
from benteng.worker.blocked import blocked, explained
from benteng.worker.wire import BEFORE_START, UNSERIALISABLE, Ending, How, Named

LOG_BYTES_MAX = 128 * 1024
"""Output that a cell may send for one attempt; it stops by itself at half of this, so one that goes on is hostile."""

UNREADABLE = json.dumps({UNSERIALISABLE: "no JSON"}).encode()
TOO_LARGE = json.dumps({UNSERIALISABLE: "too large"}).encode()
NO_SECRETS = Scrubber()
LEAK = "a successor's payload holds a secret of this job [W-leak]"
MARGIN_SHARE = 0.2
MARGIN_SECONDS_MAX = 2.0


class StopReason(StrEnum):
    """Why the supervisor ends an attempt."""

    DEADLINE = "deadline"
    DRAIN = "drain"
    CANCEL = "cancel"
    LEASE = "lease"
    LOST = "lost"
    SCRATCH = "scratch"


@dataclass(slots=True, eq=False)
class Flight:
    """One grant in this worker. Times are seconds of CLOCK_BOOTTIME.

    lease_until  when the cell must be dead if nobody prolongs the lease; the margin is taken off
    deadline     when the attempt is stopped; inf until it was sent to a cell
    judged       whether the supervisor has looked at it
    kill_at      when its cell is killed after a stop;  stop: why it is being stopped
    secrets      what its cell gets and nobody else;  scrubber: takes them out of whatever comes back
    scratch      whether its cell says that the attempt's directory was made; a lie keeps it until the cell's own goes
    connects, refused  what the broker of a pool with `egress` counted for it
    sentences    what the walls blocked, for its error
    """

    handle: int
    grant: Grant
    policy: TypePolicy
    lease_until: float
    deadline: float = float("inf")
    kill_at: float = float("inf")
    stop: StopReason | None = None
    entered_at: float = 0.0
    judged: bool = False
    sent: bool = False
    started: bool = False
    scratch: bool = False
    outcome: Outcome | None = None
    settlement: Settlement | None = None
    logged_bytes: int = 0
    progress: str = ""
    progressed: int = 0
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    scrubber: Scrubber = NO_SECRETS
    connects: int = 0
    refused: int = 0
    sentences: tuple[str, ...] = ()

    @property
    def proof(self) -> LeaseProof:
        """What proves that the attempt is ours."""
        lease = self.grant.lease
        return LeaseProof(lease.job_id, lease.fence, lease.token)

    @property
    def held(self) -> bool:
        """Whether its lease is to be prolonged: also after it said how it ended, until there is something to settle.

        At HIGH that waits for the kernel's word on its cell, and a zygote that is slow to give it costs no outcome.
        """
        return self.settlement is None and not isinstance(self.outcome, Lost)

    def prolong(self, asked_at: float, seconds: float) -> None:
        """Note a lease of `seconds` from a moment that is surely not after the store's answer."""
        self.lease_until = asked_at + seconds - margin_seconds(self.grant.lease.seconds)

    def recall(self, now: float) -> None:
        """Note that it waits again: its cell had not taken it."""
        self.entered_at, self.sent = now, False
        self.deadline = self.kill_at = float("inf")

    def work(self) -> tuple[wire.Work, bytes]:
        """Return what its cell gets, and its part of the tail: neither job id nor token."""
        job, secrets, tail = self.grant.job, tuple[Named, ...](), self.grant.job.payload
        if self.secrets:
            values = {name: value.encode() for name, value in self.secrets.items()}
            secrets = tuple(Named(name, len(value)) for name, value in values.items())
            tail = b"".join((tail, *values.values()))
        work = wire.Work(
            handle=self.handle,
            type=job.type,
            fence=self.grant.lease.fence,
            attempt=self.grant.attempt.number,
            operation_key=job.operation_key,
            payload_sha256=job.payload_sha256,
            run_seconds=self.policy.limits.run_seconds_max,
            payload_bytes=len(job.payload),
            secrets=secrets,
        )
        return work, tail

    def end(self, ending: Ending, tail: bytes) -> None:
        """Take a cell's word for how it ended, with its part of the tail.

        Raises ProtocolError when the state or the policy does not permit it.
        """
        how, self.scratch = ending.how, ending.scratch
        if (how in BEFORE_START) == self.started or self.outcome is not None:
            raise wire.ProtocolError(f"{how} is not how this attempt can end now")
        if tail and how is not How.COMPLETED:
            raise wire.ProtocolError("only a completed attempt has a result")
        if ending.result_bytes > self.policy.limits.result_bytes_max:
            raise wire.ProtocolError("the result is larger than the policy allows")
        successors: tuple[Successor, ...] = ()
        if ending.successors:
            tail, successors = self._parted(ending, tail)
        leaks = self.scrubber and any(self._holds(each.payload) for each in successors)
        self.outcome = Suspicious(LEAK) if leaks else self._outcome(ending, self._result(tail), successors)

    def _parted(self, ending: Ending, tail: bytes) -> tuple[bytes, tuple[Successor, ...]]:
        result, *payloads = framing.cut(
            tail, [ending.result_bytes, *(each.payload_bytes for each in ending.successors)]
        )
        names = [each.type for each in ending.successors]
        if not set(names) <= set(self.policy.successors):
            raise wire.ProtocolError("a successor is not listed in the policy")
        return result, tuple(Successor(name, payload) for name, payload in zip(names, payloads, strict=True))

    def told(self, text: str) -> str:
        """Return text of its cell without its secrets and what looks like one, still to be cleaned and bounded."""
        return patterns(self.scrubber.piece(text) if self.scrubber else text)

    def _result(self, result: bytes) -> bytes:
        if not self.scrubber or not result:
            return result
        try:
            scrubbed = self.scrubber.document(result)
        except (ValueError, RecursionError):
            return UNREADABLE
        return scrubbed if len(scrubbed) <= self.policy.limits.result_bytes_max else TOO_LARGE

    def _holds(self, payload: bytes) -> bool:
        """Whether a payload holds a secret, or cannot be searched for one."""
        try:
            return self.scrubber.finds(payload)
        except (ValueError, RecursionError):
            return True

    def _outcome(self, ending: Ending, result: bytes, successors: tuple[Successor, ...]) -> Outcome:
        if ending.how is How.COMPLETED:
            return Completed(result, successors)
        text = self._line(ending.text) if ending.text else ""
        match ending.how:
            case How.TRANSIENT:
                return Transient(text)
            case How.RETRY:
                return Transient(text, ending.after_seconds, explicit=True)
            case How.PERMANENT:
                return Permanent(text)
            case How.SUSPICIOUS:
                return Suspicious(text)
            case How.SNOOZED:
                return Snoozed(ending.after_seconds or 0.0, text)
            case How.STOPPED:
                return self.stopped()
            case How.HELD | How.DIVERTED | How.REFUSED | How.REFUSED_SUSPICIOUS:
                return self._judged(ending, text)
            case _:
                assert_never(ending.how)

    def explain(self) -> None:
        """Add to its error what the walls blocked; once."""
        match self.outcome:
            case Transient(error) | Permanent(error) | Suspicious(error):
                self.outcome = replace(self.outcome, error=explained(error, self.sentences))
            case _:
                return

    def stopped(self) -> Outcome:
        """Return the outcome of an attempt that ended because we stopped it; by itself nothing stops."""
        match self.stop:
            case StopReason.DEADLINE:
                return Transient(f"deadline of {self.policy.limits.run_seconds_max:g} s exceeded")
            case StopReason.DRAIN | StopReason.CANCEL | StopReason.LEASE:
                return Interrupted()
            case StopReason.LOST:
                return Lost()
            case StopReason.SCRATCH:
                return Transient("it filled its scratch directory")
            case None:
                return Transient("stopped by a signal that the worker did not send")
            case _:
                assert_never(self.stop)

    def report(self, used: wire.Used, pool: str) -> None:
        """Take note of what it did with the network, and of what was refused."""
        self.connects, self.refused = used.connects, used.refused
        self.sentences += tuple(self.told(blocked(pool, what, fix)) for what, fix in used.blocked)

    def die(self, how: str, *, shared: bool, ours: bool) -> None:
        """Take note that its cell is dead. `ours`: killed by us, for another attempt or to keep a lease."""
        if self.outcome is not None:
            return
        if not self.started and self.stop is not StopReason.LOST:
            self.outcome = Unstarted(how)
        elif self.stop is not None:
            self.outcome = self.stopped()
        elif ours:
            self.outcome = Interrupted()
        else:
            self.outcome = Crashed(how, shared=shared)

    def accuse(self, what: str, sentence: str) -> None:
        """Take note that the kernel ended its cell for a violation: that counts, whatever the cell said before."""
        if self.started:
            self.outcome, self.sentences = Suspicious(what), (sentence,)
        else:
            self.outcome = Judged(Refuse("W-violation", what, sentence, suspicious=True))

    def _judged(self, ending: Ending, text: str) -> Judged:
        rule, field_path, fix = (self._line(each) for each in (ending.rule, ending.field, ending.fix))
        match ending.how:
            case How.HELD:
                return Judged(Hold(rule, text, fix))
            case How.DIVERTED:
                return Judged(Divert(rule, text, fix))
            case _:
                return Judged(Refuse(rule, text, fix, field_path, suspicious=ending.how is How.REFUSED_SUSPICIOUS))

    def _line(self, text: str) -> str:
        return clean_line(self.told(text), bytes_max=2048)


def margin_seconds(lease_seconds: float) -> float:
    """Return how long before the end of a lease a cell must be dead."""
    return min(MARGIN_SECONDS_MAX, lease_seconds * MARGIN_SHARE)
