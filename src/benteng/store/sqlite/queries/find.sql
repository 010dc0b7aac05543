-- find.sql: a page of jobs, newest first.
--
-- Promise   never a payload; a page costs no more than the rows it walks. Empty parameters do not filter.

-- name: page
select o.seq, o.job_id, o.type, o.tier, coalesce(j.state, case when q.seq is not null then 'quarantined' end, o.ended) as state,
       o.priority, coalesce(j.attempts, q.attempts, o.attempts) as attempts, o.origin, o.actor, o.request_id, o.admitted_at,
       coalesce(j.due_at, 0) as due_at, q.reason, coalesce(j.last_error, q.error, o.error) as error, o.summary
from operation o
left join job j on j.seq = o.seq
left join quarantine q on q.seq = o.seq
where o.seq < :before
  and (:any_state or coalesce(j.state, case when q.seq is not null then 'quarantined' end, o.ended) in (
    select value from json_each(:states)))
  and (:type = '' or o.type = :type)
  and (:origin = '' or o.origin = :origin)
  and (:actor = '' or o.actor = :actor)
  and (:request_id = '' or o.request_id = :request_id)
  and (:reason = '' or q.reason = :reason)
  and (:resource = '' or o.seq in (select seq from job_resource where key = :resource))
order by o.seq desc
limit :limit;
