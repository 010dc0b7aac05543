"""Why a job is where it is, and what a person can do next: for every state, from what the store knows of it. PURE.

The answer names what the job waits for, since when, who holds it, which rule refused it, and the exact command for
each thing that can be done. It never shows a payload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from benteng.audit import AuditRecord, Event
from benteng.clock import SECOND, Instant
from benteng.config import PoolSettings
from benteng.evidence import ControlMode, ControlScope
from benteng.lifecycle import OperationState, QuarantineReason, State
from benteng.ops.output import age, many, span, when
from benteng.policy import Tier
from benteng.store.records import AuditRow, JobView, ResourceView

WORKER_SECONDS_MAX = 75.0
"""A pool whose workers gave no sign of life for so long has none; a live one gives it every 30 s."""

NEEDS_ACTION = "at HIGH this needs an Action with another person's vote, which this version does not have"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a person can do: the command, and what it does."""

    command: str
    does: str


@dataclass(frozen=True, slots=True)
class Answer:
    """headline: one sentence;  facts: what supports it, one a line;  steps: what can be done, the likeliest first."""

    headline: str
    facts: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(slots=True)
class _Draft:
    headline: str = ""
    facts: list[str] = field(default_factory=list[str])
    steps: list[Step] = field(default_factory=list[Step])


def explain(view: JobView, known_types: Iterable[str], pool: PoolSettings | None = None) -> Answer:
    """Return why a job is where it is.

    known_types   names of the types in the ledger
    pool          the settings of its pool on this host: what its workers here would do with it
    """
    draft = _Draft()
    match view.state:
        case State.SCHEDULED:
            _scheduled(view, draft)
        case State.READY:
            _ready(view, draft, frozenset(known_types), pool or PoolSettings())
        case State.BLOCKED:
            _blocked(view, draft)
        case State.HELD:
            _held(view, draft)
        case State.RUNNING:
            _running(view, draft)
        case State.QUARANTINED:
            _quarantined(view, draft)
        case State.COMPLETED:
            _completed(view, draft)
        case State.CANCELLED | State.DISCARDED:
            _given_up(view, draft)
        case _:
            assert_never(view.state)
    return Answer(draft.headline, tuple(draft.facts), tuple(draft.steps))


def records(rows: Iterable[AuditRow]) -> list[AuditRecord]:
    """Return the records that can be read; erased and damaged ones are left out (`benteng audit verify` tells them)."""
    return [record for row in rows if (record := decode(row)) is not None]


def decode(row: AuditRow) -> AuditRecord | None:
    """Return the record of a row, or None when it was erased or cannot be read."""
    try:
        return None if row.body is None else msgspec.json.decode(row.body, type=AuditRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


# ----------------------------------------------------------------------------------------------------------- each state


def _scheduled(view: JobView, draft: _Draft) -> None:
    wait = (view.available_at - view.now) / SECOND
    due = f"in {span(wait)}" if wait > 0 else f"{span(-wait)} ago: the keeper has not come round"
    if view.attempts or view.snoozes:
        draft.headline = f"it waits for its next try, due {due} ({when(view.available_at)})"
        _tries(view, draft)
    else:
        draft.headline = f"it was asked to start later, due {due} ({when(view.available_at)})"
    if wait <= 0:
        draft.steps.append(Step("benteng keeper", "run the keeper, which makes due jobs ready"))
    _worker(view, draft)
    _control(view, draft)
    _cancel(view, draft, "give it up")


def _ready(view: JobView, draft: _Draft, known_types: frozenset[str], pool: PoolSettings) -> None:
    reasons: list[str] = []
    if view.job.type not in known_types:
        reasons.append(f"no worker knows the type {view.job.type}")
        draft.steps.append(Step("benteng policy lock && benteng policy apply", "make the type known, after review"))
    if _control(view, draft):
        reasons.append("a switch is closed")
    if _worker(view, draft):
        reasons.append(f"no worker of pool {view.pool} is alive")
    if pool.types and view.job.type not in pool.types:
        reasons.append(f"workers of pool {view.pool} on this host do not accept {view.job.type}")
        draft.steps.append(Step("benteng config show", f"look at pool.{view.pool}.types"))
    if view.ahead:
        reasons.append(f"{many(view.ahead, 'ready job')} of its pool come first")
    if pool.starts_per_minute:
        draft.facts.append(
            f"each worker of pool {view.pool} on this host starts at most {pool.starts_per_minute} jobs a minute"
        )
    if view.handbacks:
        because = f", the last time because: {view.error}" if view.error else ""
        draft.facts.append(f"it was handed back {many(view.handbacks, 'time')} without being run{because}")
    draft.headline = (
        f"it can start, but {'; '.join(reasons)}" if reasons else "it can start now: the next free worker takes it"
    )
    _since(view, draft, Event.ADMITTED, Event.WOKEN, Event.STAGED, Event.HANDED_BACK, Event.RECLAIMED, Event.REPLAYED)
    _cancel(view, draft, "give it up")


def _blocked(view: JobView, draft: _Draft) -> None:
    held = next((one for one in view.resources if one.key == view.waits_for), ResourceView(view.waits_for))
    draft.headline = f"it waits for {view.waits_for}, {_holder(held, view)}"
    _since(view, draft, Event.BLOCKED)
    if held.waiting > 1:
        draft.facts.append(f"{held.waiting} jobs wait for {held.key}")
    if held.holder and held.holder != view.job.id:
        verb = "quarantine show" if held.closed else "why"
        draft.steps.append(Step(f"benteng {verb} {held.holder}", "look at the job that holds it"))
    if held.closed:
        draft.steps.extend(_resolve_steps(held.holder))
    if not held.holder:
        draft.steps.append(Step("benteng keeper", "run the keeper, which wakes jobs whose resources are free"))
    _control(view, draft)
    _cancel(view, draft, "give it up")


def _holder(held: ResourceView, view: JobView) -> str:
    if not held.holder or held.holder == view.job.id:
        return "which is free now: the keeper wakes it"
    if held.closed:
        return f"which the uncertain job {held.holder} keeps closed until somebody resolves it"
    return f"which job {held.holder} holds (fence {held.fence})"


def _held(view: JobView, draft: _Draft) -> None:
    draft.headline = "it waits for agreement" + _by_rule(view)
    _since(view, draft, Event.HELD, Event.ADMITTED)
    if view.job.tier is Tier.HIGH:
        draft.facts.append(f"releasing it: {NEEDS_ACTION}")
    elif not _control(view, draft):
        draft.steps.append(Step(f"benteng jobs release {view.job.id} --reason ...", "agree, and let it go on"))
    _cancel(view, draft, "give it up; its operation may then be sent again")


def _running(view: JobView, draft: _Draft) -> None:
    left = (view.lease_until - view.now) / SECOND
    draft.headline = f"worker {view.worker or '?'} runs it, attempt {view.attempts}, fence {view.fence}"
    draft.facts.append(f"its lease lasts {span(left)} more" if left > 0 else f"its lease ended {span(-left)} ago")
    _since(view, draft, Event.CLAIMED)
    if left <= 0:
        draft.facts.append(
            "the keeper takes it back by its lease; the worker cannot change it any more once that is done"
        )
        draft.steps.append(Step("benteng keeper", "run the keeper"))
    if view.cancel_asked:
        draft.facts.append("somebody asked to cancel it: its worker stops it at the next heartbeat")
    else:
        _cancel(view, draft, "ask its worker to stop it")


def _quarantined(view: JobView, draft: _Draft) -> None:
    reason = view.reason or QuarantineReason.PERMANENT
    draft.headline = f"it is in quarantine as {reason}: {_QUARANTINE[reason]}" + _by_rule(view)
    _since(view, draft, Event.QUARANTINED, Event.UNCERTAIN, Event.DIVERTED)
    if view.error:
        draft.facts.append(f"error: {view.error}")
    if view.classified:
        draft.facts.append(f"a person classified it as {view.classified}")
    _tries(view, draft)
    draft.facts.append(_KEY[view.operation])
    if reason is QuarantineReason.UNCERTAIN:
        draft.steps.extend(_resolve_steps(view.job.id))
    else:
        draft.steps.extend(_quarantine_steps(view, reason))
    if view.job.tier is Tier.HIGH:
        draft.facts.append(f"bringing back, resolving, freeing: {NEEDS_ACTION}")


def _completed(view: JobView, draft: _Draft) -> None:
    draft.headline = f"it completed at {when(view.finished_at)}, attempt {view.attempts}"
    kept = "its result is kept" if view.result is not None else "it left no result, or the result is past its retention"
    draft.facts.extend([kept, _KEY[view.operation]])
    draft.steps.append(Step(f"benteng audit show {view.job.id}", "read its history"))


def _given_up(view: JobView, draft: _Draft) -> None:
    draft.headline = f"it was {view.state} at {when(view.finished_at)}" + _by_rule(view)
    draft.facts.append("it had been started" if view.starts else "it never started")
    draft.facts.append(_KEY[view.operation])
    draft.steps.append(Step(f"benteng audit show {view.job.id}", "read who did it and why"))


# ----------------------------------------------------------------------------------------------------------- the pieces

_QUARANTINE: dict[QuarantineReason, str] = {
    QuarantineReason.REFUSED: "the judgement before its start refused it",
    QuarantineReason.PERMANENT: "it failed for a reason that no retry heals",
    QuarantineReason.SUSPICIOUS: "it looks hostile",
    QuarantineReason.EXHAUSTED: "its attempts are used up",
    QuarantineReason.CRASHED: "it killed its cell too often",
    QuarantineReason.EXPIRED: "it was not started in time",
    QuarantineReason.REVOKED: "what it refers to was revoked",
    QuarantineReason.UNDECODABLE: "its row cannot be read",
    QuarantineReason.DIVERTED: "a switch or a check sent it here instead of running it",
    QuarantineReason.UNCERTAIN: "nobody knows whether its effect, which must happen once, has happened",
}

_KEY: dict[OperationState, str] = {
    OperationState.RESERVED: "its operation is reserved: the same operation again gets this job's receipt",
    OperationState.COMPLETED: "its operation is done: the same operation again gets this job's receipt",
    OperationState.KEPT: "its operation is kept, because it had been started: the same operation is not run again",
    OperationState.UNCERTAIN: "its operation is uncertain: it is not run again until somebody resolves this job",
    OperationState.FREED: "its operation is free: the same operation may be sent again as a new job",
}


def _since(view: JobView, draft: _Draft, *events: Event) -> None:
    """Add since when, by the last audit record of one of these events, or by admission."""
    then: Instant = next((r.at_us for r in reversed(records(view.audit)) if r.event in events), view.admitted_at)
    draft.facts.append(f"since {when(then)} ({age(then, view.now)})")


def _tries(view: JobView, draft: _Draft) -> None:
    spent = [f"{count} {name}" for count, name in ((view.crashes, "crashed"), (view.snoozes, "snoozed")) if count]
    if view.attempts or spent:
        draft.facts.append(f"{many(view.attempts, 'attempt')} spent" + (f" ({', '.join(spent)})" if spent else ""))
    if view.error and view.state is State.SCHEDULED:
        draft.facts.append(f"last error: {view.error}")


def _worker(view: JobView, draft: _Draft) -> bool:
    """Add whether the pool has a worker; True when it has none."""
    silent = (view.now - view.worker_seen_at) / SECOND
    if view.worker_seen_at and silent <= WORKER_SECONDS_MAX:
        return False
    last = f"the last sign of life was {span(silent)} ago" if view.worker_seen_at else "none has ever been seen"
    draft.facts.append(f"no worker of pool {view.pool} is alive: {last}")
    draft.steps.append(Step(f"benteng worker --pool {view.pool}", "start one"))
    return True


def _control(view: JobView, draft: _Draft) -> bool:
    """Add the switch that is closed over the job; True when there is one."""
    switch = view.control
    if switch is None or switch.mode is ControlMode.OPEN:
        return False
    why = f" ({switch.reason})" if switch.reason else ""
    draft.facts.append(f"{switch.scope} {switch.name} is switched to {switch.mode}{why}")
    what = switch.name if switch.scope is ControlScope.TYPE else f"--{switch.scope} {switch.name}"
    draft.steps.append(Step(f"benteng kill --open {what} --reason ...", "open the switch, when the danger is over"))
    return True


def _by_rule(view: JobView) -> str:
    return f" (rule {view.rule})" if view.rule else ""


def _cancel(view: JobView, draft: _Draft, does: str) -> None:
    draft.steps.append(Step(f"benteng jobs cancel {view.job.id} --reason ...", does))


def _resolve_steps(job_id: str) -> list[Step]:
    look = "look at the system that it acts on; if the effect is there, say so"
    return [
        Step(f"benteng quarantine resolve {job_id} --happened --reason ...", look),
        Step(
            f"benteng quarantine resolve {job_id} --not-happened --reason ...",
            "if it is not there: frees the operation",
        ),
    ]


def _quarantine_steps(view: JobView, reason: QuarantineReason) -> list[Step]:
    job_id = view.job.id
    steps = [Step(f"benteng audit show {job_id}", "read its history first")]
    if reason is QuarantineReason.SUSPICIOUS and not view.classified:
        steps.append(
            Step(f"benteng quarantine classify {job_id} permanent --note ...", "if it is not hostile: say what it is")
        )
    if reason is not QuarantineReason.UNDECODABLE:
        steps.append(
            Step(f"benteng replay {job_id} --reason ...", "judge it again and bring it back, once the cause is gone")
        )
    steps.append(Step(f"benteng quarantine discard {job_id} --reason ...", "give it up; its record stays"))
    return steps
