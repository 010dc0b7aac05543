-- 007_retention.sql (expand): when what is finished may be forgotten, in a table of its own.
--
-- Promise   each completed operation of which something comes due has an entry, at the earliest time. What counts are the times
--           in `operation`: an entry only says where to look, and when. They are indexed no more: completing a job changes no
--           indexed column, so that no index of `operation` gets an entry while the row's page has room (HOT).
-- Locks     `operation` against everybody, from the first statement to the commit: seconds for a million finished jobs.

set role benteng_owner;

lock table benteng.operation in access exclusive mode;

create table benteng.retention (
  until timestamptz not null,
  seqs  bigint[] not null                                    -- operations that were completed together and come due together
) with (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
create index retention_until on benteng.retention (until);

insert into benteng.retention (until, seqs)
select d.until, array_agg(o.seq order by o.seq)
from benteng.operation o
cross join lateral (select least(o.result_until, case when o.state = 'completed' then o.keep_until end)) d (until)
where d.until is not null
group by d.until, o.seq / 1000;

drop index benteng.operation_result;
drop index benteng.operation_keep;
alter table benteng.operation set (fillfactor = 50);          -- room for each row's second version, also within one batch
drop function if exists benteng.hold_resources(uuid[]);
alter type benteng.move drop attribute if exists result;     -- complete_jobs has it: what completes is no move

reset role;
