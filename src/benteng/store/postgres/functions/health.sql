-- health: what doctor reports about this ledger. Reads only, also on a standby. The time is read first, so that whoever asked
-- knows it to lie within the call.
drop function if exists benteng_v1.health();
create function benteng_v1.health()
returns table (version text, fsync text, synchronous_commit text, full_page_writes text, standbys text, environment text,
  jobs bigint, quarantined bigint, operations bigint, audit bigint,
  version_number integer, now bigint, oldest integer, newest integer, in_recovery boolean, timeline text, known_timeline text,
  same_system boolean, epoch bigint, wait_seconds float8, open_speaks boolean, open_access boolean, speakers bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_me  benteng.login := benteng.me('operator');
  v_now timestamptz := benteng.now();
begin
  return query
  select
    current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('full_page_writes'), current_setting('synchronous_standby_names'), i.environment,
    (select count(*) from benteng.job), (select count(*) from benteng.quarantine),
    (select c.reltuples::bigint from pg_class c where c.oid = 'benteng.operation'::regclass),
    (select c.reltuples::bigint from pg_class c where c.oid = 'benteng.audit'::regclass),
    current_setting('server_version_num')::integer, benteng.instant(v_now), p.oldest, p.newest, pg_is_in_recovery(),
    case when pg_is_in_recovery() then '' else benteng.timeline() end, h.timeline,
    h.system_identifier = (select c.system_identifier::text from pg_control_system() c), h.epoch,
    extract(epoch from greatest(h.claims_from, v_now) - v_now)::float8,
    exists (select from benteng.speaks s where (s.origin, s.actor, s.type) = ('*', '*', '*')),
    exists (select from benteng.access a where (a.actor, a.type, a.target) = ('*', '*', '*')),
    (select count(*) from benteng.speaks)
  from benteng.installation i
  cross join benteng.history h
  cross join benteng_v1.protocol() p;
end $$;
