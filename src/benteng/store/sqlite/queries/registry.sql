-- registry.sql: artifacts and the access rule, as a `dev` installation writes them, and the depths of origins.
--
-- Promise   a row is what the guards believe; outside `dev` only an Action may write one, but one person may revoke. A depth lets
--           nothing run that may not: one person sets it.

-- name: artifact
insert into artifact (id, sha256, state, expires_at)
values (:id, :sha256, :state, :expires_at)
on conflict (id) do update
set sha256 = excluded.sha256, state = excluded.state, expires_at = excluded.expires_at;

-- name: access
insert into access (actor, type, target)
values (:actor, :type, :target)
on conflict do nothing;

-- name: depths
select origin, jobs_max
from depth
where jobs_max is not null
order by origin;

-- name: depth
select coalesce((select jobs_max from depth where origin = :origin), :default) as jobs_max;

-- name: limit_depth
insert into depth (origin, jobs_max)
values (:origin, nullif(:jobs_max, :default))
on conflict (origin) do update
set jobs_max = excluded.jobs_max, counted_at = 0;
