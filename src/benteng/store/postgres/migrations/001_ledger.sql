-- 001_ledger.sql (expand): the tables of the ledger.
--
-- Promise   every job has exactly one `operation` row, and exactly one of: a `job` row (active), a `quarantine` row, or
--           neither (finished). At most one operation row a key is not freed: that is the idempotency claim.
--           `resource` rows are never deleted, `audit` rows never changed.
-- Rights    schema `benteng` is the owner's alone: no other role has any right on a table, a sequence or a helper.
--           Schema `benteng_v1` holds the verbs and the types of their arguments.
-- Order     for everybody, always: control (table lock), jobs by id, resources by key, operations by key, new rows,
--           tallies by key. Who holds a resource row waits for no job and no resource row any more (skip locked).

set role benteng_owner;

-- Global for the owner: "in schema ..." is accepted and does nothing.
alter default privileges revoke execute on functions from public;

-- One sequence numbers fences and audit records alike. The record of a claim *is* its fence, so that the log, in the order of
-- its numbers, shows fences rising; and a number is drawn while the row that it is about is held.
create sequence benteng.fence cache 1;
create sequence benteng.admission cache 1;

create table benteng.installation (
  one         boolean primary key default true check (one),
  id          uuid not null default gen_random_uuid(),
  created_at  timestamptz not null default clock_timestamp(),
  environment text not null check (environment in ('dev', 'prod')),
  pad_inner   bytea not null check (octet_length(pad_inner) = 64),   -- HMAC's two keys: the audit's digests are keyed
  pad_outer   bytea not null check (octet_length(pad_outer) = 64)
);

create table benteng.login (
  name  text collate "C" primary key,
  facet text not null check (facet in ('producer', 'consumer', 'keeper', 'sealer', 'operator', 'approver', 'auditor')),
  pool  text collate "C",
  check ((facet = 'consumer') = (pool is not null))          -- one pool a consumer's login
);

create table benteng.job_type (
  name                   text collate "C" primary key,       -- name@major
  policy                 bytea not null,                     -- canonical JSON of TypePolicy: all else here is read from it
  sha256                 text not null,
  changed_at             timestamptz not null,
  pool                   text collate "C" not null,
  tier                   text not null check (tier in ('low', 'medium', 'high')),
  effect                 text not null check (effect in ('repeatable', 'once')),
  closes                 boolean not null,                   -- an uncertain job keeps its resources closed
  successors             text[] collate "C" not null,
  attempts_max           integer not null check (attempts_max between 1 and 25),
  crashes_max            integer not null check (crashes_max between 1 and 10),
  handbacks_max          integer not null check (handbacks_max between 0 and 100),
  snoozes_max            integer not null check (snoozes_max between 0 and 1000),
  snooze_seconds_max     float8 not null check (snooze_seconds_max > 0 and snooze_seconds_max <= 604800),
  backoff_seconds_min    float8 not null check (backoff_seconds_min >= 0.05),
  backoff_seconds_max    float8 not null check (backoff_seconds_max between backoff_seconds_min and 86400),
  lease_seconds          float8 not null check (lease_seconds between 1 and 3600),
  payload_bytes_max      integer not null check (payload_bytes_max between 1 and 65536),
  result_bytes_max       integer not null check (result_bytes_max between 1 and 65536),
  result_keep_seconds    float8 not null check (result_keep_seconds >= 0),
  operation_keep_seconds float8 check (operation_keep_seconds >= 86400),    -- null: for ever
  check (tier <> 'low' or effect = 'repeatable'),
  check (tier <> 'high' or operation_keep_seconds is null)
);

create table benteng.control (
  scope  text not null check (scope in ('type', 'origin', 'pool')),
  name   text collate "C" not null,
  mode   text not null check (mode in ('open', 'hold', 'divert', 'halt')),
  reason text not null,
  at     timestamptz not null,
  primary key (scope, name)
);

create table benteng.operation (
  seq            bigint primary key,                         -- order of admission
  job_id         uuid not null unique,
  key            bytea not null check (octet_length(key) = 32),
  epoch          integer not null,                           -- counts the rows that have had this key
  state          text not null check (state in ('reserved', 'completed', 'kept', 'uncertain', 'freed')),
  freed          boolean not null default false,             -- apart from state, so that completing a job stays HOT
  ended          text check (ended in ('completed', 'cancelled', 'discarded')),
  payload_sha256 bytea not null,
  type           text collate "C" not null,
  name           text collate "C" not null generated always as (split_part(type, '@', 1)) stored,
                                                             -- a key belongs to a type: no other type can take it
  tier           text not null,
  origin         text collate "C" not null,
  actor          text collate "C" not null,
  request_id     text collate "C" not null,
  priority       smallint not null,
  policy_sha256  text not null,
  artifacts      text[] collate "C" not null,                -- id, sha256, id, sha256, ...
  targets        text[] collate "C" not null,
  resources      text[] collate "C" not null,
  parent         uuid,
  summary        text not null,
  generation     integer not null default 0,
  attempts       integer not null default 0,
  crashes        integer not null default 0,
  starts         integer not null default 0,
  fence          bigint not null default 0,
  token          text,                                       -- of the settlement that ended it: a repeated one is recognised
  error          text not null default '',
  rule           text not null default '',
  result         bytea,
  result_until   timestamptz,
  keep_until     timestamptz,                                -- null: for ever
  admitted_at    timestamptz not null,
  finished_at    timestamptz,
  check (freed = (state = 'freed'))
) with (fillfactor = 80);
create unique index operation_key on benteng.operation (key, name) where not freed;
create index operation_freed on benteng.operation (key, name, epoch) where freed;
create index operation_request on benteng.operation (request_id, seq) where request_id <> '';
create index operation_resource on benteng.operation using gin (resources) where resources <> '{}';
create index operation_result on benteng.operation (result_until) where result_until is not null;
create index operation_keep on benteng.operation (keep_until) where keep_until is not null;

create table benteng.job (
  id             uuid primary key,
  seq            bigint not null,                            -- = operation.seq
  state          text not null check (state in ('scheduled', 'ready', 'blocked', 'held', 'running')),
  type           text collate "C" not null,
  tier           text not null,
  priority       smallint not null,                          -- 0 first
  due_at         timestamptz not null,                       -- not before, as the store has it: moved by retry and snooze
  available_at   timestamptz,                                -- not before, as the producer asked
  expires_at     timestamptz,                                -- not started after
  attempts       integer not null default 0,                 -- spent by claim; settle alone gives one back
  crashes        integer not null default 0,
  handbacks      integer not null default 0,
  snoozes        integer not null default 0,
  starts         integer not null default 0,                 -- claims that may have reached user code
  generation     integer not null default 0,
  fence          bigint not null default 0,
  token          text,                                       -- secret of the lease; of the last one when not running
  pool           text collate "C",                           -- of the lease
  worker         text,
  lease_until    timestamptz,                                -- not indexed: heartbeats stay HOT. Also the resources' lease
  waits_for      text collate "C",                           -- blocked: the first busy key. ready: what it was woken for (baton)
  woken_at       timestamptz,
  cancel_asked   boolean not null default false,
  alone          boolean not null default false,
  origin         text collate "C" not null,
  actor          text collate "C" not null,
  request_id     text not null,
  payload        bytea not null,                             -- exact bytes
  payload_sha256 bytea not null,
  operation_key  bytea not null,
  envelope       bytea not null,
  policy_sha256  text not null,
  artifacts      text[] collate "C" not null,
  targets        text[] collate "C" not null,
  resources      text[] collate "C" not null,                -- sorted, distinct, at most 16
  parent         uuid,
  summary        text not null,
  last_error     text not null default '',
  rule           text not null default '',                   -- why it is held
  progress       text not null default '',
  admitted_at    timestamptz not null,
  check ((state = 'running') = (lease_until is not null)),
  check (state <> 'running' or token is not null),
  check (state <> 'blocked' or waits_for is not null)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index job_ready on benteng.job (type, priority, due_at, seq) where state = 'ready';
create index job_due on benteng.job (due_at, seq) where state = 'scheduled';
create index job_running on benteng.job (id) where state = 'running';   -- on id: harmless where the planner takes it for the key
create index job_expires on benteng.job (expires_at) where expires_at is not null;
create index job_waits on benteng.job (waits_for, state, priority, due_at, seq) where waits_for is not null;
create index job_seq on benteng.job (seq);
create index job_origin on benteng.job (origin);

create table benteng.resource (
  key    text collate "C" primary key,
  holder uuid,                                               -- job id; null: free
  fence  bigint not null default 0,                          -- of the last attempt that held it
  closed boolean not null default false,                     -- kept by an uncertain job until a person resolves it
  check (not closed or holder is not null)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

create table benteng.quarantine (
  id             uuid primary key,
  seq            bigint not null,
  reason         text not null check (reason in (
    'refused', 'permanent', 'suspicious', 'exhausted', 'crashed', 'expired', 'revoked', 'undecodable', 'diverted', 'uncertain')),
  classified     text not null default '' check (classified in (     -- reason as a person sees it
    '', 'refused', 'permanent', 'suspicious', 'exhausted', 'crashed', 'expired', 'revoked', 'undecodable', 'diverted')),
  rule           text not null,
  error          text not null,
  at             timestamptz not null,
  type           text collate "C" not null,
  tier           text not null,
  priority       smallint not null,
  due_at         timestamptz not null,
  available_at   timestamptz,
  expires_at     timestamptz,
  attempts       integer not null,
  crashes        integer not null,
  handbacks      integer not null,
  snoozes        integer not null,
  starts         integer not null,
  generation     integer not null,
  fence          bigint not null,
  worker         text,
  alone          boolean not null,
  origin         text collate "C" not null,
  actor          text collate "C" not null,
  request_id     text not null,
  payload        bytea not null,
  payload_sha256 bytea not null,
  operation_key  bytea not null,
  envelope       bytea not null,
  policy_sha256  text not null,
  artifacts      text[] collate "C" not null,
  targets        text[] collate "C" not null,
  resources      text[] collate "C" not null,
  parent         uuid,
  summary        text not null,
  progress       text not null,
  admitted_at    timestamptz not null
);
create index quarantine_reason on benteng.quarantine (reason, seq);

create table benteng.audit (
  xid            xid8 not null default pg_current_xact_id(),         -- before id: the number is drawn when the xid is known
  id             bigint primary key default nextval('benteng.fence'),
  at             timestamptz not null,
  event          text not null,
  job_id         uuid,
  type           text not null default '',
  policy_sha256  text not null default '',
  state_from     text not null default '',
  state_to       text not null default '',
  attempt        integer not null default 0,
  fence          bigint not null default 0,
  origin         text not null default '',
  actor          text not null default '',
  request_id     text not null default '',
  operation_key  bytea,
  payload_sha256 bytea,
  summary        text not null default '{}',
  resources      text[] not null default '{}',
  worker         text not null default '',
  login          text not null default session_user,
  rule           text not null default '',
  reason         text not null default '',
  detail         text not null default '',
  salt           bytea not null default uuid_send(gen_random_uuid())  -- 122 random bits
);
create index audit_job on benteng.audit (job_id, id) where job_id is not null;

create table benteng.audit_order (                           -- sequence now, integrate later: see audit_page
  seq bigint primary key,                                    -- from 1, without a gap
  id  bigint not null unique
);

create table benteng.audit_head (                            -- how far the log is numbered
  one      boolean primary key default true check (one),
  seq      bigint not null default 0,
  id       bigint not null default 0                         -- every record up to here is numbered
);
insert into benteng.audit_head default values;

create table benteng.tally (                                 -- what was refused, by minute
  minute   bigint not null,
  origin   text collate "C" not null,
  type     text collate "C" not null,
  rule     text collate "C" not null,
  count    bigint not null,
  reported bigint not null default 0,                        -- of those without a record of their own: told by a summing one
  primary key (minute, origin, type, rule)
);

create table benteng.artifact (
  id         text collate "C" primary key,
  sha256     text not null,
  state      text not null check (state in ('proposed', 'approved', 'revoked')),
  expires_at bigint                                          -- microseconds, as the registrar gave it
);

create table benteng.access (                                -- which actor may run which type on which target; '*' is any
  actor  text collate "C",
  type   text collate "C",
  target text collate "C",
  primary key (actor, type, target)
);

create table benteng.speaks (                                -- which origin may enqueue which type for which actor; '*' is any
  origin text collate "C",
  actor  text collate "C",
  type   text collate "C",
  primary key (origin, actor, type)
);

create table benteng.worker (
  worker        text collate "C",
  pool          text collate "C",
  host          text not null,
  boot_id       text not null,
  pid           bigint not null,
  version       text not null,
  types         text not null,
  registered_at timestamptz not null,
  seen_at       timestamptz not null,
  primary key (pool, worker)
);

create table benteng.leader (
  name        text collate "C" primary key,
  holder      text not null,
  lease_until timestamptz not null
);

-- The arguments of the verbs. store/postgres/wire.py has the same fields in the same order; a test compares them.
create type benteng_v1.entrance as (
  id uuid, type text, tier text, priority bigint, available_at bigint, expires_at bigint, generation bigint,
  origin text, actor text, request_id text, payload bytea, payload_sha256 text, operation_key text, envelope bytea,
  policy_sha256 text, artifacts text[], targets text[], resources text[], summary text,
  entry text, rule text, reason text, parent uuid, unfit boolean);
create type benteng_v1.refusal as (
  type text, origin text, actor text, request_id text, rule text, reason text, payload_sha256 text, operation_key text,
  job_id uuid, fence bigint, detail text);
create type benteng_v1.question as (
  type text, actor text, operation_key text, artifacts text[], targets text[]);
create type benteng_v1.settlement as (
  id uuid, fence bigint, token text, disposition text, delay_seconds float8, reason text, error text, rule text,
  result bytea, started boolean, alone boolean);
create type benteng_v1.type_row as (name text, policy bytea, sha256 text);

-- The answers that more than one verb gives.
create type benteng_v1.granted as (
  job_id uuid, type text, tier text, priority integer, available_at bigint, expires_at bigint, generation integer,
  origin text, actor text, request_id text, payload bytea, payload_sha256 text, operation_key text, envelope bytea,
  policy_sha256 text, artifacts text[], targets text[], resources text[], summary text,
  attempt integer, crashes integer, handbacks integer, snoozes integer, alone boolean,
  fence bigint, token text, lease_seconds float8, now bigint,
  control_scope text, control_name text, control_mode text, control_reason text, type_sha256 text, speaks boolean,
  denied text[], artifact_facts text[]);
create type benteng_v1.settled as (job_id uuid, state text, reason text);

-- What becomes of one job: see functions/move_jobs.sql.
create type benteng.move as (
  id uuid, event text, state_to text, reason text, rule text, error text, attempts integer, crashes integer,
  handbacks integer, snoozes integer, starts integer, due_at timestamptz, alone boolean, result bytea);
create type benteng.facts as (
  scope text, name text, mode text, reason text, policy_sha256 text, speaks boolean, denied text[], artifacts text[]);

create view benteng.open_type as                             -- the types that may start now. A view: planned once with its query
  select t.name, t.pool
  from benteng.job_type t
  where not exists (
    select from benteng.control c
    where c.mode = 'halt'
      and ((c.scope = 'type' and c.name = t.name) or (c.scope = 'pool' and c.name = t.pool)));

create function benteng.no_change() returns trigger
language plpgsql
as $$
begin
  raise exception 'rows of % are kept as they are', tg_table_name using errcode = 'insufficient_privilege';
end $$;
create trigger audit_stays before update or delete on benteng.audit for each row execute function benteng.no_change();
create trigger audit_is_kept before truncate on benteng.audit for each statement execute function benteng.no_change();
create trigger audit_order_stays before update or delete on benteng.audit_order for each row execute function benteng.no_change();
create trigger audit_order_is_kept before truncate on benteng.audit_order for each statement execute function benteng.no_change();
create trigger resource_is_kept before delete on benteng.resource for each row execute function benteng.no_change();
create trigger resources_are_kept before truncate on benteng.resource for each statement execute function benteng.no_change();
create trigger job_type_is_kept before delete on benteng.job_type for each row execute function benteng.no_change();
create trigger job_types_are_kept before truncate on benteng.job_type for each statement execute function benteng.no_change();
create trigger installation_is_kept before delete on benteng.installation for each row execute function benteng.no_change();

reset role;
