"""Between the rows of a turn and its commit: what a worker knows then is not yet true, and may never be."""

from __future__ import annotations

import os
import socket

import pytest

from benteng.errors import StoreUnavailable
from benteng.lifecycle import QuarantineReason, State
from benteng.store.postgres.faults import LostAnswerError
from benteng.testing.bench import LOW, settlement

LOCK = 4711
AT_COMMIT = """
create function public.at_commit() returns trigger language plpgsql as $$begin {} return null; end$$;
create constraint trigger at_commit after update on benteng.job deferrable initially deferred for each row
when (new.state = 'running') execute function public.at_commit()
"""
"""Runs when a transaction that starts a job commits: its rows are under way by then."""

WAITS = f"perform pg_advisory_xact_lock({LOCK});"
MENDED = "update benteng.quarantine set artifacts = '{}' where id = %s returning reason"
FAULTS = {
    "refused": "raise exception 'not today';",
    "cancelled": "raise exception 'not today' using errcode = '57014';",
    "terminated": "perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(10);",
}


def state_of(owner, job):
    """What everybody else sees of a job."""
    return owner.execute("select state from benteng.job where id = %s", [job.id]).fetchone()[0]


def test_what_a_turn_starts_is_known_before_it_is_true(bench, owner):
    """Its grants are there while the commit still waits; `take` returns the same when it is kept."""
    job = bench.admitted()
    owner.execute(AT_COMMIT.format(WAITS).encode())
    owner.execute(f"select pg_advisory_lock({LOCK})".encode())

    asked = bench.consumer.turning([], 1, [LOW.name])
    asked.begin()
    foreseen = asked.foresee()
    before = (state_of(owner, job), asked.has_come())
    owner.execute(f"select pg_advisory_unlock({LOCK})".encode())
    turn = asked.take()
    bench.journal.grants(turn.grants)

    assert [job.id] == [each.job.id for each in foreseen.grants]
    assert ("ready", False) == before
    assert (foreseen, "running") == (turn, state_of(owner, job))
    assert foreseen is turn


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_claim_foresaw_is_nothing_when_its_commit_fails(bench, owner, fault):
    """Nothing has started, and who asks for the answer hears why; the next claim gets the job."""
    job = bench.admitted()
    owner.execute(AT_COMMIT.format(FAULTS[fault]).encode())

    asked = bench.consumer.turning([], 1, [LOW.name])
    asked.begin()
    foreseen = asked.foresee()
    with pytest.raises(Exception) as raised:  # noqa: PT011 - which error is told by the assertion
        asked.take()
    state = state_of(owner, job)
    owner.execute("drop function public.at_commit cascade")
    (grant,) = bench.claim()

    assert [job.id] == [each.job.id for each in foreseen.grants]
    assert (fault != "refused") == isinstance(raised.value, StoreUnavailable)
    assert ("ready", 1) == (state, grant.attempt.number)


@pytest.mark.parametrize("fault", ["refused", "terminated"])
def test_what_a_turn_foresaw_is_not_its_answer_when_its_commit_fails(bench, owner, fault):
    """The settlements that went along are asked about again, alone: they are settled, and nothing has started."""
    done = bench.admitted()
    (first,) = bench.claim()
    waiter = bench.admitted()
    owner.execute(AT_COMMIT.format(FAULTS[fault]).encode())

    asked = bench.consumer.turning([settlement(first)], 1, [LOW.name])
    asked.begin()
    foreseen = asked.foresee()
    turn = asked.take()
    bench.journal.settled(turn.settled)

    assert [waiter.id] == [each.job.id for each in foreseen.grants]
    assert ([(done.id, State.COMPLETED)], ()) == ([(e.job_id, e.state) for e in turn.settled], turn.grants)
    assert "ready" == state_of(owner, waiter)


def test_a_job_that_cannot_be_read_is_set_apart_when_its_start_is_true(bench, owner):
    """It is known with the others, and no call of its own goes between the rows and their commit."""
    bad, good = bench.admitted(), bench.admitted()
    owner.execute("update benteng.job set artifacts = '{alone}' where id = %s", [bad.id])
    owner.execute(AT_COMMIT.format(WAITS).encode())
    owner.execute(f"select pg_advisory_lock({LOCK})".encode())

    asked = bench.consumer.turning([], 2, [LOW.name])
    asked.begin()
    foreseen = asked.foresee()
    before = asked.has_come()
    owner.execute(f"select pg_advisory_unlock({LOCK})".encode())
    turn = asked.take()
    bench.journal.grants(turn.grants)
    (reason,) = owner.execute(MENDED, [bad.id]).fetchone()

    assert (False, [good.id]) == (before, [each.job.id for each in foreseen.grants])
    assert foreseen is turn
    assert QuarantineReason.UNDECODABLE == reason


@pytest.mark.parametrize("foreseen", [False, True], ids=["before-the-rows", "after-the-rows"])
def test_a_line_that_is_cut_is_a_lost_answer(bench, owner, foreseen):
    """Without a code, since libpq says it and not the server: the session is lost, and nothing is damaged."""
    job = bench.admitted()
    owner.execute(AT_COMMIT.format(WAITS).encode())
    owner.execute(f"select pg_advisory_lock({LOCK})".encode())
    session = bench.consumer._connected()

    asked = bench.consumer.turning([], 1, [LOW.name])
    asked.begin()
    if foreseen:
        assert [job.id] == [each.job.id for each in asked.foresee().grants]
    with socket.socket(fileno=os.dup(session.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
    asked.foresee()

    with pytest.raises(LostAnswerError):
        asked.take()
    owner.execute(f"select pg_advisory_unlock({LOCK})".encode())
