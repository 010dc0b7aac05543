-- job_type.sql: the reviewed policies as the ledger has them.
--
-- Promise   pool, tier and limits of a job always come from here, never from the caller.

-- name: some
select name, pool, tier, policy, sha256
from job_type
where name in (select value from json_each(:names));

-- name: all
select name, pool, tier, policy, sha256
from job_type
order by name;

-- name: digests
select name, sha256
from job_type
where pool = :pool
order by name;

-- name: write
insert into job_type (name, pool, tier, policy, sha256, changed_at)
values (:name, :pool, :tier, :policy, :sha256, :now)
on conflict (name) do update
set pool = excluded.pool, tier = excluded.tier, policy = excluded.policy, sha256 = excluded.sha256,
    changed_at = excluded.changed_at;
