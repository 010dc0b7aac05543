-- claim.sql: start ready jobs.
--
-- Promise   by (priority, due, admission) among the accepted types; each start spends its attempt in this commit, and has a
--           fence that was drawn after its resources were decided.
-- Locks     inside the verb's immediate transaction.
-- Order     candidates a type, from the index alone; load them; decide; take resources; start.

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
select j.seq, j.id, j.state, j.type, j.tier, j.priority, j.due_at, j.available_at, j.expires_at, j.attempts, j.crashes,
       j.handbacks, j.snoozes, j.starts, j.generation, j.fence, j.waits_for, j.alone, j.origin, j.actor, j.request_id,
       j.payload, j.payload_sha256, j.operation_key, j.envelope, j.policy_sha256, j.refs, j.summary
from json_each(:seqs) s
cross join job j on j.seq = s.value
where j.state = 'ready';

-- name: start
-- starts: (seq, fence, token, lease_until) of each.
update job
set state = 'running', attempts = attempts + 1, starts = starts + 1, fence = json_extract(s.value, '$[1]'),
    token = json_extract(s.value, '$[2]'), lease_until = json_extract(s.value, '$[3]'), pool = :pool, worker = :worker,
    waits_for = null, woken_at = null, progress = ''
from json_each(:starts) s
where job.seq = json_extract(s.value, '$[0]')
  and job.state = 'ready'
  and job.fence < json_extract(s.value, '$[1]');
