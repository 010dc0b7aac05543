"""What a claim asks about the types of its pool is gathered ahead: it says what they say, and what was accepted."""

from __future__ import annotations

import threading

import psycopg
import pytest

from benteng.errors import StoreUnavailable
from benteng.testing.ledger import LOW, MEDIUM
from tests.support import waiting

GATHERED = "select pool, types, leases, limits from benteng.pool_types order by pool"
SAID = """
  select
    t.pool, array_agg(t.name order by t.name), array_agg(t.lease_seconds order by t.name),
    array_agg(t.attempts_max order by t.name)
  from benteng.job_type t
  group by t.pool
  order by t.pool
"""
LONGER = "update benteng.job_type set lease_seconds = lease_seconds + 1 where name = %s"
WAITING = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
CLAIM = "select count(job_id) from benteng_v1.claim(10, {}, 'raw')"


def gathered(owner):
    """Return the rows of the pools, which are what the types say."""
    found = owner.execute(GATHERED).fetchall()
    assert owner.execute(SAID).fetchall() == found
    return found


def test_each_change_of_a_type_is_gathered(bench, owner):
    """A longer lease, a type that moves to another pool, and a pool that has no types any more."""
    pools = [row[0] for row in gathered(owner)]

    owner.execute(LONGER, [LOW.name])
    gathered(owner)
    owner.execute("update benteng.job_type set pool = 'another' where name = %s", [MEDIUM.name])
    assert sorted([*pools, "another"]) == [row[0] for row in gathered(owner)]
    owner.execute("update benteng.job_type set pool = 'another'")
    assert ["another"] == [row[0] for row in gathered(owner)]


def test_two_changes_at_once_are_both_gathered(bench, ledger, owner, postgres):
    """The second waits for the first and sees what it has changed, though it began before."""
    with (
        postgres.connect(dbname=ledger.site.database) as first,
        postgres.connect(dbname=ledger.site.database) as second,
    ):
        first.execute("begin")
        first.execute(LONGER, [LOW.name])
        other = threading.Thread(target=second.execute, args=[LONGER, [MEDIUM.name]])
        other.start()
        waiting.until(lambda: owner.execute(WAITING).fetchone())
        first.execute("commit")
        other.join()

    gathered(owner)


@pytest.mark.parametrize("accepts", ["null", "'{}'", "array[null]", f"array['{MEDIUM.name}']"])
def test_who_accepts_no_type_of_a_job_does_not_get_it(bench, ledger, accepts):
    """Whatever a stolen login says it accepts: a claim starts what is named there, and nothing else."""
    bench.admitted(LOW)

    with psycopg.connect(ledger.site.dsn("t_default")) as raw:
        assert (0,) == raw.execute(CLAIM.format(accepts).encode()).fetchone()


def test_a_keeper_notes_in_which_server_the_history_was_found_right(bench, owner):
    """Claims there need not read the server's control file again."""
    noted = "select compared_at = pg_postmaster_start_time() from benteng.history"
    before = owner.execute(noted).fetchone()

    bench.stage()

    assert ((False,), (True,)) == (before, owner.execute(noted).fetchone())


def test_a_note_of_another_server_is_no_proof(bench, owner):
    """A dump has the note of the server that it was made in: elsewhere the identifier is compared again."""
    bench.stage()
    bench.admitted()
    owner.execute("update benteng.history set system_identifier = '1', compared_at = compared_at - interval '1 us'")

    with pytest.raises(StoreUnavailable, match="promoted or restored"):
        bench.consumer.claim(1, [LOW.name])

    owner.execute("update benteng.history set system_identifier = benteng.system_identifier()")
