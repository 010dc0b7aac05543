-- preamble.sql: where the schemas belong, and which files were applied.
create schema benteng authorization benteng_owner;
create schema benteng_v1 authorization benteng_owner;
set role benteng_owner;
create table benteng.migration (
  name       text primary key,
  sha256     text not null,
  applied_at timestamptz not null default clock_timestamp()
);
reset role;
