"""What becomes of flights when nothing moves, and how each death is charged. No process is started here."""

from __future__ import annotations

import os
import selectors
import signal
import socket
from random import SystemRandom

import pytest

from benteng.evidence import Evidence
from benteng.job import Attempt, Grant, Job, Lease
from benteng.outcome import Completed, Crashed, Interrupted, Judged, Lost, Suspicious, Transient, Unstarted
from benteng.policy import LIMITS, Effect, Tier, TypePolicy
from benteng.verdict import Refuse
from benteng.worker import framing, wire
from benteng.worker.cells import BIRTHS_A_HAND, DELAYS_MAX, Cell, CellState, Lane
from benteng.worker.crew import Unusable
from benteng.worker.flights import Flight, StopReason, margin_seconds
from benteng.worker.framing import Inbox
from benteng.worker.hatchery import Own
from benteng.worker.means import Means
from benteng.worker.nursery import Nest, NurseryState
from benteng.worker.pool import Kind, Pool
from benteng.worker.scratch import PLACE, Scratch
from benteng.worker.shelf import SHELF_SECONDS
from benteng.worker.watched import Heard
from benteng.worker.wire import Line
from benteng.worker.yard import WAIT_SECONDS_MAX, Yard

POLICIES = {
    f"{tier}@1": TypePolicy(name=f"{tier}@1", tier=tier, effect=Effect.REPEATABLE, limits=LIMITS[tier]) for tier in Tier
}


NOBODY = Heard(hear=lambda now: None, lost=lambda error, now: None)
"""Who hears a line that says nothing."""


def silent(event, /, **fields):
    """Tell nobody."""


@pytest.fixture
def yard(tmp_path):
    """A yard whose zygote is not started."""
    nest = Nest(Pool(), "a:app", (), "/", "")
    means = Means(nest, POLICIES, Own(os.environ, Scratch(tmp_path)), SystemRandom(), silent)
    with selectors.DefaultSelector() as selector:
        made = Yard(means, selector)
        made.crew.refused = Unusable("T-test", "no process in this test")
        yield made
        made.close()


def flight(tier=Tier.MEDIUM, *, alone=False):
    """A flight of a tier that nobody has yet."""
    policy = POLICIES[f"{tier}@1"]
    job = Job("id", policy.name, tier, b"{}", "", "", "os:0")
    grant = Grant(job, Attempt(1), Lease("id", 1, "token", 30.0), Evidence(now=0), alone)
    return Flight(1, grant, policy, lease_until=0.0)


def test_what_waits_too_long_is_handed_back(yard):
    """A claimed job whose cell never comes does not hold its lease for ever."""
    waiting = flight()
    yard.enter([waiting], now=100.0)

    yard.tick(100.0 + WAIT_SECONDS_MAX)
    before = list(yard.ended)
    yard.tick(100.0 + WAIT_SECONDS_MAX + 1)

    assert ([], [waiting]) == (before, yard.ended)
    assert isinstance(waiting.outcome, Unstarted)


def test_only_the_kind_that_crashes_rests(yard):
    """Types of other tiers are claimed meanwhile."""
    lane = next(lane for lane in yard._lanes if lane.kind is Kind.SERIAL)
    lane.crashed(100.0, lambda: 0.5)

    yard.tick(100.0)
    takes = {name: yard.takes(policy) for name, policy in POLICIES.items()}
    yard.tick(101.0)

    assert {"low@1": True, "medium@1": False, "high@1": True} == takes
    assert yard.takes(POLICIES["medium@1"])


def test_an_attempt_that_outlives_its_kill_is_noticed(yard):
    """The stuck detector: by then it must have ended, whatever happened."""
    here, there = socket.socketpair()
    there.close()
    stuck = flight()
    stuck.kill_at = 100.0
    cell = Cell(1, next(iter(yard._lanes)), here, state=CellState.DYING, flights={1: stuck})
    cell.lane.cells.append(cell)
    yard._cells[1] = cell

    assert [] == yard.overdue(150.0, 90.0)
    assert [stuck] == yard.overdue(191.0, 90.0)


OWN = 99
"""The number of the test's own cell."""


@pytest.fixture
def standing(yard):
    """A yard with a wide cell that stands; `told()` is what the zygote was told of guards since the last time."""
    yard.crew.nursery.state = NurseryState.READY
    yard.crew.approve()
    here, there = socket.socketpair()
    here.setblocking(False)
    cell = Cell(OWN, next(iter(yard._lanes)), here, state=CellState.READY)
    cell.lane.cells.append(cell)
    yard._cells[OWN] = cell
    cell.attend(yard._selector, NOBODY)

    def told():
        inbox = Inbox(Line.TO_ZYGOTE)
        parts = [bytes(data) for data, _ in yard.crew.nursery.outbox._parts]
        for descriptor in yard.crew.nursery.outbox.abandon():
            os.close(descriptor)
        inbox.accept(b"".join(parts))
        return [pair for message, _ in inbox.messages() if isinstance(message, wire.Guard) for pair in message.until]

    yield yard, told
    there.close()


def fly(yard, handle, until, now):
    """Send a LOW flight under a lease into the cell, and let it land."""
    sent = flight(Tier.LOW)
    sent.handle, sent.lease_until = handle, until
    yard.enter([sent], now)
    yard.dispatch(now)
    assert sent.sent
    yard._landed(yard._cells[OWN], sent, now)


@pytest.mark.parametrize("kind, says, goes", [("wide", True, True), ("wide", False, False), ("serial", False, True)])
def test_the_directory_of_an_attempt_goes_with_it(standing, tmp_path, kind, says, goes):
    """A LOW cell says whether it made one, and keeps what it does not tell; of others it goes whatever they say."""
    yard, _ = standing
    lane = next(lane for lane in yard._lanes if lane.kind == kind)
    cell, one = yard._cells[OWN], flight(Tier.LOW)
    cell.lane.cells.remove(cell)
    lane.cells.append(cell)
    cell.lane, cell.flights, yard._seats._where[1], one.started = lane, {1: one}, cell, True
    (root,) = tmp_path.iterdir()
    directory = root / f"cell-{OWN}" / ("1" if kind == "wide" else str(PLACE))
    directory.mkdir(parents=True)
    (directory / "left").touch()

    yard._take(cell, wire.Ended((wire.Ending(1, wire.How.COMPLETED, scratch=says),)), b"", 100.0)

    assert goes is not directory.exists()
    assert [one] == yard.ended


def test_the_zygote_is_told_of_a_lease_when_what_it_knows_will_not_do(standing):
    """Not for each job: only of a first, of an earlier end, and when what it knows will end soon."""
    yard, told = standing
    said = []
    for handle, until, now in [(1, 110.0, 100.0), (2, 111.0, 101.0), (3, 104.0, 101.5), (4, 113.0, 103.0)]:
        fly(yard, handle, until, now)
        said.append(told())

    assert [[(OWN, 110.0)], [], [(OWN, 104.0)], [(OWN, 113.0)]] == said


def test_an_idle_cell_is_not_killed_for_a_lease_that_nothing_has(standing):
    """Its guard is taken back before that time comes, and what it gets next is guarded again."""
    yard, told = standing
    fly(yard, 1, 110.0, 100.0)
    told()
    yard.tick(107.9)
    early = told()
    yard.tick(108.1)
    late = told()
    yard.tick(108.2)
    again = told()
    fly(yard, 2, 118.5, 108.5)

    assert ([], [(OWN, 0.0)], [], [(OWN, 118.5)]) == (early, late, again, told())


def test_work_keeps_its_guard(standing):
    """As long as something runs, its lease is what the cell lives by."""
    yard, told = standing
    running = flight(Tier.LOW)
    running.lease_until = 110.0
    yard.enter([running], 100.0)
    yard.dispatch(100.0)
    told()

    yard.tick(109.0)

    assert [] == told()


def test_a_flight_that_is_alone_gets_a_cell_of_width_one(yard):
    """And LOW flights that are not go on sharing."""
    assert ("alone", 1) == (
        yard._lanes.of(flight(Tier.LOW, alone=True)).name,
        yard._lanes.of(flight(Tier.LOW, alone=True)).width,
    )
    assert "wide" == yard._lanes.of(flight(Tier.LOW)).name


@pytest.mark.parametrize(
    "started,stop,shared,ours,outcome",
    [
        (False, None, False, False, Unstarted),
        (False, None, True, True, Unstarted),
        (False, StopReason.LOST, False, True, Lost),
        (True, None, False, False, Crashed),
        (True, None, True, False, Crashed),
        (True, None, True, True, Interrupted),
        (True, StopReason.DEADLINE, False, True, Transient),
        (True, StopReason.DEADLINE, True, False, Transient),
        (True, StopReason.DRAIN, False, True, Interrupted),
        (True, StopReason.CANCEL, False, True, Interrupted),
        (True, StopReason.LEASE, False, True, Interrupted),
        (True, StopReason.LOST, False, True, Lost),
    ],
)
def test_how_a_death_is_charged(started, stop, shared, ours, outcome):
    """Only a started attempt that nobody stopped, in a cell that nobody killed, has crashed."""
    dead = flight()
    dead.started, dead.stop = started, stop

    dead.die("killed", shared=shared, ours=ours)

    assert outcome is type(dead.outcome)
    if isinstance(dead.outcome, Crashed):
        assert shared == dead.outcome.shared


def test_an_end_that_was_said_is_not_changed_by_a_death():
    """A cell that dies after its word has kept it."""
    done = flight()
    done.outcome = Transient("said")

    done.die("killed", shared=False, ours=False)

    assert Transient("said") == done.outcome


def test_a_lease_ends_earlier_for_us():
    """By a fifth, at most two seconds: so long may killing take."""
    held = flight()

    held.prolong(100.0, 30.0)

    assert 128.0 == held.lease_until
    assert 0.2 == pytest.approx(margin_seconds(1.0))


@pytest.mark.parametrize(
    "lane,waiting,missing",
    [
        (Lane("wide", Kind.WIDE, 4, 1, 100, always=1), 0, 1),
        (Lane("wide", Kind.WIDE, 4, 1, 100, always=1), 9, 1),
        (Lane("alone", Kind.WIDE, 1, 1, 1), 0, 0),
        (Lane("alone", Kind.WIDE, 1, 1, 1), 3, 1),
        (Lane("serial", Kind.SERIAL, 1, 4, 100, always=1), 0, 1),
        (Lane("serial", Kind.SERIAL, 1, 4, 100, always=1), 9, 4),
        (Lane("single", Kind.SINGLE, 1, 4, 1, ahead=1), 0, 1),
        (Lane("single", Kind.SINGLE, 1, 4, 1, ahead=1), 2, 3),
        (Lane("single", Kind.SINGLE, 1, 4, 1, ahead=1), 9, 5),
    ],
)
def test_how_many_cells_a_lane_starts(lane, waiting, missing):
    """Enough for what waits, what is kept ready beside, and never more than the pool allows."""
    lane.waiting.extend(flight() for _ in range(waiting))

    assert missing == lane.missing(100.0)


def test_a_greeting_does_not_bring_a_dying_cell_back(yard):
    """It may still be in the line when the cell was killed; a closed line must not be listened to again."""
    here, there = socket.socketpair()
    cell = Cell(1, next(iter(yard._lanes)), here, state=CellState.DYING)

    cell.hello()

    assert CellState.DYING is cell.state
    here.close()
    there.close()


ENDED_1 = framing.ended_frames([(wire.Ending(1, wire.How.COMPLETED, result_bytes=4), b"null")])[0]


@pytest.fixture
def lined(yard):
    """A yard whose serial cell has the first of four flights, and three before it; signals sent; the cell's side."""
    yard.crew.nursery.state = NurseryState.READY
    yard.crew.approve()
    here, there = socket.socketpair()
    here.setblocking(False)
    lane = next(lane for lane in yard._lanes if lane.name == "serial")
    cell = Cell(OWN, lane, here, state=CellState.READY)
    cell.inbox.line = Line.CELL_READY
    lane.cells.append(cell)
    yard._cells[OWN] = cell
    cell.attend(yard._selector, NOBODY)
    flights = [flight() for _ in range(4)]
    for number, each in enumerate(flights, 1):
        each.handle, each.lease_until = number, 200.0
    yard.enter(flights, 100.0)
    yard.dispatch(100.0)
    assert list(cell.flights) == [1, 2, 3, 4]
    assert cell.shelf is not None
    signals: list[int] = []
    yard._signal = lambda cell, number: signals.append(number)
    yield yard, cell, flights, signals, there
    there.close()


def taken(cell):
    """Take an attempt from the shelf, as the cell does, and say that it starts."""
    inbox = Inbox(Line.TO_SERIAL_CELL)
    inbox.accept(cell.shelf.theirs.recv(1 << 16, socket.MSG_DONTWAIT))
    [(message, _)] = inbox.messages()
    cell.shelf.theirs.send(framing.frame(wire.Started((message.works[0].handle,))))


def test_what_lies_before_a_busy_cell_waits_for_another_one(lined):
    """After a few milliseconds; then it is as if it had never been given."""
    yard, cell, flights, _, _ = lined
    cell.shelf.theirs.send(framing.frame(wire.Started((1,))))
    wakes_at = yard.wake_at(100.0)

    yard.tick(100.0 + SHELF_SECONDS)

    assert 100.0 + SHELF_SECONDS == wakes_at
    assert [1] == list(cell.flights)
    assert flights[1:] == list(cell.lane.waiting)
    assert [False] * 3 == [each.sent for each in flights[1:]]
    assert 1 == cell.jobs


def test_words_that_wake_nobody_are_heard_all_the_same(lined):
    """The end of one behind which another takes its time is settled before that ends."""
    yard, cell, flights, _, _ = lined
    cell.shelf.theirs.send(framing.frame(wire.Started((1,))))
    cell.shelf.theirs.send(ENDED_1)
    taken(cell)

    yard.tick(100.0 + SHELF_SECONDS)

    assert flights[:1] == yard.ended
    assert [2] == list(cell.flights)


@pytest.mark.parametrize("reason", [StopReason.CANCEL, StopReason.DRAIN, StopReason.LOST, StopReason.LEASE])
def test_a_stop_of_what_lies_before_a_cell_does_not_touch_the_cell(lined, reason):
    """It was not started, and what the cell makes is another's."""
    yard, cell, flights, signals, _ = lined

    yard.stop(flights[2], reason, 101.0)

    assert (Lost if reason is StopReason.LOST else Unstarted) is type(flights[2].outcome)
    assert [] == signals
    assert [1] == list(cell.flights)
    assert [flights[1], flights[3]] == list(cell.lane.waiting)


def test_a_stop_asks_only_the_attempt_that_runs(lined):
    """The signal goes to a process: one that has ended, although it was not heard yet, must not end the next."""
    yard, cell, flights, signals, _ = lined
    taken(cell)

    yard.stop(flights[0], StopReason.CANCEL, 101.0)
    first = list(signals)
    yard.stop(flights[1], StopReason.CANCEL, 101.0)

    assert [] == first
    assert [signal.SIGTERM] == signals


def test_a_drain_takes_back_what_lies_before_cells(lined):
    """It has no cell yet, and goes back to the store unspent."""
    yard, _, flights, _, _ = lined

    yard.withdraw_waiting(101.0)

    assert flights[1:] == yard.ended
    assert [Unstarted] * 3 == [type(each.outcome) for each in flights[1:]]


def test_a_dead_cell_has_only_what_it_took(lined):
    """What it had taken counts as started although it never said so; what it had not taken waits again."""
    yard, cell, flights, _, _ = lined
    cell.shelf.theirs.send(framing.frame(wire.Started((1,))))
    cell.shelf.theirs.send(ENDED_1)
    cell.shelf.theirs.recv(1 << 16)

    yard._exited(wire.Exited(OWN, signal.SIGKILL, guarded=False), 101.0)

    assert [Completed, Crashed] == [type(each.outcome) for each in yard.ended]
    assert flights[:2] == yard.ended
    assert flights[2:] == list(cell.lane.waiting)


def test_a_cell_that_stops_taking_keeps_nothing(lined):
    """When it has said an end on its line, what lies before it is for others."""
    yard, cell, flights, _, there = lined
    cell.shelf.theirs.send(framing.frame(wire.Started((1,))))
    there.sendall(ENDED_1)

    yard._hear(cell, 101.0)

    assert flights[:1] == yard.ended
    assert flights[1:] == list(cell.lane.waiting)
    assert {} == cell.flights


def settled(yard, *, started, said):
    """Have a HIGH cell say how its attempt ended, or nothing, and be ended by SIGSYS; return the attempt's outcome."""
    here, there = socket.socketpair()
    here.setblocking(False)
    sent = flight(Tier.HIGH)
    sent.started = started
    lane = next(lane for lane in yard._lanes if lane.kind is Kind.SINGLE)
    cell = Cell(OWN, lane, here, state=CellState.READY, flights={1: sent})
    cell.inbox.line = Line.CELL_READY
    lane.cells.append(cell)
    yard._cells[OWN] = yard._seats._where[1] = cell
    cell.attend(yard._selector, NOBODY)
    if said is not None:
        yard._take(cell, wire.Ended((wire.Ending(1, said),)), b"", 100.0)
    before = list(yard.ended)
    yard._exited(wire.Exited(OWN, signal.SIGSYS, guarded=False), 100.0)
    there.close()
    assert ([], [sent]) == (before, yard.ended)
    return sent.outcome


@pytest.mark.parametrize("said", [None, wire.How.COMPLETED, wire.How.PERMANENT, wire.How.SNOOZED])
def test_a_violation_counts_whatever_was_said(yard, said):
    """At HIGH nothing that a cell says is settled before it is known how it died."""
    outcome = settled(yard, started=True, said=said)

    assert isinstance(outcome, Suspicious)


@pytest.mark.parametrize("said", [None, wire.How.REFUSED, wire.How.HELD])
def test_a_violation_before_the_start_is_suspicious_too(yard, said):
    """Checks and loaders are code of the app's: its cell was ended for what they did with the job."""
    outcome = settled(yard, started=False, said=said)

    assert isinstance(outcome, Judged)
    assert isinstance(outcome.verdict, Refuse)
    assert outcome.verdict.suspicious


# ------------------------------------------------------------------------------------------ few cells for what is quick


@pytest.mark.parametrize(
    "tiers,sizes",
    [([Tier.MEDIUM] * 25, [10, 10, 5]), ([Tier.LOW] * 25, [25]), ([Tier.LOW] * 5 + [Tier.HIGH] * 6, [10, 1]), ([], [])],
    ids=["medium", "low", "mixed", "none"],
)
def test_what_is_judged_goes_to_cells_in_portions(yard, tiers, sizes):
    """While a cell makes one portion the next is judged; the one cell of LOW gets all at once."""
    assert sizes == [len(portion) for portion in yard.portions([flight(tier) for tier in tiers])]


NOW = 100.0


def staffed(cells: int, waiting: int, *, hands: int = 2) -> Lane:
    """A lane with shelves and so many idle cells, for which so many flights have waited since a second."""
    lane = Lane("serial", Kind.SERIAL, 1, 100, 1_000, always=1, shelves=True, hands=hands)
    for number in range(cells):
        here, there = socket.socketpair()
        with here, there:  # nothing is said on it
            lane.cells.append(Cell(number, lane, here, state=CellState.READY))
    for number in range(waiting):
        each = flight()
        each.handle, each.entered_at = number, NOW - 1
        lane.waiting.append(each)
    return lane


def placed(lane: Lane, now: float) -> list[tuple[int, int]]:
    """Seat what a lane places; return which cell got how many."""
    found = lane.place(now)
    for cell, flights in found:
        cell.seat(flights, now)
    return [(cell.number, len(flights)) for cell, flights in found]


def test_quick_flights_wake_no_more_cells_than_there_are_processors():
    """The others wait for these cells, which will be done in a moment; not longer than that."""
    lane = staffed(cells=5, waiting=50)

    first = placed(lane, NOW)
    held_until = lane.held_until
    second = placed(lane, NOW + SHELF_SECONDS / 2)
    third = placed(lane, held_until)

    assert [(0, 10), (1, 10)] == first
    assert NOW + SHELF_SECONDS == held_until
    assert [] == second
    assert [(2, 10), (3, 10)] == third


def test_a_cell_at_a_long_flight_counts_as_no_hand():
    """What is quick does not wait for it."""
    lane = staffed(cells=3, waiting=3)
    for cell in lane.cells[:2]:
        cell.seat([lane.waiting.popleft()], NOW - SHELF_SECONDS)

    assert [(2, 1)] == placed(lane, NOW)


def test_flights_that_take_their_time_get_all_cells():
    """One each, at once."""
    lane = staffed(cells=5, waiting=5)
    lane.pace.late(POLICIES["medium@1"].name, NOW)

    assert [(number, 1) for number in range(5)] == placed(lane, NOW)


def test_no_cell_is_made_for_what_a_quick_one_will_have_done_sooner():
    """There is one for what has waited longer; and few are born at a time, so that the first is there soon."""
    lane = staffed(cells=1, waiting=0)
    lane.waiting.extend(flight() for _ in range(9))
    for each in lane.waiting:
        each.entered_at = NOW
    lane.cells[0].state = CellState.DYING
    lane.pace.late(POLICIES["medium@1"].name, NOW)

    assert 1 == lane.missing(NOW)  # the one that is always there
    assert 2 * BIRTHS_A_HAND == lane.missing(NOW + SHELF_SECONDS)


@pytest.mark.parametrize(
    "ended,started,goes_on",
    [
        (5, 1, [True, False]),
        (4, 1, [False]),
        (9, 1, [True, False]),
        (0, 0, [True] * DELAYS_MAX + [False]),
        (0, 1, [False]),
    ],
    ids=["half-ended", "less-than-half", "all-but-one", "not-begun", "at-its-first"],
)
def test_a_shelf_is_left_alone_while_half_of_it_ends(ended, started, goes_on):
    """What makes them quickly goes on, and what did not even begin may be waiting for a processor; not for ever."""
    lane = staffed(cells=1, waiting=10)
    placed(lane, NOW)
    [cell] = lane.cells
    for handle in list(cell.flights)[:ended]:
        del cell.flights[handle]
    for each in list(cell.flights.values())[:started]:
        each.started = True

    assert goes_on == [cell.goes_on(NOW) for _ in goes_on]


def test_what_a_cell_did_not_take_does_not_count_as_ended():
    """Else a shelf on which there was no room would look as if half of it had been made."""
    lane = staffed(cells=1, waiting=10)
    [(cell, flights)] = lane.place(NOW)
    cell.seat(flights, NOW)
    flights[0].started = True

    cell.unseat(flights[5:])

    assert [0, 1, 2, 3, 4] == list(cell.flights)
    assert 5 == cell.jobs
    assert not cell.goes_on(NOW)
