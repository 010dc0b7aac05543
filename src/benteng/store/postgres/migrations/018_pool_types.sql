-- 018_pool_types.sql (expand): what a claim asks about types and history, made ahead.
--
-- Promise   one row for each pool, which says what `job_type` says: functions/pool_types.sql keeps it so. And of the history, in
--           which server its system identifier was last compared with the server's own.
-- Locks     access exclusive on `history`, for a moment.

set role benteng_owner;

create table benteng.pool_types (
  pool   text collate "C" primary key,
  types  text[] collate "C" not null,
  leases float8[] not null,                                  -- seconds, of each type
  limits integer[] not null                                  -- attempts_max, of each type
);
alter table benteng.history add column compared_at timestamptz not null default '-infinity';
drop function if exists benteng.facts(text, text, text, text[], text[]);

reset role;
