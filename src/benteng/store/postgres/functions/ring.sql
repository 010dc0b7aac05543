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

create or replace function benteng.quiet(p_types text[]) returns text[]
language plpgsql stable  -- by index alone, as its callers' settings have it: setting them again costs more than the look
as $$
begin
  return array(
    select u.name
    from unnest(p_types) u (name)
    where not exists (select from benteng.last_in_line(u.name)));
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
