-- cancel.sql: somebody does not want a job any more.
--
-- Promise   not running: it ends at once (leave.sql). Running: the flag that extend returns, set once.

-- name: find
select *
from job
where id = :id
  and (origin = :origin or :is_operator);

-- name: ask
update job
set cancel_asked = 1
where seq = :seq
  and state = 'running'
  and not cancel_asked;
