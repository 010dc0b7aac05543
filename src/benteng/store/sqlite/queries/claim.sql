-- claim.sql: start ready jobs.
--
-- Promise   by (priority, due, admission) among the accepted types; each start spends its attempt in this commit, and has a
--           fence that was drawn after its resources were decided.
-- Locks     inside the verb's immediate transaction.
-- Order     candidates a type, from the index alone; load them; decide; take resources; start.

-- name: candidates
select priority, due_at, seq
from job
where state = 'ready'
  and type = :type
  and (priority, due_at, seq) > (:priority, :due_at, :seq)
  and origin not in (select value from json_each(:halted_origins))
order by priority, due_at, seq
limit :limit;

-- name: load
-- The columns are the fields of rows.Ready.
select j.seq, j.id, j.type, j.policy_sha256, j.origin, j.actor, j.request_id, j.operation_key, j.payload_sha256, j.summary,
       j.attempts, j.fence, j.state, j.tier, j.priority, j.due_at, j.available_at, j.expires_at, j.crashes, j.handbacks,
       j.snoozes, j.starts, j.generation, j.waits_for, j.alone, j.payload, j.envelope, j.refs
from json_each(:seqs) s
cross join job j on j.seq = s.value
where j.state = 'ready';

-- name: start
-- Of the job at each place in seqs the fence is so much above the first, and the token so far in tokens: of arrays in an
-- array each would be written out and parsed again, once for each of its parts.
update job
set state = 'running', attempts = attempts + 1, starts = starts + 1, fence = :fence + s.key,
    token = substr(:tokens, 1 + :token_chars * s.key, :token_chars), lease_until = :lease_until, pool = :pool,
    worker = :worker, waits_for = null, woken_at = null, progress = ''
from json_each(:seqs) s
where job.seq = s.value
  and job.state = 'ready'
  and job.fence < :fence + s.key;
