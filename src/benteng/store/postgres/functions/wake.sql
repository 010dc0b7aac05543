-- wake: pass the baton of each free key to the next job that waits for it and may start.
--
-- Promise   for a key that is free and has no fresh baton out, the first blocked job of an open type and origin becomes ready.
-- Locks     the caller holds the resource rows p_keys since a statement before this one, so that the snapshot here is younger
--           than every parking on them (a claim that parks holds the row until it commits). Job rows: skip locked, never waits.
--           A row that was skipped because somebody holds it is found by the sweep of `stage`.
create or replace function benteng.wake(p_keys text[], p_now timestamptz) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_types   text[];
  v_halted  text[];
  v_moves   benteng.move[];
  v_here    tid[];
begin
  if p_keys is null or p_keys = '{}' then
    return 0;
  end if;
  select array_agg(t.name) into v_types from benteng.open_type t;
  select coalesce(array_agg(c.name), '{}') into v_halted from benteng.control c where c.scope = 'origin' and c.mode = 'halt';

  with free as materialized (
    select r.key
    from benteng.resource r
    where r.key = any (p_keys)
      and r.holder is null
      and not exists (
        select from benteng.job b
        where b.waits_for = r.key
          and b.state = 'ready'
          and b.woken_at > p_now - interval '5 s'            -- an older baton counts as dropped: its pool may be down
          and b.type = any (v_types)
          and b.origin <> all (v_halted))
    order by r.key
  ), next as materialized (
    select n.id, n.tid, f.key
    from free f
    cross join lateral (
      select j.id, j.ctid as tid
      from benteng.job j
      where j.waits_for = f.key
        and j.state = 'blocked'
        and j.type = any (v_types)
        and j.origin <> all (v_halted)
      order by j.priority, j.due_at, j.seq
      limit 1
      for update skip locked) n
  )
  select
    array_agg((n.id, 'woken', 'ready', null, null, n.key, null, null, null, null, null, null, null)::benteng.move),
    array_agg(n.tid)
  into v_moves, v_here
  from next n;
  if v_moves is null then
    return 0;
  end if;

  perform benteng.note(v_moves, p_now, v_here);
  update benteng.job j
  set state = 'ready',
      woken_at = p_now
  from unnest(v_here) h (tid)
  where j.ctid = h.tid
    and j.state || '' = 'blocked';
  return cardinality(v_moves);
end $$;
