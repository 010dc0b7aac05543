-- lanes, pass_dead: from where on a line is read while nobody can remove what is dead at its head.
--
-- Promise   a place in the index, kept by the session alone, that spares it what it has seen to be dead: as long as some
--           transaction pins the horizon, each job that ever stood at the head is met there again. Nothing is decided by it. Each
--           priority of a type is a lane of its own, so that an urgent job never stands before the place. What comes to stand
--           before it (a commit that was late, an attempt handed back) is passed by until the line is read from its beginning
--           again: after 2 s, or after as long as keeps that to a fortieth of the time. So nobody starves. `pass_dead` looks for the
--           places and returns how many entries that took.
-- Clock     the server's, as for due times: a place is never later than the first that waits, the first that comes due, and a
--           twentieth of a second ago, so that commits under way stand behind it. One from a time that is yet to come is void.
-- Locks     none. Writes nothing but the setting `benteng.lanes` of the session; whoever sets it by hand misleads himself.
create or replace function benteng.lanes(
  inout types text[], inout leases float8[], inout limits integer[], out priorities smallint[], out sinces timestamptz[],
  out made_at timestamptz)
language plpgsql
as $$
#variable_conflict use_column
begin
  if not exists (
      select
      from unnest(current_setting('benteng.lanes')::benteng.lane[]) l
      where benteng.now() between l.made_at and l.until)
      and benteng.pass_dead(lanes.types) <= 2000 then
    perform set_config('benteng.lanes', '', false);          -- what was dead is gone: no place is needed
    return;
  end if;
  select
    array_agg(t.name order by t.ord, l.priority), array_agg(t.lease order by t.ord, l.priority),
    array_agg(t.attempts order by t.ord, l.priority), array_agg(l.priority order by t.ord, l.priority),
    array_agg(l.since order by t.ord, l.priority), max(l.made_at)
  into lanes.types, lanes.leases, lanes.limits, lanes.priorities, lanes.sinces, lanes.made_at
  from unnest(lanes.types, lanes.leases, lanes.limits) with ordinality t (name, lease, attempts, ord)
  left join unnest(current_setting('benteng.lanes')::benteng.lane[]) l
    on l.type = t.name
    and benteng.now() between l.made_at and l.until;
end $$;

create or replace function benteng.pass_dead(p_types text[]) returns bigint
language plpgsql
as $$
declare
  v_now   timestamptz := benteng.now();
  v_lanes benteng.lane[] := nullif(current_setting('benteng.lanes', true), '')::benteng.lane[];
  v_due   timestamptz;                                       -- of the first that will stand in line
  v_read  bigint := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_ready'));
begin
  select j.due_at
  into v_due
  from benteng.job j
  where j.state = 'scheduled'
    and j.due_at >= (
      select coalesce(min(l.since), '-infinity')
      from unnest(v_lanes) l
      where v_now between l.made_at and l.until)
  order by j.due_at
  limit 1;
  select array_agg((t.name, p.n, least(h.due_at, v_due, benteng.committed_by(v_now)), v_now, l.until)::benteng.lane)
  into v_lanes
  from (select distinct u.name from unnest(p_types) u (name)) t
  cross join generate_series(0, 9) p (n)
  left join unnest(v_lanes) l on l.type = t.name and l.priority = p.n and v_now between l.made_at and l.until
  left join lateral (
    select j.due_at
    from benteng.job j
    where j.type = t.name
      and j.state = 'ready'
      and j.priority = p.n
      and j.due_at >= coalesce(l.since, '-infinity')
    order by j.due_at
    limit 1) h on true;
  v_read := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_ready')) - v_read;
  perform set_config('benteng.lanes', (
    select array_agg((
      l.type, l.priority, l.since, l.made_at, coalesce(l.until, benteng.until_all_is_read(v_now, v_read)))::benteng.lane)
    from unnest(v_lanes) l)::text, false);
  return v_read;
end $$;

-- committed_by: what was due before then is committed, or late.
create or replace function benteng.committed_by(p_now timestamptz) returns timestamptz
language sql immutable
as $$ select p_now - interval '0.05 s' $$;

-- until_all_is_read: when an index is read from its beginning again, by the entries that were read to know its head.
create or replace function benteng.until_all_is_read(p_now timestamptz, p_read bigint) returns timestamptz
language sql immutable
as $$ select p_now + greatest(interval '2 s', p_read * interval '5 us') $$;
