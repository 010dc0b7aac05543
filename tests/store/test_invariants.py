from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from benteng.decide import Disposition
from benteng.testing.bench import Bench, settlement
from benteng.testing.invariants import BrokenLedgerError, check_ledger
from benteng.testing.ledger import MEDIUM

ANOTHER = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def bench(ledger):
    """A ledger with a completed, a running, a blocked, a retried and a cancelled job."""
    bench = Bench(ledger)
    bench.settle(settlement(bench.started(MEDIUM, operation="done")))
    bench.settle(settlement(bench.started(MEDIUM, operation="retry"), Disposition.RETRY, delay_seconds=9.0))
    bench.producer.cancel([bench.admitted(MEDIUM, operation="gone").id], "a reason")
    bench.started(MEDIUM, operation="runs", resources=("host:a",))
    bench.admitted(MEDIUM, operation="waits", resources=("host:a",))
    bench.claim()
    return bench


def by_hand(bench, *statements):
    """Change the file behind the store's back; triggers that would refuse are taken out first."""
    with closing(sqlite3.connect(bench.ledger.path)) as connection, connection:
        for (trigger,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            connection.execute(f"drop trigger {trigger}")
        connection.execute("drop index operation_key")
        connection.execute("pragma ignore_check_constraints = on")
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement


def test_sound_ledger_passes(bench):
    """A ledger that only the store has written keeps every invariant."""
    check_ledger(bench.ledger, bench.journal)


BREAKS = {
    "I1 lost": [
        "delete from operation where job_id = (select id from job where state = 'scheduled')",
        "delete from job where state = 'scheduled'",
    ],
    "I1 changed": ["update operation set payload_sha256 = 'x'", "update job set payload_sha256 = 'x'"],
    "I3": ["update job set fence = fence + 7 where state = 'running'"],
    "I5": ["update resource set fence = fence - 1"],
    "I7": ["update job set attempts = attempts + 7 where state = 'running'"],
    "I8": [
        "update job set operation_key = 'k' where state = 'running'",
        "update operation set key = 'k', epoch = 1",
    ],
    "I10": ["update resource set holder = (select id from job where state = 'blocked')"],
    "its records end at running": [
        "update job set state = 'held', token = null, lease_until = null where state = 'running'",
    ],
    "I12 L-gap": ["delete from audit where seq = 3"],
    "I12 L-body": ["update audit set body = cast(replace(cast(body as text), 'claimed', 'x') as blob) where seq > 9"],
}
"""Which invariant each change by hand breaks."""


@pytest.mark.parametrize("broken", BREAKS)
def test_broken_ledger_is_found(bench, broken):
    """The oracle itself is tested: what was changed by hand is found, under the invariant that it breaks."""
    check_ledger(bench.ledger, bench.journal)
    bench.ledger.close()
    by_hand(bench, *BREAKS[broken])

    with pytest.raises(BrokenLedgerError) as found:
        check_ledger(bench.ledger, bench.journal)

    assert broken in str(found.value)


def test_lie_to_a_client_is_found(bench):
    """A completion that a client was told of and that the store does not know is found."""
    bench.journal.completed.append(bench.journal.started[-1].job_id)

    with pytest.raises(BrokenLedgerError, match="I1 undone"):
        check_ledger(bench.ledger, bench.journal)


def test_phantom_is_found(bench):
    """A grant of a job that does not exist is found."""
    start = bench.journal.started[0]
    bench.journal.started.append(type(start)(ANOTHER, 1, "t", "x"))

    with pytest.raises(BrokenLedgerError, match="I2 phantom"):
        check_ledger(bench.ledger, bench.journal)


def test_two_successes_are_found(bench):
    """One operation that was told to be completed twice is found."""
    bench.journal.completed *= 2

    with pytest.raises(BrokenLedgerError, match=r"I8 .* completed 2 times"):
        check_ledger(bench.ledger, bench.journal)
