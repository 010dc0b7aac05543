-- schema.sql: the tables of the embedded ledger.
--
-- Promise   every job has exactly one `operation` row, and exactly one of: a `job` row (active), a `quarantine` row, or
--           neither (finished). At most one operation row a key is not freed: that is the idempotency claim.
--           `resource` rows are never deleted, `audit` rows never changed.
-- Rights    one process, one file, one uid: SQLite cannot enforce roles. rights.py guards against mistakes.
-- Order     for everybody: `begin immediate` first. One writer at a time, so there is no other lock to order.
-- {active} and {operation_states} are filled in from benteng.lifecycle.

create table installation (
  one         integer primary key check (one = 1),
  id          text not null,
  created_at  integer not null,
  environment text not null check (environment in ('dev', 'prod')),
  fence       integer not null,                 -- the last number given out; never restarts, never goes back
  seq         integer not null,                 -- the last number in line given out; so also when its job is forgotten
  epoch       integer not null,                 -- raised by a restore
  now         integer not null,                 -- the latest instant that a verb has acted on: the clock never goes back
  audit_key   blob not null check (length(audit_key) = 32)
) strict;

create table job_type (
  name       text primary key,                  -- name@major
  pool       text not null,
  tier       text not null,
  policy     blob not null,                     -- canonical JSON of TypePolicy
  sha256     text not null,
  changed_at integer not null
) strict, without rowid;

create table operation (
  seq            integer primary key,           -- order of admission
  job_id         text not null unique,
  key            text not null,
  name           text not null generated always as (substr(type, 1, instr(type, '@') - 1)) stored,
                                                -- a key belongs to a type: no other type can take it
  epoch          integer not null,              -- counts the rows that have had this key
  state          text not null check (state in ({operation_states})),
  freed          integer not null check (freed = (state = 'freed')),
  ended          text,                          -- terminal state of the job, null before
  payload_sha256 text not null,
  type           text not null,
  tier           text not null,
  origin         text not null,
  actor          text not null,
  request_id     text not null,
  priority       integer not null,
  policy_sha256  text not null,
  refs           text not null,
  parent         text not null,
  summary        text not null,
  generation     integer not null,
  attempts       integer not null default 0,
  crashes        integer not null default 0,
  starts         integer not null default 0,
  fence          integer not null default 0,
  error          text not null default '',
  rule           text not null default '',
  result         blob,
  result_until   integer,
  keep_until     integer,                       -- null: for ever
  admitted_at    integer not null,
  finished_at    integer not null default 0
) strict;
create unique index operation_key on operation (key, name) where not freed;
create index operation_freed on operation (key, name, epoch) where freed;
create index operation_result on operation (result_until) where result is not null;
create index operation_keep on operation (keep_until) where keep_until is not null and result is null;  -- a result goes first

create table job (
  seq            integer primary key,           -- = operation.seq
  id             text not null unique,
  state          text not null check (state in ({active})),
  type           text not null,
  tier           text not null,
  priority       integer not null,              -- 0 first
  due_at         integer not null,              -- not before, as the store has it: moved by retry and snooze
  available_at   integer not null,              -- not before, as the producer asked
  expires_at     integer not null,              -- not started after; 0: never
  attempts       integer not null,              -- spent by claim; settle alone gives one back
  crashes        integer not null,
  handbacks      integer not null,
  snoozes        integer not null,
  starts         integer not null,              -- claims that may have reached user code; `started` is starts > 0
  generation     integer not null,
  fence          integer not null default 0,
  token          text,                          -- secret of the lease; null unless running
  pool           text,                          -- pool of the lease
  worker         text,
  lease_until    integer,                       -- also the lease of the job's resources
  waits_for      text,                          -- blocked: the first busy resource. ready: what it was woken for (the baton)
  woken_at       integer,
  cancel_asked   integer not null default 0,
  alone          integer not null default 0,
  origin         text not null,
  actor          text not null,
  request_id     text not null,
  payload        blob not null,                 -- exact bytes
  payload_sha256 text not null,
  operation_key  text not null,
  envelope       blob not null,
  policy_sha256  text not null,
  refs           text not null,                 -- JSON: artifacts, targets, resources
  parent         text not null,
  summary        text not null,
  last_error     text not null default '',
  rule           text not null default '',      -- why it is held
  progress       text not null default '',
  admitted_at    integer not null,
  check ((state = 'running') = (token is not null)),
  check ((state = 'running') = (lease_until is not null)),
  check (state <> 'blocked' or waits_for is not null)
) strict;
create index job_ready on job (type, priority, due_at, seq, origin, state) where state = 'ready';
create index job_due on job (due_at) where state = 'scheduled';
create index job_lease on job (lease_until) where state = 'running';
create index job_expires on job (expires_at) where expires_at > 0 and state <> 'running';
create index job_waits on job (waits_for, state, priority, due_at, seq) where waits_for is not null;
create index job_origin on job (origin, state) where state in ('scheduled', 'blocked', 'held');  -- see admit.sql, depth

create table depth (                            -- of origins that were counted, or that may have another depth than most
  origin     text primary key,
  jobs_max   integer,                           -- null: the default
  jobs       integer not null default 0,        -- active when they were counted, at least
  seq        integer not null default 0,        -- the last operation then
  counted_at integer not null default 0
) strict, without rowid;

create table job_resource (                     -- which jobs ever named a resource: for people
  key text not null,
  seq integer not null references operation (seq) on delete cascade,
  primary key (key, seq)
) strict, without rowid;
create index job_resource_seq on job_resource (seq);

create table resource (
  key    text primary key,
  holder text,                                  -- job id, null: free
  fence  integer not null default 0,            -- of the last attempt that held it
  closed integer not null default 0 check (not closed or holder is not null)
) strict, without rowid;
create index resource_holder on resource (holder) where holder is not null;

create table quarantine (
  seq            integer primary key,           -- = operation.seq
  id             text not null unique,
  reason         text not null,
  classified     text not null default '',      -- reason as a person sees it
  rule           text not null,
  error          text not null,
  at             integer not null,
  type           text not null,
  tier           text not null,
  priority       integer not null,
  due_at         integer not null,
  available_at   integer not null,
  expires_at     integer not null,
  attempts       integer not null,
  crashes        integer not null,
  handbacks      integer not null,
  snoozes        integer not null,
  starts         integer not null,
  generation     integer not null,
  fence          integer not null,
  worker         text,
  alone          integer not null,
  origin         text not null,
  actor          text not null,
  request_id     text not null,
  payload        blob not null,
  payload_sha256 text not null,
  operation_key  text not null,
  envelope       blob not null,
  policy_sha256  text not null,
  refs           text not null,
  parent         text not null,
  summary        text not null,
  progress       text not null,
  admitted_at    integer not null
) strict;
create index quarantine_reason on quarantine (reason, seq);

create table audit (
  seq    integer primary key,                   -- from 1, without a gap
  leaf   blob not null,
  salt   blob,
  body   blob,
  job    integer,                               -- operation.seq: for people, and not part of the leaf; so also
  job_id text                                   -- of a job that is known by its id alone
) strict;
create index audit_job on audit (job) where job is not null;
create index audit_job_id on audit (job_id) where job_id is not null;

create table control (
  scope  text not null check (scope in ('type', 'origin', 'pool')),
  name   text not null,
  mode   text not null check (mode in ('open', 'hold', 'divert', 'halt')),
  reason text not null,
  at     integer not null,
  primary key (scope, name)
) strict, without rowid;

create table tally (                            -- what was refused, by minute
  minute     integer not null,
  origin     text not null,
  type       text not null,
  rule       text not null,
  count      integer not null,
  aggregated integer not null,                  -- of count: those without an audit record of their own
  reported   integer not null default 0,        -- of aggregated: those that a summing record has told
  primary key (minute, origin, type, rule)
) strict, without rowid;
create index tally_open on tally (minute) where aggregated > reported;

create table artifact (
  id         text primary key,
  sha256     text not null,
  state      text not null check (state in ('proposed', 'approved', 'revoked')),
  expires_at integer
) strict, without rowid;

create table access (                           -- which actor may run which type on which target; '*' is any
  actor  text not null,
  type   text not null,
  target text not null,
  primary key (actor, type, target)
) strict, without rowid;

create table speaks (                           -- which origin may enqueue which type for which actor; '*' is any
  origin text not null,
  actor  text not null,
  type   text not null,
  primary key (origin, actor, type)
) strict, without rowid;

create table worker (
  worker        text primary key,
  pool          text not null,
  host          text not null,
  boot_id       text not null,
  pid           integer not null,
  version       text not null,
  types         text not null,
  registered_at integer not null,
  seen_at       integer not null
) strict, without rowid;
create index worker_pool on worker (pool, seen_at);

create table leader (
  name        text primary key,
  holder      text not null,
  lease_until integer not null
) strict, without rowid;

create trigger audit_stays_as_it_is before update on audit
begin
  select raise(abort, 'audit records are never changed');
end;
create trigger audit_is_kept before delete on audit
begin
  select raise(abort, 'audit records are never deleted');
end;
create trigger resource_is_kept before delete on resource
begin
  select raise(abort, 'resource rows are never deleted');
end;
create trigger installation_is_kept before delete on installation
begin
  select raise(abort, 'the installation row is never deleted');
end;
create trigger fence_never_goes_back before update on installation
when new.fence < old.fence or new.seq < old.seq or new.id <> old.id or new.environment <> old.environment
begin
  select raise(abort, 'fence, id and environment of an installation never go back or change');
end;
