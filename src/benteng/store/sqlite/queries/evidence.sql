-- evidence.sql: facts about one job, for the judgement at the gate and the one after the claim.
--
-- Promise   what the deciding transaction sees: what was read before counts only while nobody else has committed since
--           (facts.py). `*` matches any whole value; it is no pattern.

-- name: speaks
select 1
from speaks
where origin in (:origin, '*')
  and actor in (:actor, '*')
  and type in (:type, '*')
limit 1;

-- name: access
select 1
from access
where actor in (:actor, '*')
  and type in (:type, '*')
  and target in (:target, '*')
limit 1;

-- name: artifact
select id, sha256, state, expires_at
from artifact
where id = :id;

-- name: owners
-- operations: (key, name) of each.
select a.key as place, o.job_id, o.origin, o.payload_sha256, o.state, o.epoch
from json_each(:operations) a
cross join operation o on o.key = json_extract(a.value, '$[0]') and o.name = json_extract(a.value, '$[1]')
where not o.freed;
