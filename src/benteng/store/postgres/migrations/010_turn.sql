-- 010_turn.sql (expand): a claim is a turn that settles nothing, and tells the facts of its jobs once for all that share them.
--
-- Promise   `granted` has no facts of its own any more, but for a last row that has all of them; the functions that make such rows
--           are made anew. `chosen` is what one look at the line says.
-- Locks     none that a verb waits for.

set role benteng_owner;

drop function if exists benteng_v1.turn(
  benteng_v1.settlement[], benteng_v1.entrance[], bigint, text[], text, bigint[], bigint[], uuid[], bigint[], text[], bytea[]);
drop function if exists benteng_v1.claim(bigint, text[], text);
drop function if exists benteng.start_jobs(text, bigint, text[], text, boolean);
drop function if exists benteng.flaw(text, bytea, bytea, bytea, boolean, boolean);
drop type benteng_v1.granted;
create type benteng_v1.granted as (
  job_id uuid, type text, tier text, priority integer, available_at bigint, expires_at bigint, generation integer,
  origin text, actor text, request_id text, payload bytea, payload_sha256 text, operation_key text, envelope bytea,
  policy_sha256 text, artifacts text[], targets text[], resources text[], summary text,
  attempt integer, crashes integer, handbacks integer, snoozes integer, alone boolean, fence bigint, token text, facts text);
create type benteng.chosen as (
  now timestamptz, found integer, ids uuid[], tids tid[], wanting boolean, contended boolean, batons text[], mine text[],
  later uuid[]);
create or replace view benteng.open_type as
  select t.name, t.pool, t.lease_seconds, t.attempts_max
  from benteng.job_type t
  where not exists (
    select from benteng.control c
    where c.mode = 'halt'
      and ((c.scope = 'type' and c.name = t.name) or (c.scope = 'pool' and c.name = t.pool)));

reset role;
