-- cancel: somebody does not want jobs any more. A producer stops those of its own origin, an operator any.
--
-- Promise   not running: cancelled at once, the key freed when it never started. Running: the flag that extend returns, set
--           once. A woken job that is stopped gives its baton on. Others are left out.
-- Locks     jobs by id, the resources of their batons by key, operations.
create or replace function benteng_v1.cancel(p_ids uuid[], p_reason text)
returns table (job_id uuid, state text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_me    benteng.login := benteng.me('producer', 'operator');
  v_now   timestamptz;
  v_ids   uuid[];
  v_asked uuid[];
  v_moves benteng.move[];
  v_flags benteng.move[];
  v_here  tid[];
  v_keys  text[];
begin
  if v_me.facet = 'operator' then
    p_reason := benteng.needed(p_reason);
  end if;
  select array_agg(l.id)
  into v_ids
  from (
    select j.id
    from benteng.job j
    where j.id = any (p_ids)
      and (v_me.facet = 'operator' or j.origin = v_me.name)
    order by j.id
    for update) l;
  perform benteng.hold_resources(array(
    select j.id from benteng.job j where j.id = any (v_ids) and j.state <> 'running'));
  v_now := benteng.now();

  select array_agg((
           j.id, 'cancelled', 'cancelled', left(p_reason, 512), null, null, null, null, null, null, null, null,
           null)::benteng.move order by j.id)
  into v_moves
  from benteng.job j
  where j.id = any (v_ids)
    and j.state <> 'running';
  select array_agg((j.id, 'cancel_asked', null, left(p_reason, 512), null, null, null, null, null, null, null, null,
           null)::benteng.move order by j.id), array_agg(j.ctid order by j.id)
  into v_flags, v_here
  from benteng.job j
  where j.id = any (v_ids)
    and j.state = 'running'
    and not j.cancel_asked;
  perform benteng.note(v_flags, v_now, v_here);
  with flagged as (
    update benteng.job j
    set cancel_asked = true
    where j.id = any (v_ids)
      and j.state = 'running'
    returning j.id)
  select array_agg(f.id) into v_asked from flagged f;
  v_keys := benteng.move_jobs(v_moves, v_now);
  perform benteng.wake(v_keys, v_now);

  return query
  select g.id, case when g.id = any (v_asked) then 'running' else 'cancelled' end
  from (select distinct on (u.id) u.id, u.ord from unnest(p_ids) with ordinality u (id, ord) order by u.id, u.ord) g
  where g.id = any (v_ids)
  order by g.ord;
end $$;
