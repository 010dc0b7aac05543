-- stage.sql: what time does to jobs that are not running.
--
-- Promise   due jobs become ready, late ones expire; each statement names the state it expects.
-- Order     expire, then make due, then wake (resource.sql).

-- name: late
select *
from job
where expires_at > 0
  and expires_at < :now
  and state <> 'running'
order by expires_at, seq
limit :limit;

-- name: due
select *
from job
where state = 'scheduled'
  and due_at <= :now
order by due_at, seq
limit :limit;

-- name: make_ready
update job
set state = 'ready'
where seq = :seq
  and state = 'scheduled';

-- name: next
select min(at) as at
from (
  select min(due_at) as at from job where state = 'scheduled'
  union all
  select min(lease_until) from job where state = 'running');

-- name: row
select *
from job
where seq = :seq
  and state <> 'running';
