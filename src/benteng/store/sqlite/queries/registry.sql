-- registry.sql: artifacts and the access rule, as a `dev` installation writes them.
--
-- Promise   a row is what the guards believe; outside `dev` only an Action may write one, but one person may revoke.

-- name: artifact
insert into artifact (id, sha256, state, expires_at)
values (:id, :sha256, :state, :expires_at)
on conflict (id) do update
set sha256 = excluded.sha256, state = excluded.state, expires_at = excluded.expires_at;

-- name: access
insert into access (actor, type, target)
values (:actor, :type, :target)
on conflict do nothing;
