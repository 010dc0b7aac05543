-- health.sql: what doctor wants to know.
--
-- Promise   reads only; `integrity` walks the file, so it is asked by people and not by a loop.

-- name: integrity
pragma quick_check(1);

-- name: journal
pragma journal_mode;

-- name: synchronous
pragma synchronous;

-- name: counts
select state as name, count(*) as rows from job group by state
union all
select 'quarantined', count(*) from quarantine
union all
select 'operations', count(*) from operation
union all
select 'audit', count(*) from audit;

-- name: open_access
select count(*) as rows
from access
where actor = '*' and type = '*' and target = '*';

-- name: open_speaks
select count(*) as rows
from speaks
where actor = '*' and type = '*';

-- name: orphans
select count(*) as rows
from resource r
where r.holder is not null
  and not exists (select 1 from job j where j.id = r.holder and j.state = 'running')
  and not exists (select 1 from quarantine q where q.id = r.holder and q.reason = 'uncertain');
