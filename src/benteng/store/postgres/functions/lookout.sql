-- look_out: when a lease may end at the earliest. Null: nothing runs.
--
-- Promise   never later than the first lease really ends: a lease never becomes shorter, and one that begins after a look lasts
--           the shortest lease of all types. Half of that is given away for claims that were under way during the look and
--           committed late. So what runs is looked at once in some seconds, not in each round of the keeper.
-- Clock     a server's clock that went back to before the last look makes that look void.
-- Locks     its own row, with skip locked: waits for nothing. Who holds it waits for nothing any more.
create or replace function benteng.look_out(p_now timestamptz) returns timestamptz
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  v_seen  benteng.lookout;
  v_mine  boolean;
  v_idle  boolean := false;
  v_ends  timestamptz;
  v_look  timestamptz;
  v_lease interval;
  v_read  bigint := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_running'));
begin
  -- The newest first: they are the likeliest to be alive, and the entries of those that ended need not be walked. (offset 0: the
  -- planner forgets the order of what is only asked to exist.) When that took long, because nothing runs and nobody can remove what
  -- ran, it counts as a look, and is not asked again for some time (lanes.sql).
  if coalesce(nullif(current_setting('benteng.running', true), '')::timestamptz <= p_now, true) then
    v_idle := not exists (select from benteng.job j where j.state = 'running' order by j.id desc limit 1 offset 0);
    v_read := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_running')) - v_read;
    if v_idle and v_read <= 2000 then
      return null;
    end if;
  end if;
  select l.* into v_seen from benteng.lookout l;
  if not v_idle and p_now >= v_seen.looked_at and p_now < v_seen.look_at then
    return v_seen.ends_at;
  end if;
  perform 1 from benteng.lookout l for update skip locked;
  v_mine := found;
  -- Read after the lock: whoever makes a type's lease shorter holds it to the commit.
  select make_interval(secs => min(t.lease_seconds)) into v_lease from benteng.job_type t;
  v_ends := p_now + v_lease;
  if not v_idle then
    select least(min(j.lease_until), v_ends) into v_ends from benteng.job j where j.state = 'running';
  end if;
  v_look := least(v_ends, p_now + v_lease / 2, p_now + interval '5 s');
  if v_mine and v_ends > p_now then
    update benteng.lookout l
    set looked_at = p_now,
        look_at = v_look,
        ends_at = v_ends;
  end if;
  if v_idle then
    perform set_config('benteng.running', greatest(v_look, benteng.until_all_is_read(p_now, v_read))::text, false);
    return null;
  end if;
  return v_ends;
end $$;
