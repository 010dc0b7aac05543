-- release: a person agrees that held jobs go on. They are judged again before they start.
--
-- Promise   held to ready, or to scheduled when the time has not come; the rule that held it is forgotten. Others are left out.
--           NeedsAction at HIGH outside dev, refused while a switch holds or diverts them; all are looked at before one is moved.
-- Locks     control in row share mode, jobs by id.
create or replace function benteng_v1.release(p_ids uuid[], p_reason text)
returns table (job_id uuid, state text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_me     benteng.login := benteng.me('operator');
  v_reason text := benteng.needed(p_reason);
  v_now    timestamptz;
  v_ids    uuid[];
  v_moves  benteng.move[];
begin
  lock table benteng.control in row share mode;
  select array_agg(l.id)
  into v_ids
  from (
    select j.id
    from benteng.job j
    where j.id = any (p_ids)
      and j.state = 'held'
    order by j.id
    for update) l;
  v_now := benteng.now();
  perform benteng.alone_at_high(j.tier, 'releasing') from benteng.job j where j.id = any (v_ids);
  if exists (
      select
      from benteng.job j
      cross join lateral benteng.facts(j.type, j.actor, j.origin, '{}', '{}') f
      where j.id = any (v_ids)
        and f.mode in ('hold', 'divert')) then
    perform benteng.break_rule('S-control', 'a switch holds or diverts one of the jobs', 'open the switch, then release it');
  end if;

  select array_agg((
    j.id, 'released', case when j.available_at > v_now then 'scheduled' else 'ready' end, v_reason, null, null, null, null,
    null, null, null, greatest(j.available_at, v_now), null)::benteng.move order by g.ord)
  into v_moves
  from (select distinct on (u.id) u.id, u.ord from unnest(p_ids) with ordinality u (id, ord) order by u.id, u.ord) g
  join benteng.job j on j.id = g.id
  where j.id = any (v_ids);
  perform benteng.move_jobs(v_moves, v_now);
  return query select m.id, m.state_to from unnest(v_moves) with ordinality m order by m.ordinality;
end $$;
