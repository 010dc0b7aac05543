-- 009_plain.sql (expand): jobs that only complete are told as arrays of what that takes.
--
-- Promise   one `settle` and one `turn`, with four more parameters that have defaults: clients that know only those before are
--           still understood. Two functions of that name would make their call ambiguous; so also for the helpers below them.
-- Locks     none that a verb waits for.

set role benteng_owner;

drop function if exists benteng_v1.settle(benteng_v1.settlement[], benteng_v1.entrance[], boolean, bigint[], bigint[]);
drop function if exists benteng_v1.turn(
  benteng_v1.settlement[], benteng_v1.entrance[], bigint, text[], text, bigint[], bigint[]);
drop function if exists benteng.end_attempts(
  benteng.login, benteng_v1.settlement[], benteng_v1.entrance[], boolean, bigint[], bigint[]);
drop function if exists benteng.complete_jobs(tid[], bytea[], text[], timestamptz);

reset role;
