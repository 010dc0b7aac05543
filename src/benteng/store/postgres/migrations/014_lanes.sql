-- 014_lanes.sql (expand): from where on a line is read while nobody can remove what is dead at its head: functions/lanes.sql.
--
-- Promise   a type alone: a place is a setting of a session, and no row.
-- Locks     none that a verb waits for.

set role benteng_owner;

create type benteng.lane as (
  type     text,
  priority smallint,
  since    timestamptz,                                      -- nobody alive stands before it, as far as was seen
  made_at  timestamptz,
  until    timestamptz                                       -- then the line is read from its beginning again
);
drop function if exists benteng.quotas(text[], integer, text[], uuid[]);
drop function if exists benteng.choose(
  text[], integer[], integer[], text[], integer, boolean, boolean, benteng.chosen);

reset role;
