-- admit.sql: let judged jobs in.
--
-- Promise   one operation row for every job; of all callers with one key exactly one is admitted, and the others get its
--           receipt (duplicate), or conflict. A freed key is taken by a new row with the next epoch.
-- Locks     inside the verb's immediate transaction: nobody admits at the same time.
-- Order     look for the owner, reserve the operation, then insert the job. Takes no existing row.

-- name: owner
select o.job_id, o.origin, o.payload_sha256, o.state as operation_state, o.result,
       coalesce(j.state, case when q.seq is not null then 'quarantined' end, o.ended) as state
from operation o
left join job j on j.seq = o.seq
left join quarantine q on q.seq = o.seq
where o.key = :key
  and o.name = substr(:type, 1, instr(:type, '@') - 1)
  and not o.freed;

-- name: id_taken
select 1
from operation
where job_id = :id;

-- name: reserve
insert into operation (
  job_id, key, epoch, state, freed, payload_sha256, type, tier, origin, actor, request_id, priority, policy_sha256,
  refs, parent, summary, generation, admitted_at)
values (
  :id, :operation_key,
  1 + coalesce((
    select max(epoch)
    from operation
    where key = :operation_key
      and name = substr(:type, 1, instr(:type, '@') - 1)
      and freed), 0),
  'reserved', 0, :payload_sha256, :type, :tier, :origin, :actor, :request_id, :priority, :policy_sha256,
  :refs, :parent, :summary, :generation, :now)
returning seq;

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
values (:key, :seq)
on conflict do nothing;

-- name: span
-- An upper bound of the number of active jobs, without counting them: both ends of the table, in a select each.
select coalesce((select max(seq) from job) - (select min(seq) from job) + 1, 0) as jobs;

-- name: depth
select count(*) as jobs
from job
where origin = :origin;
