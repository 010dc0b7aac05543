-- 002_history.sql (expand): which history of the database the ledger's fences belong to.
--
-- Promise   one row. A promotion, a recovery to a point in time and a dump that was restored elsewhere each begin another
--           history: what was committed last in the old one may be missing here, and its fences may be issued again.

set role benteng_owner;

create table benteng.history (
  one               boolean primary key default true check (one),
  system_identifier text not null,
  timeline          text not null,                           -- the first eight digits of a WAL file's name
  epoch             bigint not null default 0,               -- the fence's upper bits
  standbys          text not null default '',                -- whom commits waited for on this timeline (class D2); '': nobody
  claims_from       timestamptz not null default '-infinity' -- until then a lease that was lost may still be held
);
insert into benteng.history (system_identifier, timeline)
select c.system_identifier::text, left(pg_walfile_name(pg_current_wal_lsn()), 8)
from pg_control_system() c;
create trigger history_is_kept before delete on benteng.history for each row execute function benteng.no_change();
create trigger histories_are_kept before truncate on benteng.history for each statement execute function benteng.no_change();

reset role;
