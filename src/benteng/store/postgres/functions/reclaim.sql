-- reclaim: take back jobs whose lease ran out. By the lease alone, never by how long a job has been running.
--
-- Promise   compare-and-set on (running, lease over), each row locked. `once`: quarantined as uncertain, resources closed when its
--           type closes. A cancel asked for: cancelled. Budget used up: quarantined as crashed. Else ready. The attempt stays
--           spent, the crash is counted.
--           Everything that runs is looked at only when a lease may be over (lookout.sql).
-- Locks     jobs with skip locked, resources by key, operations.
-- Order     as settle.
create or replace function benteng_v1.reclaim(p_n bigint)
returns table (job_id uuid, state text, reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_me    benteng.login := benteng.me('keeper');
  v_now   timestamptz := benteng.now();
  v_ids   uuid[];
  v_moves benteng.move[];
  v_keys  text[];
begin
  if coalesce(benteng.look_out(v_now) > v_now, true) then
    return;
  end if;
  select array_agg(l.id)
  into v_ids
  from (
    select j.id
    from benteng.job j
    where j.state = 'running'
      and j.lease_until <= v_now
    order by j.lease_until, j.id
    limit least(p_n, 1000)
    for update skip locked) l;
  if v_ids is null then
    return;
  end if;
  perform benteng.hold_resources(v_ids);

  select array_agg((
           d.id,
           case d.ending when 'ready' then 'reclaimed' when 'cancelled' then 'cancelled' when 'uncertain' then 'uncertain' else 'quarantined' end,
           case when d.ending in ('ready', 'cancelled') then d.ending else 'quarantined' end,
           case d.ending when 'ready' then null when 'cancelled' then 'as asked; its lease ended' else d.ending end,
           null, 'the lease ended without a word from the worker', d.attempts, d.crashes + 1, d.handbacks, d.snoozes,
           d.starts, null, d.alone)::benteng.move order by d.ord)
  into v_moves
  from (
    select
      j.*, g.ord,
      case
        when t.effect = 'once' then 'uncertain'
        when j.cancel_asked then 'cancelled'
        when j.crashes + 1 >= t.crashes_max or j.attempts >= t.attempts_max then 'crashed'
        else 'ready'
      end as ending
    from unnest(v_ids) with ordinality g (id, ord)
    cross join lateral benteng.newest(g.id) j
    join benteng.job_type t on t.name = j.type
    where j.state = 'running'
      and j.lease_until <= v_now) d;

  v_keys := benteng.move_jobs(v_moves, v_now);
  perform benteng.wake(v_keys, v_now);
  perform benteng.ring(array(select t.name from benteng.job_type t));
  return query
  select m.id, m.state_to, case when m.state_to = 'quarantined' then m.reason end
  from unnest(v_moves) with ordinality m
  order by m.ordinality;
end $$;
