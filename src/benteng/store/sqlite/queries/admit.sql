-- admit.sql: let judged jobs in.
--
-- Promise   one operation row for every job; of all callers with one key exactly one is admitted, and the others get its
--           receipt (duplicate), or conflict. A freed key is taken by a new row with the next epoch.
-- Locks     inside the verb's immediate transaction: nobody admits at the same time.
-- Order     look for the owners, reserve the operations, then insert the jobs. Takes no existing row.

-- name: owners
-- operations: (key, name) of each.
select o.key, o.name, o.job_id, o.origin, o.payload_sha256, o.result,
       coalesce(j.state, case when q.seq is not null then 'quarantined' end, o.ended) as state
from json_each(:operations) a
cross join operation o on o.key = json_extract(a.value, '$[0]') and o.name = json_extract(a.value, '$[1]')
left join job j on j.seq = o.seq
left join quarantine q on q.seq = o.seq
where not o.freed;

-- name: taken
select o.job_id
from json_each(:ids) a
cross join operation o on o.job_id = a.value;

-- name: reserve
insert into operation (
  seq, job_id, key, epoch, state, freed, payload_sha256, type, tier, origin, actor, request_id, priority, policy_sha256,
  refs, parent, summary, generation, admitted_at)
values (
  :seq, :id, :operation_key,
  1 + coalesce((
    select max(epoch)
    from operation
    where key = :operation_key
      and name = substr(:type, 1, instr(:type, '@') - 1)
      and freed), 0),
  'reserved', 0, :payload_sha256, :type, :tier, :origin, :actor, :request_id, :priority, :policy_sha256,
  :refs, :parent, :summary, :generation, :now);

-- name: insert
insert into job (
  seq, id, state, type, tier, priority, due_at, available_at, expires_at, attempts, crashes, handbacks, snoozes, starts,
  generation, origin, actor, request_id, payload, payload_sha256, operation_key, envelope, policy_sha256, refs, parent,
  summary, rule, last_error, admitted_at)
values (
  :seq, :id, :state, :type, :tier, :priority, :due_at, :available_at, :expires_at, 0, 0, 0, 0, 0,
  :generation, :origin, :actor, :request_id, :payload, :payload_sha256, :operation_key, :envelope, :policy_sha256, :refs,
  :parent, :summary, :rule, :error, :now);

-- name: names_resource
insert into job_resource (key, seq)
values (?, ?)
on conflict do nothing;

-- name: span
-- An upper bound of the number of active jobs without counting them (both ends of the table, in a select each), and what
-- is known of the origin.
select coalesce((select max(seq) from job) - (select min(seq) from job) + 1, 0) as span,
       coalesce(d.jobs_max, :default) as jobs_max, d.jobs, d.seq, d.counted_at
from (select 1)
left join depth d on d.origin = :origin;

-- name: counted
insert into depth (origin, jobs, seq, counted_at)
values (:origin, :jobs, :seq, :now)
on conflict (origin) do update
set jobs = excluded.jobs, seq = excluded.seq, counted_at = excluded.counted_at;

-- name: depth
-- Each of the active states by the index that has it anyway, so that a job is in no index for this count alone.
select (select count(*) from job where state = 'ready' and origin = :origin)
     + (select count(*) from job where state in ('scheduled', 'blocked', 'held') and origin = :origin)
     + (select count(*) from job where state = 'running' and origin = :origin) as jobs;
