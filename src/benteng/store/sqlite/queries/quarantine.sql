-- quarantine.sql: what a person does with jobs that were set apart.
--
-- Promise   a discard is a state and never a delete of the record; a replay keeps the operation and its starts.
-- Locks     inside the verb's immediate transaction.
-- Order     read, decide, leave quarantine, then the operation, then resources.

-- name: find
select q.*, o.state as operation_state
from quarantine q
join operation o on o.seq = q.seq
where q.id = :id;

-- name: classify
update quarantine
set classified = :reason
where seq = :seq
  and reason <> 'uncertain';

-- name: remove
delete from quarantine
where seq = :seq;

-- name: settle_operation
update operation
set state = :operation_state, freed = :freed, ended = :ended, error = :error, keep_until = :keep_until,
    finished_at = :now
where seq = :seq
  and state = :expected;

-- name: other_owner
select job_id
from operation
where key = :key
  and name = substr(:type, 1, instr(:type, '@') - 1)
  and not freed
  and seq <> :seq;

-- name: reserve_again
update operation
set state = 'reserved', freed = 0, ended = null, error = '', rule = '', finished_at = 0, generation = :generation,
    policy_sha256 = :policy_sha256, refs = :refs, summary = :summary
where seq = :seq
  and state = :expected;

-- name: counts_again
-- The origin has one job more than numbers in line were given since it was counted.
update depth
set jobs = jobs + 1
where origin = :origin;

-- name: bring_back
insert into job (
  seq, id, state, type, tier, priority, due_at, available_at, expires_at, attempts, crashes, handbacks, snoozes, starts,
  generation, fence, alone, origin, actor, request_id, payload, payload_sha256, operation_key, envelope, policy_sha256,
  refs, parent, summary, admitted_at)
select
  seq, id, :state, type, :tier, :priority, :due_at, :available_at, :expires_at, 0, 0, 0, 0, starts,
  :generation, fence, alone, origin, actor, request_id, payload, payload_sha256, operation_key, :envelope, :policy_sha256,
  :refs, parent, :summary, admitted_at
from quarantine
where seq = :seq;
