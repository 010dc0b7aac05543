-- newest, here: a job by its id, and where the rows of jobs are. A set, so that it is planned with the query around it.
--
-- Promise   the row that an equality finds, and no other. It is looked for from behind: versions of a row that are dead and cannot
--           be removed, because some transaction pins the horizon, stand before the one that is alive, and are not met.
--           A row whose lock the caller holds stays where it is until he changes it: then it needs no second look.
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

create or replace function benteng.here(p_ids uuid[]) returns tid[]
language sql stable
as $$
  select array_agg(x.tid order by g.ord)
  from unnest(p_ids) with ordinality g (id, ord)
  left join lateral (
    select j.ctid as tid
    from benteng.job j
    where j.id between g.id and g.id
    order by j.id desc
    limit 1) x on true
$$;
