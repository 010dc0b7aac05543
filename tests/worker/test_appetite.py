"""When the queue is asked for more, by what its last answers and its hints tell."""

from __future__ import annotations

from random import Random

import pytest

from benteng.worker.appetite import HINT_SECONDS_MIN, IDLE_SECONDS, Appetite

SLOTS = 10


@pytest.fixture
def appetite():
    """One that asked at 0 and got nothing, of a queue that tells."""
    appetite = Appetite(0.5, Random(1))  # noqa: S311 - jitter of a test, not a secret
    appetite.answered(0.0, 0, SLOTS, tells=True)
    return appetite


def test_a_full_answer_makes_it_ask_at_once(appetite):
    """There may be more of them."""
    appetite.answered(1.0, SLOTS, SLOTS, tells=True)

    assert appetite.wants(1.0, settles=False)
    assert not appetite.waits


def test_a_short_answer_is_asked_after_with_the_next_settlement(appetite):
    """Who came during the claim gave no hint. One look is enough, and costs no round trip of its own."""
    appetite.answered(1.0, 1, SLOTS, tells=True)
    alone, along = (appetite.wants(1.001, settles=settles) for settles in (False, True))
    appetite.answered(1.001, 0, SLOTS, tells=True)

    assert (False, True, False) == (alone, along, appetite.wants(1.002, settles=True))


def test_a_short_answer_is_asked_after_soon_when_nothing_is_settled(appetite):
    """Also while what was claimed goes on for long; then less and less often."""
    appetite.answered(1.0, 1, SLOTS, tells=True)
    pauses = []
    for _ in range(12):
        now = appetite.look_at
        appetite.answered(now, 0, SLOTS, tells=True)
        pauses.append(appetite.look_at - now)

    assert pauses[0] <= 1.25 * 2 * HINT_SECONDS_MIN
    assert 1.0 < pauses[-1] <= 1.25 * IDLE_SECONDS


def test_a_queue_that_tells_nothing_is_asked_as_often_as_it_was_set(appetite):
    """Where no hint can come there is nothing but polling."""
    for _ in range(12):
        appetite.answered(appetite.look_at, 0, SLOTS, tells=False)
        now = appetite.look_at
    appetite.answered(now, 0, SLOTS, tells=False)

    assert 0.75 * 0.5 <= appetite.look_at - now <= 1.25 * 0.5


def test_a_hint_makes_it_look_at_once(appetite):
    """However long the queue was to be left alone."""
    appetite.hint(0.1)

    assert appetite.wants(0.1, settles=False)


def test_hints_that_nothing_comes_of_are_heeded_seldom(appetite):
    """Anybody may send them."""
    appetite.hint(0.1)
    appetite.answered(0.1, 0, SLOTS, tells=True)
    appetite.hint(0.101)

    assert not appetite.wants(0.1 + 0.9 * HINT_SECONDS_MIN, settles=False)
    assert appetite.wants(0.1 + 1.1 * HINT_SECONDS_MIN, settles=False)


def test_a_hint_for_what_was_just_taken_makes_the_next_one_no_worse(appetite):
    """A claim may take a job before its hint is heard: once for each answer that brought something."""
    appetite.answered(1.0, 1, SLOTS, tells=True)
    appetite.hint(1.0)
    appetite.answered(1.0, 0, SLOTS, tells=True)
    appetite.hint(1.001)
    heeded = appetite.wants(1.001, settles=False)
    appetite.answered(1.001, 0, SLOTS, tells=True)
    appetite.hint(1.002)

    assert (True, False) == (heeded, appetite.wants(1.002, settles=False))
