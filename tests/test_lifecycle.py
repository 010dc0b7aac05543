from __future__ import annotations

from itertools import product

import pytest

from benteng.lifecycle import (
    ACTIVE,
    ENTRY,
    TERMINAL,
    TRANSITIONS,
    Event,
    IllegalTransition,
    OperationState,
    QuarantineReason,
    State,
    advance,
    operation_after,
)

LISTED = [(state, event) for state, events in TRANSITIONS.items() for event in events]
UNLISTED = [pair for pair in product(State, Event) if pair not in LISTED]

NEVER_RUN_FREES = (QuarantineReason.REFUSED, QuarantineReason.EXPIRED)
"""Written out here and not imported: the table of DESIGN section 3 says which reasons free a key."""


@pytest.mark.parametrize("state, event", LISTED)
def test_listed_pair_advances(state, event):
    """A pair of the table leads to the state that the table names."""
    assert TRANSITIONS[state][event] is advance(state, event)


@pytest.mark.parametrize("state, event", UNLISTED)
def test_unlisted_pair_raises(state, event):
    """A pair that is not in the table raises and names both halves."""
    with pytest.raises(IllegalTransition) as refused:
        advance(state, event)

    assert state.value in str(refused.value)
    assert event.value in str(refused.value)


def test_every_state_and_every_event_is_in_the_table():
    """No state is left out of the table, and no event is a word without use."""
    assert set(State) == set(TRANSITIONS)
    assert set(Event) == {event for _, event in LISTED}


def test_running_is_reached_by_a_claim_of_a_ready_job_only():
    """Nothing starts but what was ready and claimed: no event resumes, and no other state starts."""
    doors = [(state, event) for state, event in LISTED if TRANSITIONS[state][event] is State.RUNNING]

    assert [(State.READY, Event.CLAIM)] == doors


def test_completed_is_reached_from_running_or_by_a_resolve():
    """Only the attempt itself, or a person who resolves an uncertain one, says that a job is done."""
    doors = {(state, event) for state, event in LISTED if TRANSITIONS[state][event] is State.COMPLETED}

    assert {(State.RUNNING, Event.COMPLETE), (State.QUARANTINED, Event.RESOLVE)} == doors


def test_terminal_states_have_no_way_out():
    """Completed, cancelled and discarded are the end (I11)."""
    assert {State.COMPLETED, State.CANCELLED, State.DISCARDED} == TERMINAL


def test_states_are_active_quarantined_or_terminal():
    """Each state has exactly one home: the job table, the quarantine, or the operation's lasting record."""
    homes = [ACTIVE, {State.QUARANTINED}, TERMINAL]

    assert set(State) == set().union(*homes)
    assert len(State) == sum(map(len, homes))


def test_no_job_enters_running_or_finished():
    """A job enters ready, scheduled, held or quarantined (diverted), never further on."""
    assert {State.READY, State.SCHEDULED, State.HELD, State.QUARANTINED} == ENTRY


def test_every_state_is_reached_and_every_state_can_end():
    """Each state is reachable from an entry, and from each there is a way to an end: nothing is stuck by design."""
    forward = _closure(ENTRY, lambda state: TRANSITIONS[state].values())
    backward = _closure(TERMINAL, lambda end: [state for state in State if end in TRANSITIONS[state].values()])

    assert set(State) == forward
    assert set(State) == backward


def _closure(seed, step):
    seen, queue = set(seed), list(seed)
    while queue:
        fresh = set(step(queue.pop())) - seen
        seen |= fresh
        queue.extend(fresh)
    return seen


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_operation_of_an_active_job_stays_reserved(state, started):
    """Admitted, running, blocked, held, retry pending: the key is taken."""
    assert OperationState.RESERVED is operation_after(state, started=started)


@pytest.mark.parametrize("started", [False, True])
def test_operation_of_a_completed_job_is_completed(started):
    """A completed operation refuses a second one until its retention ends."""
    assert OperationState.COMPLETED is operation_after(State.COMPLETED, started=started)


@pytest.mark.parametrize("state", [State.CANCELLED, State.DISCARDED])
def test_operation_is_freed_only_when_nothing_started(state):
    """Cancel and discard free the key of a job that never started, and keep it after a start."""
    assert OperationState.FREED is operation_after(state, started=False)
    assert OperationState.KEPT is operation_after(state, started=True)


@pytest.mark.parametrize("reason", sorted(set(QuarantineReason) - {QuarantineReason.UNCERTAIN}))
def test_operation_of_a_quarantined_job_that_started_is_kept(reason):
    """After a start the effect may exist, so that no reason but a person's word frees the key."""
    assert OperationState.KEPT is operation_after(State.QUARANTINED, started=True, reason=reason)


@pytest.mark.parametrize("reason", sorted(set(QuarantineReason) - {QuarantineReason.UNCERTAIN}))
def test_operation_of_a_quarantined_job_that_never_started(reason):
    """Refused and expired free the key; revoked, diverted, undecodable ... keep it reserved until replay or discard."""
    expected = OperationState.FREED if reason in NEVER_RUN_FREES else OperationState.RESERVED

    assert expected is operation_after(State.QUARANTINED, started=False, reason=reason)


@pytest.mark.parametrize("started", [False, True])
def test_operation_of_an_uncertain_job_is_uncertain(started):
    """Uncertain is a state of its own: only `resolve` ends it."""
    reason = QuarantineReason.UNCERTAIN

    assert OperationState.UNCERTAIN is operation_after(State.QUARANTINED, started=started, reason=reason)
