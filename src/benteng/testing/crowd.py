"""A PostgreSQL ledger with as many jobs as a busy year leaves behind: what a plan is worth shows only in a crowd.

The superuser writes rows as the verbs would have, in three statements, instead of calling the verbs a million times.
Only for ledgers of tests and benchmarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

ORIGINS = 40
RESOURCES = 1_000
PAYLOAD_BYTES = 300

# Ids rise with the row, keys are spread like digests. Each fifth job wants one of the resources; due times are past.
_CROWD = """
create temporary table crowd as
select
  n, ('00000000-0000-7000-8000-' || lpad(to_hex(n + %(first)s), 12, '0'))::uuid as id,
  nextval('benteng.admission') as seq, k.kind, t.name as type, t.tier, t.sha256, t.pool,
  sha256(int8send(n + %(first)s)) as key,
  convert_to(rpad(format('{"x":"%%s', n + %(first)s), %(bytes)s - 2, 'x') || '"}', 'utf8') as payload,
  format('crowd:%%s', n %% %(origins)s) as origin, (n %% 3 + 4)::smallint as priority,
  case when t.name = 't.medium@1' then array[format('host:%%s', n %% %(resources)s)] else '{}' end as resources,
  benteng.now() - interval '1 hour' + n * interval '1 microsecond' as at
from generate_series(1::bigint, %(ready)s + %(running)s + %(finished)s) n
cross join lateral (
  select case when n <= %(ready)s then 'ready' when n <= %(ready)s + %(running)s then 'running' else 'finished' end
) k (kind)
join benteng.job_type t
  on t.name = case
    when k.kind = 'ready' and n %% 5 = 0 then 't.medium@1'
    when n %% 5 = 1 then 't.brief@1'
    else 't.low@1'
  end;

insert into benteng.resource (key)
select 'host:' || n from generate_series(0, %(resources)s - 1) n
on conflict do nothing;

insert into benteng.operation (
  seq, job_id, key, epoch, state, ended, payload_sha256, type, name, tier, origin, actor, request_id, priority,
  policy_sha256, artifacts, targets, resources, summary, starts, attempts, result, result_until, keep_until,
  admitted_at, finished_at)
select
  c.seq, c.id, c.key, 1, case when c.kind = 'finished' then 'completed' else 'reserved' end,
  case when c.kind = 'finished' then 'completed' end, sha256(c.payload), c.type, split_part(c.type, '@', 1),
  c.tier, c.origin, 'svc:tester', 'crowd-' || c.n, c.priority, c.sha256, '{}', '{}', c.resources, '{}',
  (c.kind <> 'ready')::integer, (c.kind <> 'ready')::integer, case when c.kind = 'finished' then 'null'::bytea end,
  case when c.kind = 'finished' then c.at + interval '1 day' end,
  case when c.kind = 'finished' then c.at + interval '30 days' end, c.at, case when c.kind = 'finished' then c.at end
from crowd c;

insert into benteng.retention (until, seqs)
select c.at + interval '1 day', array[c.seq]
from crowd c
where c.kind = 'finished';

insert into benteng.job (
  id, seq, state, type, tier, priority, due_at, attempts, starts, fence, token, pool, worker, lease_until, origin,
  actor, request_id, payload, payload_sha256, operation_key, envelope, policy_sha256, artifacts, targets, resources,
  summary, admitted_at)
select
  c.id, c.seq, c.kind, c.type, c.tier, c.priority, c.at, (c.kind = 'running')::integer, (c.kind = 'running')::integer,
  case when c.kind = 'running' then nextval('benteng.fence') else 0 end,
  case when c.kind = 'running' then md5(c.n::text) end, case when c.kind = 'running' then c.pool end,
  case when c.kind = 'running' then 'crowd' end,
  case when c.kind = 'running' then benteng.now() + interval '30 seconds' end,
  c.origin, 'svc:tester', 'crowd-' || c.n, c.payload, sha256(c.payload), c.key, '', c.sha256, '{}', '{}', c.resources,
  '{}', c.at
from crowd c
where c.kind <> 'finished';

insert into benteng.audit (
  at, event, job_id, type, policy_sha256, state_from, state_to, attempt, origin, actor, operation_key, payload_sha256)
select
  c.at, e.event, c.id, c.type, c.sha256, e.state_from, e.state_to, e.attempt, c.origin, 'svc:tester', c.key,
  sha256(c.payload)
from crowd c
join (values
  ('admitted', '', 'ready', 0, 1), ('claimed', 'ready', 'running', 1, 2), ('completed', 'running', 'completed', 1, 3)
) e (event, state_from, state_to, attempt, step)
  on e.step <= case c.kind when 'ready' then 1 when 'running' then 2 else 3 end;

drop table crowd;
"""


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many jobs of each kind. `running` ones have a lease of 30 s from now."""

    ready: int
    finished: int
    running: int = 0


def fill(connection: psycopg.Connection[Any], crowd: Crowd, first: int = 0) -> None:
    """Write a crowd as the superuser, in one transaction, and let the server learn its size. `first`: jobs before."""
    values: dict[str, Any] = {
        "ready": crowd.ready,
        "finished": crowd.finished,
        "running": crowd.running,
        "first": first,
        "origins": ORIGINS,
        "resources": RESOURCES,
        "bytes": PAYLOAD_BYTES,
    }
    with connection.transaction():
        connection.execute("set local synchronous_commit = off")
        cursor = psycopg.ClientCursor(connection)  # several statements at once: the client puts the values in
        cursor.execute(_CROWD, values)
    connection.execute("vacuum (analyze) benteng.job, benteng.operation, benteng.audit, benteng.resource")
