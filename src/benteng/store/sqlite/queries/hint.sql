-- hint.sql: find out whether anybody is to be told that jobs became ready.
--
-- Promise   a pool is told when nothing of a type was ready but for what this verb has made ready: under load nobody is.
-- Locks     none; runs last in the verb's transaction, and what it finds is told after the commit.

-- name: quiet
select t.pool
from job_type t
where t.name = :type
  and (
    select count(*)
    from (select 1 from job where type = :type and state = 'ready' limit :made + 1)
  ) between 1 and :made;
