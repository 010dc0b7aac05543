-- release.sql: a person agrees that held jobs go on.
--
-- Promise   held to ready, or to scheduled when the time has not come; the rule that held it is forgotten.
-- Locks     inside the verb's immediate transaction.

-- name: held
select *
from job
where id = :id
  and state = 'held';

-- name: release
update job
set state = :state_to, due_at = :due_at, rule = '', last_error = ''
where seq = :seq
  and state = 'held';
