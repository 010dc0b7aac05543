-- settle.sql: find the attempt that a worker wants to end.
--
-- Promise   (id, fence, token, running, own pool) are compared together; no row means that the attempt was fenced off.
-- Locks     inside the verb's immediate transaction. What follows is in leave.sql and resource.sql.

-- name: proven
select *
from job
where id = :id
  and state = 'running'
  and fence = :fence
  and token = :token
  and pool = :pool;

-- name: any
select *
from job
where id = :id;
