"""What no function of ours may ever write is refused by the tables themselves, from a ledger of any age on."""

from __future__ import annotations

import psycopg
import pytest

from benteng import lifecycle
from benteng.lifecycle import OperationState
from benteng.store.postgres import migrate

WRONG = {
    "operation-state": "update benteng.operation set state = 'gone'",
    "operation-end": "update benteng.operation set ended = 'gone'",
    "operation-key": "update benteng.operation set key = 'short'",
    "freed-alone": "update benteng.operation set freed = true",
    "job-state": "update benteng.job set state = 'gone' where state = 'ready'",
    "running-without-lease": "update benteng.job set lease_until = null where state = 'running'",
    "running-without-token": "update benteng.job set token = null where state = 'running'",
    "lease-of-what-waits": "update benteng.job set lease_until = now(), token = 'x' where state = 'ready'",
    "blocked-by-nothing": "update benteng.job set state = 'blocked' where state = 'ready'",
}
"""What would be wrong, and how somebody with all rights tries to write it."""

STATES = {
    "job_state": frozenset(map(str, lifecycle.ACTIVE)),
    "operation_state": frozenset(map(str, OperationState)),
    "ending": frozenset(map(str, lifecycle.TERMINAL)),
}
TAKEN = "select count(*) from (select unnest(%s::text[])::benteng.{}) v"
SAID = "select pg_get_constraintdef(oid) from pg_constraint where contypid = %s::regtype"
LEFT = "select job_id, key, state, ended, name, type, seq from benteng.operation order by seq"
OLD = """
  insert into benteng.operation (
    seq, job_id, key, epoch, state, ended, payload_sha256, type, tier, origin, actor, request_id, priority,
    policy_sha256, artifacts, targets, resources, summary, admitted_at)
  select
    n, gen_random_uuid(), sha256(int8send(n)), 1, case n when 1 then 'completed' else 'reserved' end,
    case n when 1 then 'completed' end, '', 'a.b@7', 'low', 'o', 'a', '', 4, '', '{}', '{}', '{}', '{}', now()
  from generate_series(1::bigint, 3) n
"""
OLD_JOB = """
  insert into benteng.job (
    id, seq, state, type, tier, priority, due_at, origin, actor, request_id, payload, payload_sha256, operation_key,
    envelope, policy_sha256, artifacts, targets, resources, summary, admitted_at)
  select
    o.job_id, o.seq, 'ready', o.type, o.tier, 4, now(), o.origin, o.actor, '', '', '', o.key, '', '', '{}', '{}', '{}',
    '{}', now()
  from benteng.operation o
  where o.state = 'reserved'
"""


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_row_is_refused_by_its_table(bench, owner, wrong):
    """Also when the owner's own hand writes it."""
    bench.started()
    bench.admitted()

    with pytest.raises(psycopg.errors.CheckViolation):
        owner.execute(WRONG[wrong])


@pytest.mark.parametrize("domain", STATES)
def test_states_are_those_of_the_life_cycle(owner, domain):
    """The types of the columns take what lifecycle.py says, and name nothing else."""
    (said,) = owner.execute(SAID, [f"benteng.{domain}"]).fetchone()

    assert (len(STATES[domain]),) == owner.execute(TAKEN.format(domain).encode(), [[*STATES[domain]]]).fetchone()
    assert len(STATES[domain]) == said.count("'::text")


def test_rows_from_before_are_kept(postgres, monkeypatch):
    """A ledger that has rows when its checks become types has the same rows after it, and they are checked."""
    name = postgres.create_database()
    steps = migrate.migrations()
    monkeypatch.setattr(migrate, "migrations", lambda: steps[:18])
    migrate.up(postgres.dsn(dbname=name), "dev")
    with postgres.connect(dbname=name) as session:
        session.execute(OLD)
        session.execute(OLD_JOB)
        before = session.execute(LEFT).fetchall()
        monkeypatch.setattr(migrate, "migrations", lambda: steps)
        migrate.up(postgres.dsn(dbname=name), "dev")

        assert before == session.execute(LEFT).fetchall()
        assert {"a.b"} == {row[4] for row in before}
        with pytest.raises(psycopg.errors.CheckViolation):
            session.execute("update benteng.job set state = 'gone'")
    postgres.drop_database(name)
