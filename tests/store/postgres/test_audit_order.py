from __future__ import annotations

import hashlib
import hmac

import psycopg
import pytest

from benteng.audit import Frontier, verify_page
from benteng.testing.bench import records

LATE = "insert into benteng.audit (at, event, detail) values (benteng.now(), 'purged', 'late')"


def test_record_that_commits_late_is_not_skipped(ledger, bench, postgres):
    """A record whose number was drawn before others but committed after them keeps the log waiting, and is in it."""
    with postgres.connect(dbname=ledger.site.database) as slow:
        slow.autocommit = False
        slow.execute(LATE)
        bench.admitted()
        before = records(bench.audit())
        slow.commit()

    rows = bench.audit()

    assert "late" not in [record["detail"] for record in before]
    assert "admitted" not in [record["event"] for record in before]
    assert ["late", "admitted"] == [record["detail"] or record["event"] for record in records(rows)[-2:]]
    assert () == verify_page(rows, 1, Frontier()).problems


def test_rolled_back_record_leaves_no_gap(ledger, bench, postgres):
    """A number that nobody committed is no number of the log."""
    with postgres.connect(dbname=ledger.site.database) as slow:
        slow.autocommit = False
        slow.execute(LATE)
        slow.rollback()
    bench.admitted()

    rows = bench.audit()

    assert list(range(1, len(rows) + 1)) == [row.seq for row in rows]


def test_what_was_numbered_never_moves(bench):
    """Pages that were read once are the same later, whatever was written since."""
    bench.started()
    first = bench.audit()
    bench.admitted()

    assert first == bench.audit()[: len(first)]


def test_claim_is_recorded_under_its_fence(bench, owner):
    """One sequence numbers fences and records: the record of a claim is its fence, so the log shows fences rising."""
    grant = bench.started()

    (found,) = owner.execute("select id from benteng.audit where event = 'claimed'").fetchall()

    assert (grant.lease.fence,) == found


@pytest.mark.parametrize(
    "statement",
    [
        "update benteng.audit set detail = 'x'",
        "delete from benteng.audit",
        "truncate benteng.audit",
        "update benteng.audit_order set seq = seq + 1000",
        "delete from benteng.audit_order",
        "delete from benteng.resource",
        "delete from benteng.job_type",
        "delete from benteng.installation",
    ],
)
def test_not_even_the_owner_rewrites_by_mistake(bench, owner, statement):
    """Triggers refuse to change or delete what is kept for ever, whoever asks."""
    bench.started(resources=("host:a",))
    bench.audit()

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        owner.execute(statement.encode())


def test_digests_are_keyed_as_in_python(owner):
    """`keyed` is HMAC-SHA256 over the hex text, truncated: what redact.keyed computes with the same key."""
    key, digest = bytes(range(32)), hashlib.sha256(b"value").digest()
    pads = owner.execute("select benteng.pad(%s, 54), benteng.pad(%s, 92)", [key, key]).fetchone()

    inner = hashlib.sha256(pads[0] + digest.hex().encode()).digest()

    assert hmac.digest(key, digest.hex().encode(), "sha256") == hashlib.sha256(pads[1] + inner).digest()
