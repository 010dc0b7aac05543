-- 013_holds.sql (expand): who moves jobs that hold nothing says so.
--
-- Promise   one `move_jobs`, with one more parameter that has a default. Two functions of that name would make its calls ambiguous.
-- Locks     none that a verb waits for.

set role benteng_owner;

drop function if exists benteng.move_jobs(benteng.move[], timestamptz, text[]);

reset role;
