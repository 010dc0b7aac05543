-- gather_types: what a claim asks about the types of its pool, as one row of `pool_types`.
--
-- Promise   whenever a change of `job_type` commits, the rows of its pools say the same. A claim reads one row instead of joining and
--           aggregating types in each turn. Switches are no part of it: they are read where they are kept, under their lock.
-- Locks     pool_types against other changes, to the commit: nobody gathers from a snapshot without what another one gathered.
create or replace function benteng.gather_types() returns trigger
language plpgsql
as $$
begin
  lock table benteng.pool_types in share row exclusive mode;
  delete from benteng.pool_types p
  where not exists (select from benteng.job_type t where t.pool = p.pool);
  insert into benteng.pool_types as p (pool, types, leases, limits)
  select
    t.pool, array_agg(t.name order by t.name), array_agg(t.lease_seconds order by t.name), array_agg(t.attempts_max order by t.name)
  from benteng.job_type t
  group by t.pool
  on conflict (pool) do update
  set types = excluded.types,
      leases = excluded.leases,
      limits = excluded.limits;
  return null;
end $$;

create or replace trigger job_types_are_gathered after insert or update on benteng.job_type
for each statement execute function benteng.gather_types();
update benteng.job_type t set name = t.name where false;     -- gathers those that were there before
