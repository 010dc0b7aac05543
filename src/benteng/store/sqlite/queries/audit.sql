-- audit.sql: the log.
--
-- Promise   records are numbered from 1 without a gap (one writer, no delete, and a rollback takes its numbers along).
-- Order     `append` runs last in each verb, in the order in which things happened.

-- name: append
-- Parameters by place: what runs for each record is bound sooner so.
insert into audit (leaf, salt, body, job, job_id)
values (?, ?, ?, ?, ?);

-- name: page
select seq, leaf, salt, body
from audit
where seq > :after
order by seq
limit :limit;

-- name: of_job
-- By its number, which no other job ever has, and those that were written without it.
select seq, leaf, salt, body
from audit
where job = :seq
union all
select seq, leaf, salt, body
from audit
where job_id = :job_id
order by seq desc
limit :limit;
