-- 015_id.sql (expand): the index of a job's id is no longer unique.
--
-- Promise   two rows of one id are as impossible as before: a job enters in the statement after the one that inserted its operation,
--           of which the id is unique, or comes back by whoever deletes its only row of `quarantine`. Who inserts into a unique
--           index looks at each version of a row there, and none can be removed while some transaction pins the horizon.
-- Locks     access exclusive on `job`, for as long as the index is built: seconds for millions of active jobs.

set role benteng_owner;

lock table benteng.job in access exclusive mode;             -- at once: who has read already would wait for us, and we for him
create index job_id on benteng.job (id);
alter table benteng.job drop constraint job_pkey;
alter table benteng.job alter column id set not null;

reset role;
