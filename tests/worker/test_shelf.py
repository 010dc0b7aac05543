"""What lies before a serial cell: one process makes it and no other, and behind a long attempt it does not wait."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from benteng.evidence import Evidence
from benteng.job import Attempt, Grant, Job, Lease
from benteng.policy import LIMITS, Effect, Tier, TypePolicy
from benteng.worker import wire
from benteng.worker.flights import Flight
from benteng.worker.framing import Inbox
from benteng.worker.pace import PAUSE_SECONDS, PAUSE_SECONDS_MAX, Pace
from benteng.worker.shelf import PACKET_BYTES_MAX, PIECES_MAX, Shelf
from benteng.worker.wire import Line
from tests.worker.bed import Bed, field

POLICY = TypePolicy(name="medium@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, limits=LIMITS[Tier.MEDIUM])


def flight(handle: int, payload: bytes = b"{}") -> Flight:
    """A flight of MEDIUM."""
    job = Job(str(handle), POLICY.name, Tier.MEDIUM, payload, "", "", "os:0")
    grant = Grant(job, Attempt(1), Lease(job.id, 1, "token", 30.0), Evidence(now=0))
    return Flight(handle, grant, POLICY, lease_until=0.0)


@pytest.fixture
def shelf():
    """A shelf, and the cell's own descriptor of its end."""
    made = Shelf()
    with made.theirs.dup() as cell:
        cell.setblocking(False)
        yield made, cell
    made.close()


def handle_of(packet: bytes) -> int:
    """Return which attempt a packet grants."""
    inbox = Inbox(Line.TO_SERIAL_CELL)
    inbox.accept(packet)
    [(message, _)] = inbox.messages()
    return message.works[0].handle


def test_each_attempt_is_taken_by_one_side(shelf):
    """What the cell has taken does not come back, and what came back the cell does not find."""
    made, cell = shelf
    flights = [flight(number) for number in range(1, 5)]
    made.put(flights)

    taken = handle_of(cell.recv(PACKET_BYTES_MAX))
    back = made.take_back()

    assert 1 == taken
    assert flights[1:] == back
    assert flights[:1] == made.taken
    with pytest.raises(BlockingIOError):
        cell.recv(PACKET_BYTES_MAX)


def test_what_has_no_room_is_not_put(shelf):
    """Neither more than the kernel keeps nor what does not fit into one packet."""
    made, _ = shelf
    large = flight(1, b"x" * PACKET_BYTES_MAX)
    many = [flight(number) for number in range(2, 1000)]

    assert [large, *many] == made.put([large, *many])
    refused = made.put(many)

    assert len(refused) <= len(many) - PIECES_MAX
    assert many == [*made.take_back(), *refused]


@pytest.mark.parametrize("word", ["started", "ended"])
def test_what_the_cell_has_spoken_of_it_has(shelf, word):
    """It may have read it without taking it: then it may also have made it, and nobody else does."""
    made, _ = shelf
    spoken, other = flight(1), flight(2)
    made.put([spoken, other])
    if word == "started":
        spoken.started = True
    else:
        spoken.end(wire.Ending(1, wire.How.REFUSED), b"")

    assert [other] == made.take_back()
    assert [spoken] == made.taken


def test_no_flag_of_the_cell_makes_us_wait(shelf):
    """Its end and ours of it are one open file: what it sets there holds for both."""
    made, cell = shelf
    made.put([flight(1)])
    cell.setblocking(True)

    assert 1 == len(made.take_back())
    made.put([flight(2)])
    assert 2 == handle_of(cell.recv(PACKET_BYTES_MAX))
    assert [] == made.take_back()


def test_a_shelf_that_the_cell_has_shut_is_full(shelf):
    """Nothing can be put there, and what lay there is the cell's unless it comes back."""
    made, cell = shelf
    first, second = flight(1), flight(2)
    made.put([first])
    cell.shutdown(socket.SHUT_RDWR)

    assert [second] == made.put([second])
    assert [first] == [*made.take_back(), *made.taken]


def test_a_type_that_takes_its_time_is_left_alone_longer_each_time():
    """One at a time meanwhile; several again afterwards, and as before once several went through."""
    pace = Pace(10)
    before = pace.depth("a@1", 100.0)
    pace.late("a@1", 100.0)
    pace.late("a@1", 101.0)

    assert 10 == before
    assert (1, 10) == (pace.depth("a@1", 101.0 + 1.9 * PAUSE_SECONDS), pace.depth("a@1", 101.0 + 2 * PAUSE_SECONDS))
    assert 10 == pace.depth("b@1", 101.0)
    for _ in range(20):
        pace.late("a@1", 102.0)
    assert 10 == pace.depth("a@1", 102.0 + PAUSE_SECONDS_MAX)
    pace.flowed("a@1")
    pace.late("a@1", 104.0)
    assert 10 == pace.depth("a@1", 104.0 + PAUSE_SECONDS)


# ------------------------------------------------------------------------------------------------------ real processes


ROUNDS = 40
"""So often something is tried that a busy machine may hinder: what lies there for 3 ms is taken back."""


def lined_up(bed: Bed, job_type: str, *names: str, app: str = "jobs:app", waive: tuple[str, ...] = ()) -> list[str]:
    """Let jobs in before there is a worker, which then claims all of them at once and puts them before its one cell."""
    jobs = bed.enqueue_many(job_type, [{"name": name} for name in names])
    bed.worker(concurrency=10, app=app, waive=waive)
    return jobs


def pids(bed: Bed, jobs: list[str]) -> list[int]:
    """Return which processes made jobs, from their results."""
    return [int(bed.ended(job).result or b"0") for job in jobs]


def test_quick_attempts_share_a_waking(bed):
    """Ten that were claimed together are made by one cell, one after the other."""
    bed.worker(concurrency=10)

    for number in range(ROUNDS):
        jobs = bed.enqueue_many("line@1", [{"name": f"n{number}x{n}"} for n in range(10)])
        if len(set(pids(bed, jobs))) == 1:
            return
    pytest.fail("never by one")


@pytest.mark.parametrize("effect", ["line@1", "line.once@1"])
def test_a_killed_cell_takes_only_its_own_attempt_along(bed, effect):
    """The end of the one before it counts, and those behind it run elsewhere, once, and spend nothing."""
    before, culprit, *behind = lined_up(bed, effect, "a", "kill", "b", "c", "d")

    assert "completed" == bed.ended(before).state
    assert "quarantined" == bed.ended(culprit).state
    assert ["completed"] * 3 == [bed.ended(job).state for job in behind]
    assert [(1, 0)] * 4 == [(bed.show(job).attempts, bed.show(job).crashes) for job in (before, *behind)]
    assert [1] * 5 == [bed.count(f"line {name} ") for name in ("a", "kill", "b", "c", "d")]


def test_nothing_waits_behind_a_long_attempt(bed):
    """While it goes on the others end, in other cells; none runs twice."""
    long, *behind = lined_up(bed, "line@1", "wait", "a", "b", "c", "d")

    assert ["completed"] * 4 == [bed.ended(job).state for job in behind]
    assert "running" == bed.status(long).state
    bed.go()
    assert "completed" == bed.ended(long).state
    assert [1] * 4 == [bed.count(f"line {name} ") for name in "abcd"]


def test_a_frozen_cell_holds_nobody_up(bed):
    """What lies before it goes elsewhere, and what it had begun goes on when it does."""
    long, *behind = lined_up(bed, "line@1", "wait", "a", "b", "c")
    cell = int(field(bed.effect("line wait"), "pid"))
    os.kill(cell, signal.SIGSTOP)

    assert ["completed"] * 3 == [bed.ended(job).state for job in behind]
    os.kill(cell, signal.SIGCONT)
    bed.go()
    assert "completed" == bed.ended(long).state


@pytest.mark.parametrize("leftover", ["child", "thread", "raise"])
def test_what_follows_a_leftover_gets_another_cell(bed, leftover):
    """A child, a thread or an error of an attempt is not beside the next one."""
    first, *others = lined_up(bed, "line@1", leftover, "a", "b", waive=("seccomp", "landlock_files"))
    culprit = int(field(bed.effect(f"line {leftover} "), "pid"))

    assert culprit not in pids(bed, others)
    assert ("quarantined" if leftover == "raise" else "completed") == bed.ended(first).state


def test_each_attempt_in_line_finds_an_empty_directory(bed):
    """Although one cell could make them all: what the one before it left is not there."""
    jobs = lined_up(bed, "medium@1", "a", "b", "c", "d")

    assert [[]] * 4 == [json.loads(bed.ended(job).result or b"")["found"] for job in jobs]


def test_a_drain_gives_back_what_no_cell_has_taken(bed):
    """Unspent and unstarted, also when it lies before a cell."""
    long, *behind = lined_up(bed, "line@1", "wait", "wait1", "wait2")
    worker = bed.workers[0]
    bed.effect("line wait")
    bed.go()

    assert 0 == worker.stop()
    states = [bed.status(job).state for job in (long, *behind)]
    assert {"completed", "ready"} >= set(states)
    assert states.count("completed") == bed.count("line wait")


# ------------------------------------------------------------------------------------------------------- hostile cells


@pytest.fixture
def besieged(tmp_path, hostile_registry):
    """A ledger for the attacks."""
    made = Bed(tmp_path, hostile_registry)
    yield made
    made.close()


def attacked(bed: Bed, name: str) -> Iterator[list[int]]:
    """Line up an attack and three that lie behind it, again and again; yield how these ended, as numbers of runs.

    One that completed has run once; one that did not is uncertain, and nobody but the attacker has had it.
    """
    bed.worker(concurrency=10, app="hostile:app")
    for number in range(ROUNDS):
        names = [f"{name}{number}", *(f"{letter}{number}" for letter in "xyz")]
        jobs = bed.enqueue_many("greedy@1", [{"name": each} for each in names])
        ends = [bed.ended(job) for job in jobs[1:]]
        runs = [bed.count(f"greedy {each} ") for each in names[1:]]
        assert [str(end.reason or end.state) for end in ends] == [("uncertain", "completed")[run] for run in runs]
        bed.ended(jobs[0])
        yield runs


def test_what_a_cell_has_taken_counts_as_started(besieged):
    """`once` jobs that a cell took from before it, and did not make, are uncertain: nobody runs them again."""
    assert any(runs == [0, 0, 0] for runs in attacked(besieged, "takes"))


def test_what_a_cell_keeps_is_not_waited_for(besieged):
    """One that takes an attempt, does not begin it and ends its own is not left until the deadline of what it took."""
    assert any(runs == [0, 1, 1] for runs in attacked(besieged, "keeps"))
    assert besieged.workers[0].all("suspicious", why="has taken what it does not make")


def test_what_a_cell_says_it_has_is_not_given_to_another(besieged):
    """One that reads without taking, and says that it has started, has started it; the others go elsewhere."""
    assert any(runs == [0, 1, 1] for runs in attacked(besieged, "looks"))


def test_a_cell_that_shuts_its_shelf_holds_up_nobody(besieged):
    """The others go elsewhere, or end as uncertain where that cannot be shown."""
    assert sum(1 for runs, _ in zip(attacked(besieged, "shuts"), range(5), strict=False) if len(runs) == 3)


def test_a_cell_that_changes_the_flags_of_its_shelf_holds_up_nobody(besieged):
    """The worker never waits for what lies there."""
    assert all(runs == [1, 1, 1] for runs, _ in zip(attacked(besieged, "blocks"), range(5), strict=False))
