-- reclaim.sql: find attempts whose lease ran out.
--
-- Promise   by the lease on the job itself, never by how long it has been running.
-- Locks     inside the verb's immediate transaction.

-- name: expired
select *
from job
where state = 'running'
  and lease_until <= :now
order by lease_until, seq
limit :limit;
