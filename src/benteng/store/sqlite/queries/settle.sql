-- settle.sql: find the attempts that a worker wants to end.
--
-- Promise   (id, fence, token, running, own pool) are compared together; no row means that the attempt was fenced off.
-- Locks     inside the verb's immediate transaction. What follows is in leave.sql and resource.sql.

-- name: proven
-- proofs: (id, fence, token) of each.
select p.key as place, j.seq, j.id, j.state, j.type, j.due_at, j.attempts, j.crashes, j.handbacks, j.snoozes, j.starts, j.fence,
       j.worker, j.waits_for, j.cancel_asked, j.alone, j.origin, j.actor, j.request_id, j.payload_sha256,
       j.operation_key, j.policy_sha256, j.summary
from json_each(:proofs) p
cross join job j on j.id = json_extract(p.value, '$[0]')
where j.state = 'running'
  and j.fence = json_extract(p.value, '$[1]')
  and j.token = json_extract(p.value, '$[2]')
  and j.pool = :pool;

-- name: any
select id, type, origin
from job
where id = :id;
