-- 004_lookout.sql (expand): when the keeper must look at the leases again.
--
-- Promise   one row. `job.lease_until` is not indexed, so that a heartbeat touches no index; whoever wants the leases that are
--           over looks at everything that runs. This row says until when there is nothing to be found: functions/lookout.sql.

set role benteng_owner;

create table benteng.lookout (
  one       boolean primary key default true check (one),
  looked_at timestamptz not null default '-infinity',        -- when everything that runs was looked at
  look_at   timestamptz not null default '-infinity',        -- until then no lease ends, also none that began since
  ends_at   timestamptz not null default '-infinity'         -- before that no lease ends, as far as was seen at looked_at
) with (fillfactor = 10, autovacuum_vacuum_threshold = 500);
insert into benteng.lookout default values;
create trigger lookout_is_kept before delete on benteng.lookout for each row execute function benteng.no_change();
create trigger lookouts_are_kept before truncate on benteng.lookout for each statement execute function benteng.no_change();

reset role;
