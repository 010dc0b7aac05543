"""The life of a job and of its operation, as tables.

Rule 1: everything that says which state may follow which is in this file; the SQL check constraints, the diagram in the
docs and the tests are generated from these tables. Rule 2: a pair that is not listed raises (h11, `_state.py`).
"""

from __future__ import annotations

from enum import StrEnum

from benteng.errors import BentengError


class State(StrEnum):
    """Where a job is."""

    SCHEDULED = "scheduled"
    READY = "ready"
    BLOCKED = "blocked"
    HELD = "held"
    RUNNING = "running"
    QUARANTINED = "quarantined"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"


class Event(StrEnum):
    """What can happen to a job."""

    STAGE = "stage"
    CLAIM = "claim"
    PARK = "park"
    WAKE = "wake"
    HOLD = "hold"
    RELEASE = "release"
    POSTPONE = "postpone"
    COMPLETE = "complete"
    RETRY = "retry"
    SNOOZE = "snooze"
    HAND_BACK = "hand_back"
    RECLAIM = "reclaim"
    QUARANTINE = "quarantine"
    CANCEL = "cancel"
    REPLAY = "replay"
    DISCARD = "discard"
    RESOLVE = "resolve"


class QuarantineReason(StrEnum):
    """Why a job is in quarantine."""

    REFUSED = "refused"
    PERMANENT = "permanent"
    SUSPICIOUS = "suspicious"
    EXHAUSTED = "exhausted"
    CRASHED = "crashed"
    EXPIRED = "expired"
    REVOKED = "revoked"
    UNDECODABLE = "undecodable"
    DIVERTED = "diverted"
    UNCERTAIN = "uncertain"


ENTRY: frozenset[State] = frozenset({State.READY, State.SCHEDULED, State.HELD, State.QUARANTINED})
"""The states in which a job may enter."""

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.SCHEDULED: {
        Event.STAGE: State.READY,
        Event.HOLD: State.HELD,
        Event.CANCEL: State.CANCELLED,
        Event.QUARANTINE: State.QUARANTINED,
    },
    State.READY: {
        Event.CLAIM: State.RUNNING,
        Event.PARK: State.BLOCKED,
        Event.POSTPONE: State.SCHEDULED,
        Event.HOLD: State.HELD,
        Event.CANCEL: State.CANCELLED,
        Event.QUARANTINE: State.QUARANTINED,
    },
    State.BLOCKED: {
        Event.WAKE: State.READY,
        Event.HOLD: State.HELD,
        Event.CANCEL: State.CANCELLED,
        Event.QUARANTINE: State.QUARANTINED,
    },
    State.HELD: {
        Event.RELEASE: State.READY,
        Event.POSTPONE: State.SCHEDULED,
        Event.CANCEL: State.CANCELLED,
        Event.QUARANTINE: State.QUARANTINED,
    },
    State.RUNNING: {
        Event.COMPLETE: State.COMPLETED,
        Event.RETRY: State.SCHEDULED,
        Event.SNOOZE: State.SCHEDULED,
        Event.HAND_BACK: State.READY,
        Event.RECLAIM: State.READY,
        Event.HOLD: State.HELD,
        Event.CANCEL: State.CANCELLED,
        Event.QUARANTINE: State.QUARANTINED,
    },
    State.QUARANTINED: {
        Event.REPLAY: State.READY,
        Event.DISCARD: State.DISCARDED,
        Event.RESOLVE: State.COMPLETED,
    },
    State.COMPLETED: {},
    State.CANCELLED: {},
    State.DISCARDED: {},
}

ACTIVE: frozenset[State] = frozenset(
    {State.SCHEDULED, State.READY, State.BLOCKED, State.HELD, State.RUNNING},
)
"""States whose row is in the table `job`. A quarantined job is in `quarantine`; a finished one only in `operation`."""

TERMINAL: frozenset[State] = frozenset(state for state, events in TRANSITIONS.items() if not events)


class OperationState(StrEnum):
    """How far an operation got. `freed` rows keep their record but no longer hold the key."""

    RESERVED = "reserved"
    COMPLETED = "completed"
    KEPT = "kept"
    UNCERTAIN = "uncertain"
    FREED = "freed"


FREED_BEFORE_START: frozenset[QuarantineReason] = frozenset({QuarantineReason.REFUSED, QuarantineReason.EXPIRED})
"""Quarantine reasons that free the key of a job that never started; every other reason keeps it reserved."""


class IllegalTransition(BentengError):  # noqa: N818 - named by what happened, like the others
    """A (state, event) pair that the life cycle does not have. Always a fault of ours, never of the input."""


def advance(state: State, event: Event) -> State:
    """Return the state that follows. Raises IllegalTransition for a pair that is not in TRANSITIONS."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        msg = f"no transition {event.value!r} from {state.value!r}"
        raise IllegalTransition(msg) from None


def operation_after(state: State, *, started: bool, reason: QuarantineReason | None = None) -> OperationState:
    """Return what becomes of the operation when its job reaches `state` (the table of DESIGN section 3).

    `started`: user code was handed the job at least once, that is, a claim was not handed back as unstarted.
    `reason` is needed for QUARANTINED. A discard with `--free` and a resolve are decided by the operator instead.
    """
    match state:
        case State.COMPLETED:
            return OperationState.COMPLETED
        case State.CANCELLED | State.DISCARDED:
            return OperationState.KEPT if started else OperationState.FREED
        case State.QUARANTINED:
            return _quarantined(started=started, reason=reason)
        case _:
            return OperationState.RESERVED


def _quarantined(*, started: bool, reason: QuarantineReason | None) -> OperationState:
    if reason is QuarantineReason.UNCERTAIN:
        return OperationState.UNCERTAIN
    if started:
        return OperationState.KEPT
    return OperationState.FREED if reason in FREED_BEFORE_START else OperationState.RESERVED
