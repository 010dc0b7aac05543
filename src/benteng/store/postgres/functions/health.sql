-- health: what doctor reports about this ledger. Reads only.
create or replace function benteng_v1.health()
returns table (version text, fsync text, synchronous_commit text, full_page_writes text, standbys text, environment text,
  jobs bigint, quarantined bigint, operations bigint, audit bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_me benteng.login := benteng.me('operator');
begin
  return query
  select
    current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('full_page_writes'), current_setting('synchronous_standby_names'), i.environment,
    (select count(*) from benteng.job), (select count(*) from benteng.quarantine),
    (select c.reltuples::bigint from pg_class c where c.oid = 'benteng.operation'::regclass),
    (select c.reltuples::bigint from pg_class c where c.oid = 'benteng.audit'::regclass)
  from benteng.installation i;
end $$;
