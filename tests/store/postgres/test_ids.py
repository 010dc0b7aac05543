"""One row of `job` for each id, though no index of it is unique: a unique one is read from its first version on."""

from __future__ import annotations

import pytest

from benteng.lifecycle import State
from benteng.testing.invariants import BrokenLedgerError, check_ledger

UNIQUE = "select indexrelid::regclass::text from pg_index where indrelid = 'benteng.job'::regclass and indisunique"
SAME = "create temporary table same as select * from benteng.job where id = %s"


def test_no_index_of_a_job_asks_for_all_its_versions(ledger, owner):
    """Whoever inserts into a unique index looks at each dead version there: a storm of retries makes many."""
    assert [] == owner.execute(UNIQUE).fetchall()


def test_a_second_row_of_one_id_is_found(bench, owner):
    """No verb makes one. If somebody did by hand, the invariants say so."""
    job = bench.admitted(entry=State.HELD)
    owner.execute(SAME, [job.id])
    owner.execute("insert into benteng.job select * from same")

    with pytest.raises(BrokenLedgerError, match=f"I8 {job.id} is in the ledger twice"):
        check_ledger(bench.ledger, bench.journal)
    owner.execute("delete from benteng.job where ctid = (select max(ctid) from benteng.job)")
