-- leave.sql: a job leaves the active table, or goes back in it.
--
-- Promise   each statement names the state that it expects; the operation row keeps the lasting record.
-- Locks     inside the verb's immediate transaction.
-- Order     set apart (quarantine), remove, record, then release and wake.

-- name: set_apart
insert into quarantine (
  seq, id, reason, rule, error, at, type, tier, priority, due_at, available_at, expires_at,
  attempts, crashes, handbacks, snoozes, starts, generation, fence, worker, alone, origin, actor, request_id,
  payload, payload_sha256, operation_key, envelope, policy_sha256, refs, parent, summary, progress, admitted_at)
select
  seq, id, :reason, :rule, :error, :now, type, tier, priority, due_at, available_at, expires_at,
  :attempts, :crashes, :handbacks, :snoozes, :starts, generation, fence, worker, alone, origin, actor, request_id,
  payload, payload_sha256, operation_key, envelope, policy_sha256, refs, parent, summary, progress, admitted_at
from job
where seq = :seq
  and state = :state;

-- name: remove
delete from job
where seq in (select value from json_each(:seqs))
  and state = :state;

-- name: remove_running
-- A state that is bound is compared with what each index is of, so that the statement is prepared again at each call.
delete from job
where seq in (select value from json_each(:seqs))
  and state = 'running';

-- name: record
update operation
set state = :operation_state, freed = :freed, ended = :ended, attempts = :attempts, crashes = :crashes,
    starts = :starts, fence = :fence, error = :error, rule = :rule, finished_at = :finished_at,
    keep_until = :keep_until
where seq = :seq
  and state = 'reserved';

-- name: complete
-- `freed` is not named: it is 0 before and after, and SQLite would write the key's index again. Parameters by place, for
-- each job: attempts, crashes, starts, fence, finished_at, result, result_until, keep_until, seq.
update operation
set state = 'completed', ended = 'completed', attempts = ?, crashes = ?, starts = ?, fence = ?, error = '', rule = '',
    finished_at = ?, result = ?, result_until = ?, keep_until = ?
where seq = ?
  and state = 'reserved';

-- name: back
update job
set state = :state_to, due_at = :due_at, attempts = :attempts, crashes = :crashes, handbacks = :handbacks,
    snoozes = :snoozes, starts = :starts, alone = :alone, last_error = :error, rule = :rule, token = null, pool = null,
    lease_until = null, waits_for = null, woken_at = null
where seq = :seq
  and state = 'running';
