"""When ended attempts are settled, by numbers alone."""

from __future__ import annotations

import pytest

from benteng.worker.backlog import GATHER_SECONDS, LINGER_SECONDS, SETTLE_MAX, Backlog, share

NOW, NEVER = float("-inf"), float("inf")


@pytest.mark.parametrize(
    "ended,flights,waiting,due_at",
    [
        (0, 0, False, NEVER),
        (0, 4, True, NEVER),
        (1, 1, False, NOW),
        (4, 4, False, NOW),
        (1, 4, False, 100 + LINGER_SECONDS),
        (1, 4, True, 100 + GATHER_SECONDS),
        (2, 3, True, NOW),
        (3, 5, True, 100 + GATHER_SECONDS),
        (2, 3, False, 100 + LINGER_SECONDS),
        (SETTLE_MAX, 1_000, True, NOW),
        (SETTLE_MAX + 1, 1_000, False, NOW),
    ],
    ids=[
        "idle",
        "none-ended",
        "one-slot",
        "all-ended",
        "others-run",
        "cells-lack",
        "two-thirds-ended",
        "less-than-two-thirds",
        "two-thirds-but-no-cell-lacks",
        "many",
        "too-many",
    ],
)
def test_ended_attempts_wait_for_others_but_not_long(ended, flights, waiting, due_at):
    """At once when nothing else can end, also with one slot; after a while else; longer where cells are being made."""
    since = 100.0 if ended else NEVER

    assert due_at == Backlog(ended, flights, since, waiting).due_at


@pytest.mark.parametrize(
    "ended,waiting,gathers",
    [(0, True, False), (1, True, True), (1, False, False)],
    ids=["nothing-to-settle", "cells-lack", "a-cell-is-free"],
)
def test_a_claim_goes_along_at_once_where_it_starts_something(ended, waiting, gathers):
    """A free cell is never left idle for the sake of a larger batch, and a first claim waits for nobody."""
    assert gathers is Backlog(ended, 4, 100.0, waiting).gathers


@pytest.mark.parametrize(
    "slots,jobs", [(1, 1), (10, 10), (31, 31), (32, 16), (201, 101), (1_000, SETTLE_MAX)], ids=lambda each: f"{each}"
)
def test_a_claim_leaves_half_of_many_slots_to_the_next(slots, jobs):
    """While one half runs the ledger starts the other; with few slots a call costs more than that gains."""
    assert jobs == share(slots, overlaps=True, serial=False)


@pytest.mark.parametrize("slots,jobs", [(1, 1), (7, 7), (8, 4), (10, 5), (100, 50)], ids=lambda each: f"{each}")
def test_a_claim_leaves_half_of_a_few_slots_where_cells_make_one_at_a_time(slots, jobs):
    """What the ledger's call overlaps with takes longer there."""
    assert jobs == share(slots, overlaps=True, serial=True)


def test_a_claim_starts_all_where_the_ledger_works_only_while_it_is_waited_for():
    """Two calls instead of one would start nothing sooner."""
    assert [200, SETTLE_MAX] == [share(slots, overlaps=False, serial=True) for slots in (200, 1_000)]


def test_a_claim_waits_for_what_ends_in_a_moment():
    """Where a cell makes several, one after the other, they are settled together, by one call."""
    assert Backlog(1, 10, 100.0, waiting=False, flowing=True).gathers
    assert not Backlog(0, 10, NEVER, waiting=False, flowing=True).gathers
    assert 100.0 + LINGER_SECONDS == Backlog(1, 10, 100.0, waiting=False, flowing=True).due_at
