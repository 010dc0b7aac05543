-- 003_vacuum.sql (expand): when autovacuum looks at the tables that verbs change. `job` and `resource` say so in 001.
--
-- Promise   each completion leaves one dead row in `operation`: with the server's default a fifth of all that was ever done
--           would be dead before anything is cleaned. `tally` is small, and every refusal changes a row of it.
-- Locks     share update exclusive: no verb waits.

set role benteng_owner;

alter table benteng.operation set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
alter table benteng.tally set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);

reset role;
