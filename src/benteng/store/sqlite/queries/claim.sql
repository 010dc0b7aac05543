-- claim.sql: start ready jobs.
--
-- Promise   by (priority, due, admission) among the accepted types; each start spends its attempt in this commit, and has a
--           fence that was drawn after its resources were decided.
-- Locks     inside the verb's immediate transaction.
-- Order     candidates a type, from the index alone; then row by row: load, decide, take resources, start.

-- name: candidates
select seq, priority, due_at
from job
where state = 'ready'
  and type = :type
  and (priority, due_at, seq) > (:priority, :due_at, :seq)
  and origin not in (select value from json_each(:halted_origins))
order by priority, due_at, seq
limit :limit;

-- name: load
select *
from job
where seq = :seq
  and state = 'ready';

-- name: start
update job
set state = 'running', attempts = attempts + 1, starts = starts + 1, fence = :fence, token = :token, pool = :pool,
    worker = :worker, lease_until = :lease_until, waits_for = null, woken_at = null, progress = ''
where seq = :seq
  and state = 'ready'
  and fence < :fence;
