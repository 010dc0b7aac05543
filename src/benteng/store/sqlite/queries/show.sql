-- show.sql: everything about one job.
--
-- Promise   one row for each job that the ledger knows, wherever it is now.

-- name: operation
select *
from operation
where job_id = :id;

-- name: job
select *
from job
where seq = :seq;

-- name: quarantine
select *
from quarantine
where seq = :seq;

-- name: ahead
select count(*) as jobs
from job a
where a.state = 'ready'
  and a.type in (select name from job_type where pool = :pool)
  and (a.priority, a.due_at, a.seq) < (:priority, :due_at, :seq);

-- name: worker_seen
select coalesce(max(seen_at), 0) as seen_at
from worker
where pool = :pool;
