-- 016_storm.sql (expand): what a storm of retries does in vain while a transaction pins the horizon.
--
-- Promise   entries of one id are versions of one row: to put them together only means to sort them before each try to remove them.
--           Who moves jobs says where their rows are, and places in line are found by their own look: one function of each name,
--           two would make calls ambiguous.
-- Locks     share update exclusive on two indexes: no verb waits.

set role benteng_owner;

alter index benteng.job_id set (deduplicate_items = off);
alter index benteng.job_running set (deduplicate_items = off);
drop function if exists benteng.pass_dead(text[], bigint);
drop function if exists benteng.note(benteng.move[], timestamptz, text[]);
drop function if exists benteng.move_jobs(benteng.move[], timestamptz, text[], boolean);
drop function if exists benteng.set_apart(benteng.move[], timestamptz);
drop function if exists benteng.leave(benteng.move[], timestamptz);
drop function if exists benteng.decide(benteng_v1.settlement[], timestamptz);

reset role;
