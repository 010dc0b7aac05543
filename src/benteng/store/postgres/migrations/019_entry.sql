-- 019_entry.sql (expand): what a state may be is said by the type of its column, and a number of admission is unique by its making.
--
-- Promise   the same values are refused as before. A CHECK is read and planned anew by each statement, a domain's once a session: a
--           tenth of what one admission costs. `name` is what `enter` writes, which alone inserts. `seq` is drawn from a sequence
--           by the call that inserts it, and nothing else ever sets it, so nobody asks whether it is there.
-- Locks     `job` and `operation` against everybody, from the first statement to the commit: seconds for a million finished jobs.

set role benteng_owner;

lock table benteng.job, benteng.operation in access exclusive mode;

create domain benteng.digest as bytea;                       -- their checks come last: a type without one rewrites no table
create domain benteng.job_state as text;
create domain benteng.operation_state as text;
create domain benteng.ending as text;

alter table benteng.operation
  drop constraint operation_key_check,
  drop constraint operation_state_check,
  drop constraint operation_ended_check,
  drop constraint operation_pkey,
  alter column seq set not null,
  alter column key type benteng.digest,
  alter column state type benteng.operation_state,
  alter column ended type benteng.ending,
  alter column name drop expression;
create index operation_seq on benteng.operation (seq);
alter table benteng.job
  drop constraint job_state_check,
  drop constraint job_check1,
  alter column state type benteng.job_state,
  add check (lease_until is null or token is not null);

alter domain benteng.digest add check (octet_length(value) = 32);
alter domain benteng.job_state add check (value in ('scheduled', 'ready', 'blocked', 'held', 'running'));
alter domain benteng.operation_state add check (value in ('reserved', 'completed', 'kept', 'uncertain', 'freed'));
alter domain benteng.ending add check (value in ('completed', 'cancelled', 'discarded'));

reset role;
