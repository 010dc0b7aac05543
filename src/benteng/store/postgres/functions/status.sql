-- status: how jobs of the caller's own origin are doing.
--
-- Promise   jobs of another origin are left out, as if they did not exist. Never a payload. Reads only.
create or replace function benteng_v1.status(p_ids uuid[])
returns table (
  job_id uuid, state text, reason text, error text, result bytea, available_at bigint, finished_at bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_me benteng.login := benteng.me('producer');
begin
  return query
  select
    o.job_id, coalesce(j.state, case when q.id is not null then 'quarantined' end, o.ended), q.reason,
    coalesce(j.last_error, q.error, o.error), o.result, benteng.instant(j.due_at), benteng.instant(o.finished_at)
  from unnest(p_ids) with ordinality g (id, ord)
  join benteng.operation o on o.job_id = g.id
  left join benteng.job j on j.id = o.job_id
  left join benteng.quarantine q on q.id = o.job_id
  where o.origin = v_me.name
  order by g.ord;
end $$;
