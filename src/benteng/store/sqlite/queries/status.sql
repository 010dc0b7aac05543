-- status.sql: how jobs of one origin are doing.
--
-- Promise   jobs of another origin are left out, as if they did not exist. Never a payload.

-- name: of_origin
select o.job_id, coalesce(j.state, case when q.seq is not null then 'quarantined' end, o.ended) as state,
       q.reason, coalesce(j.last_error, q.error, o.error) as error, o.result, coalesce(j.due_at, 0) as due_at, o.finished_at
from operation o
left join job j on j.seq = o.seq
left join quarantine q on q.seq = o.seq
where o.job_id = :id
  and o.origin = :origin;
