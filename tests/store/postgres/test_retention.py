"""How finished jobs are forgotten: entries of `retention` say where to look, and completing a job touches no index."""

from __future__ import annotations

import pytest

from benteng.store.postgres import migrate
from benteng.testing.bench import quarantine, settlement
from benteng.testing.ledger import BRIEF, HIGH, LOW

DAY = 86_400
BATCH = 50
UPDATES = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'benteng.operation'::regclass"
ENTRIES = "select until, cardinality(seqs) from benteng.retention order by until"
END = """
  select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity
  where datname = current_database() and application_name like 'benteng-%'
"""
DATED = "select keep_until from benteng.operation where keep_until is not null order by 1"
DUE = "select until, unnest(seqs) from benteng.retention order by 1, 2"
BEFORE = """
  drop table benteng.retention;
  create index operation_result on benteng.operation (result_until) where result_until is not null;
  create index operation_keep on benteng.operation (keep_until) where keep_until is not null;
"""
"""A ledger as it was before step 007."""


@pytest.fixture
def done(bench):
    """Return a function that completes so many jobs of a type in one settlement, and returns their ids."""

    def complete(policy=BRIEF, n=BATCH):
        bench.admit(*(bench.job(policy) for _ in range(n)))
        grants = bench.claim(n)
        return [each.job_id for each in bench.settle(*(settlement(grant) for grant in grants))]

    return complete


def test_completing_touches_no_index(bench, owner, done):
    """Nearly every completion is heap-only, also when all rows of a page complete in one transaction."""
    for _ in range(10):
        done(LOW)
    bench.ledger.close()
    owner.execute(END)  # a session that ends has told its counters
    updates, heap_only = owner.execute(UPDATES).fetchone()

    assert 10 * BATCH == updates
    assert 0.9 * updates <= heap_only


def test_what_comes_due_together_is_one_entry(owner, done):
    """One settlement leaves one entry for each time, however many jobs; what is kept for ever leaves none."""
    done(LOW)
    done(BRIEF)
    done(LOW, 1)

    assert [BATCH, BATCH, 1] == [count for _, count in owner.execute(ENTRIES)]


def test_what_is_kept_for_ever_leaves_no_entry(bench, owner):
    """An operation of HIGH whose result has gone is looked at no more."""
    bench.settle(settlement(bench.started(HIGH, operation="a")))
    bench.advance(3_601)

    assert 1 == bench.keeper.purge(100)
    assert [] == owner.execute(ENTRIES).fetchall()


def test_what_somebody_holds_stays_due(bench, owner, postgres, ledger, done):
    """Purge waits for nobody: a row that another transaction holds is forgotten the next time."""
    ids = done()
    bench.advance(2 * DAY)
    with postgres.connect(dbname=ledger.site.database) as other, other.transaction():
        other.execute("select from benteng.operation where job_id = %s for update", [ids[0]])
        first = [bench.keeper.purge(1_000) for _ in range(3)]
        left = bench.producer.status(ids)

    assert ([2 * (BATCH - 1), 0, 0], [ids[0]]) == (first, [each.job_id for each in left])
    assert 2 == bench.keeper.purge(1_000)
    assert [] == owner.execute(ENTRIES).fetchall()


def test_two_purges_share_what_is_due(bench, owner, postgres, ledger, done):
    """An entry that another purge has in its hands is its own; when that is undone, nothing is lost."""
    ids = done()
    bench.advance(2 * DAY)
    with postgres.connect(dbname=ledger.site.database) as other:
        other.execute("begin")
        other.execute("select benteng.take_due(benteng.now(), 10)")
        assert 0 == bench.keeper.purge(1_000)
        other.execute("rollback")

    assert 2 * BATCH == bench.keeper.purge(1_000)
    assert [] == list(bench.producer.status(ids))
    assert [] == owner.execute(ENTRIES).fetchall()


def test_migration_finds_what_was_finished_before(bench, owner, done):
    """Step 007 makes for each operation the entry that its settlement would have left, and none for others."""
    grant = bench.started(HIGH, operation="a")
    done(BRIEF)
    bench.settle(settlement(grant))
    bench.advance(3_601)
    assert BATCH + 1 == bench.keeper.purge(1_000)
    done(LOW, 2)
    bench.settle(quarantine(bench.started(BRIEF)))
    bench.started(BRIEF)
    due = owner.execute(DUE).fetchall()
    (step,) = [each for each in migrate.migrations() if "007" in each.name]

    owner.execute(f"{BEFORE} {step.text}".encode())

    assert BATCH + 2 == len(due)
    assert due == owner.execute(DUE).fetchall()


def test_migration_dates_what_was_stopped_before(bench, owner):
    """Step 011 gives what was cancelled or discarded the time that it have now; HIGH and what is set apart none."""
    stopped = [bench.admitted(policy, operation="a").id for policy in (BRIEF, LOW, HIGH)]
    bench.operator.cancel(stopped, "a reason")
    bench.settle(quarantine(bench.started(BRIEF)))
    due, dated = owner.execute(DUE).fetchall(), owner.execute(DATED).fetchall()
    owner.execute("update benteng.operation set keep_until = null")
    owner.execute("delete from benteng.retention")
    (step,) = [each for each in migrate.migrations() if "011" in each.name]

    owner.execute(step.text.encode())

    assert 2 == len(due) == len(dated)
    assert due == owner.execute(DUE).fetchall()
    assert dated == owner.execute(DATED).fetchall()
