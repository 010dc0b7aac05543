-- quiet, ring: tell idle workers that there is something to do. A hint: what is lost is found by polling.
--
-- Promise   one notification a pool and transaction, delivered after the commit, of a fixed short form (the pool's name). Only
--           when a type had nothing ready before: under load there is none, because a transaction that notifies takes part in
--           no group commit (measured: a fourth of the throughput).
-- Trust     any login may listen and notify: workers bound how often a hint makes them look.
create or replace function benteng.quiet(p_types text[]) returns text[]
language plpgsql stable  -- by index alone, as its callers' settings have it: setting them again costs more than the look
as $$
begin
  return array(
    select u.name
    from unnest(p_types) u (name)
    where not exists (
      select
      from benteng.job j
      where j.type = u.name
        and j.state = 'ready'
      order by j.priority desc, j.due_at desc, j.seq desc    -- from the end of the line, as ring
      limit 1
      offset 0));
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
      -- offset 0: one look a type. As a join, planned while the ledger was empty, it would read all that is ready. From the end
      -- of the line: what is dead and cannot be removed is at its head.
      and exists (
        select
        from benteng.job j
        where j.type = t.name
          and j.state = 'ready'
        order by j.priority desc, j.due_at desc, j.seq desc
        limit 1
        offset 0)) r;
end $$;
