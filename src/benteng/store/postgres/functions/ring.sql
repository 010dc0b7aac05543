-- quiet, ring: tell idle workers that there is something to do. A hint: what is lost is found by polling.
--
-- Promise   one notification a pool and transaction, delivered after the commit, of a fixed short form (the pool's name). Only
--           when a type had nothing ready before: under load there is none, because a transaction that notifies takes part in
--           no group commit (measured: a fourth of the throughput).
-- Trust     any login may listen and notify: workers bound how often a hint makes them look.
-- last_in_line: what stands last of all that is ready of a type, if anything does. One look: as a join, planned while the ledger was
-- empty, it would read all that is ready. From the end, for what is dead and cannot be removed is at the head. A set, so that it
-- is planned with the query around it.
create or replace function benteng.last_in_line(p_type text) returns setof smallint
language sql stable
as $$
  select j.priority
  from benteng.job j
  where j.type = p_type
    and j.state = 'ready'
  order by j.priority desc, j.due_at desc, j.seq desc
  limit 1
$$;

-- stands_dead, pass_tail, is_quiet_lately: when nothing is ready and some transaction pins the horizon, all that was ever ready is
-- walked to find that out. Who has walked more than 2,000 entries looks for a while only at what came due in the last twentieth of a
-- second. It may take a line for quiet that is not, and ring once too often. Writes nothing but a setting of the session.
create or replace function benteng.stands_dead() returns boolean
language sql
as $$ select coalesce(nullif(current_setting('benteng.tail', true), '')::timestamptz > benteng.now(), false) $$;

create or replace function benteng.pass_tail(p_read bigint) returns void
language plpgsql
as $$
begin
  if p_read > 2000 and not benteng.stands_dead() then
    perform set_config('benteng.tail', benteng.until_all_is_read(benteng.now(), p_read)::text, false);
  end if;
end $$;

create or replace function benteng.is_quiet_lately(p_type text) returns boolean
language plpgsql
as $$
declare
  v_since timestamptz := benteng.committed_by(benteng.now());
begin
  return not exists (
    select
    from generate_series(0, 9) p (n)
    cross join lateral (
      select
      from benteng.job j
      where j.type = p_type
        and j.state = 'ready'
        and j.priority = p.n
        and j.due_at > v_since
      order by j.due_at desc
      limit 1) l);
end $$;

create or replace function benteng.quiet(p_types text[]) returns text[]
language plpgsql  -- by index alone, as its callers' settings have it: setting them again costs more than the look
as $$
declare
  v_read  bigint := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_ready'));
  v_quiet text[];
begin
  v_quiet := array(
    select u.name
    from unnest(p_types) u (name)
    where case
      when benteng.stands_dead() then benteng.is_quiet_lately(u.name)
      else not exists (select from benteng.last_in_line(u.name))
    end);
  perform benteng.pass_tail(pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_ready')) - v_read);
  return v_quiet;
end $$;

create or replace function benteng.ring(p_types text[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
  perform pg_notify('benteng', r.pool)
  from (
    select distinct t.pool
    from benteng.job_type t
    where t.name = any (p_types)
      and exists (select from benteng.last_in_line(t.name))) r;
end $$;
