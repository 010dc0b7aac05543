-- Which replication slots hold back what the server would throw away: WAL, and with some of them old rows. One that nobody
-- uses holds it for ever; one in use does so when it falls far behind. A standby has no WAL of its own to speak of.
select
  s.slot_name, s.active,
  case when pg_is_in_recovery() then 0 else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0) end::bigint
from pg_replication_slots s
where not s.temporary
order by 1
