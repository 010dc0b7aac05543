-- extend: renew the leases of running jobs, which are the leases of their resources too.
--
-- Promise   one row for each lease asked, in order. Lost: not running under this proof in this pool, or past its lease.
--           A lease never becomes shorter. No audit record: a heartbeat is no transition.
-- Locks     jobs by id; no resource row.
create or replace function benteng_v1.extend(p_ids uuid[], p_fences bigint[], p_tokens text[], p_progress text[])
returns table (ord integer, lost boolean, cancel boolean, seconds float8)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_me  benteng.login := benteng.me('consumer');
  v_now timestamptz;
begin
  if cardinality(p_ids) > 1000 then
    raise exception 'at most 1000 in one call' using errcode = 'program_limit_exceeded';
  end if;
  perform 1
  from benteng.job j
  where j.id = any (p_ids)
    and j.pool = v_me.pool
  order by j.id
  for update;
  v_now := benteng.now();

  return query
  with renewed as (
    update benteng.job j
    set lease_until = greatest(j.lease_until, v_now + make_interval(secs => t.lease_seconds)),
        progress = coalesce(nullif(left(a.progress, 4096), ''), j.progress)
    from unnest(p_ids, p_fences, p_tokens, p_progress) a (id, fence, token, progress), benteng.job_type t
    where j.id = a.id
      and t.name = j.type
      and j.pool = v_me.pool
      and j.state || '' = 'running'                          -- keeps the planner off job_running: it would walk it for each lease
      and j.fence = a.fence
      and j.token = a.token
      and j.lease_until > v_now
    returning j.id, j.fence, j.token, j.cancel_asked, t.lease_seconds)
  select a.ord::integer, r.id is null, coalesce(r.cancel_asked, false), coalesce(r.lease_seconds, 0)
  from unnest(p_ids, p_fences, p_tokens) with ordinality a (id, fence, token, ord)
  left join renewed r on r.id = a.id and r.fence = a.fence and r.token = a.token
  order by a.ord;
end $$;
