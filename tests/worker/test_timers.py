"""Deadlines: each is kept until its time, unless the attempt has ended before; then it is not kept at all."""

from __future__ import annotations

import gc

from benteng.evidence import Evidence
from benteng.job import Attempt, Grant, Job, Lease
from benteng.outcome import Completed
from benteng.policy import LIMITS, Effect, Tier, TypePolicy
from benteng.worker.flights import Flight
from benteng.worker.timers import SPARE, Timers

LOW = TypePolicy(name="low@1", tier=Tier.LOW, effect=Effect.REPEATABLE, limits=LIMITS[Tier.LOW])
JOB = Job("id", LOW.name, Tier.LOW, b"{}", "", "", "os:0")


def flight(handle):
    """A flight that somebody has."""
    grant = Grant(JOB, Attempt(1), Lease("id", 1, "token", 30.0), Evidence(now=0))
    return Flight(handle, grant, LOW, lease_until=0.0)


def alive():
    """How many flights this process has, wherever."""
    return sum(isinstance(each, Flight) for each in gc.get_objects())


def test_the_earliest_comes_first_and_none_before_its_time():
    """Whatever the order in which they were added."""
    timers, flights = Timers(), [flight(n) for n in range(5)]
    for when, each in zip([30.0, 10.0, 20.0, 10.0, 40.0], flights, strict=True):
        timers.add(when, each)

    due = [each.handle for each in timers.due(20.0)]

    assert [1, 3, 2] == due
    assert 30.0 == timers.wakes_at()
    assert [] == list(timers.due(29.9))


def test_one_that_ended_is_not_due():
    """Nobody is stopped who is gone."""
    timers, one = Timers(), flight(1)
    timers.add(10.0, one)
    one.outcome = Completed()

    assert [] == list(timers.due(10.0))
    assert float("inf") == timers.wakes_at()


def test_what_ended_is_not_kept_until_its_deadline():
    """A worker that does many short jobs in the longest time that one may run does not keep them all that time."""
    others, timers, running = alive(), Timers(), [flight(n) for n in range(200)]
    for each in running:
        timers.add(300.0, each)
    for n in range(20_000):
        short = flight(n)
        timers.add(300.0, short)
        short.outcome = Completed()
    del short

    kept = alive() - others

    assert kept <= 2 * len(running) + SPARE + 1
    assert running == list(timers.due(300.0))
