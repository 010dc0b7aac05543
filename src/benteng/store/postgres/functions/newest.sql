-- newest: a job by its id. A set, so that it is planned with the query around it.
--
-- Promise   the row that an equality finds, and no other. It is looked for from behind: versions of a row that are dead and cannot
--           be removed, because some transaction pins the horizon, stand before the one that is alive, and are not met.
-- Locks     none.
create or replace function benteng.newest(p_id uuid) returns setof benteng.job
language sql stable
as $$
  select x.*
  from benteng.job x
  where x.id between p_id and p_id                           -- an equality would make the order void
  order by x.id desc
  limit 1
$$;
