-- 011_ended.sql (expand): what was cancelled or discarded is forgotten after its type's time, like what completed.
--
-- Promise   operations that ended before without being completed get the time that they would have had, and an entry of
--           `retention` each thousand. What is set apart has no such time until a person has decided.
-- Locks     the rows that it dates: seconds for a million.

set role benteng_owner;

with dated as (
  update benteng.operation o
  set keep_until = o.finished_at + make_interval(secs => t.operation_keep_seconds)
  from benteng.job_type t
  where t.name = o.type
    and t.operation_keep_seconds is not null
    and o.ended in ('cancelled', 'discarded')
    and o.keep_until is null
  returning o.seq, o.keep_until)
insert into benteng.retention (until, seqs)
select min(d.keep_until), array_agg(d.seq order by d.seq)
from dated d
group by d.seq / 1000;

reset role;
