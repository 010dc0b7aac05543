-- 017_answer.sql (expand): a turn tells what it settled in one row, and digests as they are stored.
--
-- Promise   one `turn`, `claim` and `end_attempts`, with another answer. The digests of a granted job are bytes and no longer
--           hexadecimal text, so that an answer of ten jobs fits into what the server sends at once.
-- Locks     none that a verb waits for.

set role benteng_owner;

drop function if exists benteng_v1.turn(
  benteng_v1.settlement[], benteng_v1.entrance[], bigint, text[], text, bigint[], bigint[], uuid[], bigint[], text[], bytea[]);
drop function if exists benteng_v1.claim(bigint, text[], text);
drop function if exists benteng.end_attempts(
  benteng.login, benteng_v1.settlement[], benteng_v1.entrance[], boolean, bigint[], bigint[], uuid[], bigint[], text[], bytea[]);
drop type benteng_v1.granted;
create type benteng_v1.granted as (
  job_id uuid, type text, tier text, priority integer, available_at bigint, expires_at bigint, generation integer,
  origin text, actor text, request_id text, payload bytea, payload_sha256 bytea, operation_key bytea, envelope bytea,
  policy_sha256 text, artifacts text[], targets text[], resources text[], summary text,
  attempt integer, crashes integer, handbacks integer, snoozes integer, alone boolean, fence bigint, token text, facts text,
  settled_ids uuid[], settled_states text[], settled_reasons text[]);

reset role;
