-- 006_used.sql (expand): a worker says with each end what its attempt did with the network.
--
-- Promise   one `settle` and one `turn`, with two more parameters that have defaults: clients that know only those before are
--           still understood. Two functions of that name would make their call ambiguous; so also for the helpers below them.
-- Locks     none that a verb waits for.

set role benteng_owner;

drop function if exists benteng_v1.settle(benteng_v1.settlement[], benteng_v1.entrance[], boolean);
drop function if exists benteng_v1.turn(benteng_v1.settlement[], benteng_v1.entrance[], bigint, text[], text);
drop function if exists benteng.end_attempts(benteng.login, benteng_v1.settlement[], benteng_v1.entrance[], boolean);
drop function if exists benteng.move_jobs(benteng.move[], timestamptz);
drop function if exists benteng.note(benteng.move[], timestamptz);

reset role;
