-- settle.sql: find the attempts that a worker wants to end.
--
-- Promise   (id, running, own pool) are compared here and (fence, token) with the row's, by settle.py; an attempt for
--           which not all of them are the same was fenced off.
-- Locks     inside the verb's immediate transaction. What follows is in leave.sql and resource.sql.

-- name: running
-- ids: of each attempt. One array of texts: of arrays in an array each would be written out and parsed again. The columns
-- are the fields of rows.Running.
select j.seq, j.id, j.type, j.policy_sha256, j.origin, j.actor, j.request_id, j.operation_key, j.payload_sha256, j.summary,
       j.attempts, j.fence, j.state, j.token, j.due_at, j.crashes, j.handbacks, j.snoozes, j.starts, j.worker,
       j.waits_for, j.cancel_asked, j.alone, p.key as place,
       exists (select 1 from resource where holder = j.id) as holds
from json_each(:ids) p
cross join job j on j.id = p.value
where j.state = 'running'
  and j.pool = :pool;

-- name: any
select id, type, origin
from job
where id = :id;
