-- stage: what time does to jobs that are not running, and the repair of whatever wake could not reach.
--
-- Promise   late jobs expire, due jobs become ready. After it no key is free while a job that may start waits for it and no
--           baton is out. Sums up what was only counted in minutes that are over. Before next_seconds nothing is due and no
--           lease ends; null: nothing is scheduled and nothing runs.
--           Looks first whether the database was promoted (history.sql).
-- Locks     jobs with skip locked, then the resources of their batons by key; the sweep takes resources with skip locked.
create or replace function benteng_v1.stage(p_n bigint)
returns table (ready integer, woken integer, expired integer, next_seconds float8)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_me    benteng.login := benteng.me('keeper');
  v_now   timestamptz := benteng.now();
  v_n     integer := greatest(0, least(p_n, 1000));
  v_read  bigint;
  v_lane  benteng.lane := nullif(current_setting('benteng.due', true), '')::benteng.lane;
  v_since timestamptz;                                       -- from where what is scheduled is read, see lanes.sql
  v_first timestamptz;                                       -- when the first comes due
  v_late  uuid[];
  v_here  tid[];                                             -- where those are that come due: a row that is ours does not move
  v_moves benteng.move[];
  v_keys  text[];
begin
  perform benteng.follow_history();
  select array_agg(l.id)
  into v_late
  from (
    select j.id
    from benteng.job j
    where j.expires_at < v_now
      and j.state <> 'running'
    order by j.expires_at
    limit v_n
    for update skip locked) l;
  perform benteng.hold_resources(v_late);
  select array_agg((
    g.id, 'quarantined', 'quarantined', 'expired', null, 'not started in time', null, null, null, null, null, null, null)::benteng.move)
  into v_moves
  from unnest(v_late) g (id);
  v_keys := benteng.move_jobs(v_moves, v_now);
  expired := coalesce(cardinality(v_moves), 0);

  if v_now not between v_lane.made_at and v_lane.until then
    v_lane := null;
  end if;
  v_since := coalesce(v_lane.since, '-infinity');
  v_read := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_due'));
  select min(j.due_at) into v_first from benteng.job j where j.state = 'scheduled' and j.due_at >= v_since;
  v_read := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_due')) - v_read;
  if v_read > 2000 or v_lane.since is not null then
    v_since := least(v_first, benteng.committed_by(v_now));
    perform set_config('benteng.due', (
      '', 0, v_since, v_now, coalesce(v_lane.until, benteng.until_all_is_read(v_now, v_read)))::benteng.lane::text, false);
  end if;
  if v_first <= v_now then
    select array_agg((
      l.id, 'staged', 'ready', null, null, null, null, null, null, null, null, null, null)::benteng.move),
      array_agg(l.tid)
    into v_moves, v_here
    from (
      select j.id, j.ctid as tid
      from benteng.job j
      where j.state = 'scheduled'
        and j.due_at between v_first and v_now
      order by j.due_at, j.seq
      limit v_n
      for update skip locked) l;
    perform benteng.note(v_moves, v_now, v_here);
    update benteng.job j
    set state = 'ready'
    from unnest(v_here) h (tid)
    where j.ctid = h.tid
      and j.state || '' = 'scheduled';                       -- keeps the planner off job_due: it would walk it for each job
    select min(j.due_at) into v_first from benteng.job j where j.state = 'scheduled' and j.due_at >= v_since;
  end if;
  ready := coalesce(cardinality(v_here), 0);

  woken := benteng.wake(v_keys, v_now) + benteng.sweep(v_n, v_now);
  if ready + woken > 0 then
    perform benteng.ring(array(select t.name from benteng.job_type t));
  end if;
  perform benteng.sum_up(v_now);
  next_seconds := extract(epoch from least(v_first, benteng.look_out(v_now)) - v_now);
  if next_seconds < 0 then
    next_seconds := 0;
  end if;
  return next;
end $$;

-- sweep: wake somebody for each of up to n keys that are free while jobs sleep. Skip-scans the distinct keys.
create or replace function benteng.sweep(p_n integer, p_now timestamptz) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_keys text[];
begin
  with recursive wanted as (
    (select j.waits_for as key from benteng.job j where j.waits_for > '' order by j.waits_for limit 1)
    union all
    select (select j.waits_for from benteng.job j where j.waits_for > w.key order by j.waits_for limit 1)
    from wanted w
    where w.key is not null
  )
  select array_agg(f.key)
  into v_keys
  from (
    select r.key
    from wanted w
    join benteng.resource r on r.key = w.key
    where r.holder is null
      and exists (select from benteng.job s where s.waits_for = r.key and s.state = 'blocked')
    order by r.key
    limit p_n
    for update of r skip locked) f;
  return benteng.wake(v_keys, p_now);
end $$;
