-- resource.sql: who holds what, and who waits for it.
--
-- Promise   one holder a key, all or none; a release wakes the next waiter that may start, so that no free key has only
--           sleepers. Rows are never deleted, and the fence in them never goes back.
-- Locks     inside the verb's immediate transaction.
-- Order     a waiter is looked for after its key was freed.

-- name: ensure
insert into resource (key)
values (:key)
on conflict (key) do nothing;

-- name: busy
select key
from resource
where key in (select value from json_each(:keys))
  and holder is not null
order by key
limit 1;

-- name: take
update resource
set holder = :job_id, fence = :fence
where key in (select value from json_each(:keys))
  and holder is null
  and fence < :fence;

-- name: release
update resource
set holder = null
where holder in (select value from json_each(:job_ids))
  and not closed
returning key;

-- name: close
update resource
set closed = 1
where holder = :job_id
  and not closed;

-- name: open
update resource
set holder = null, closed = 0
where holder = :job_id
returning key;

-- name: waiter
select *
from job
where waits_for = :key
  and state = 'blocked'
  and type not in (select value from json_each(:halted_types))
  and origin not in (select value from json_each(:halted_origins))
  and not exists (select 1 from resource where key = :key and holder is not null)
order by priority, due_at, seq
limit 1;

-- name: wake
update job
set state = 'ready', woken_at = :now
where seq = :seq
  and state = 'blocked';

-- name: park
update job
set state = 'blocked', waits_for = :key, woken_at = null
where seq = :seq
  and state = 'ready';

-- name: sleeping
-- Keys that are free while somebody waits and no fresh, startable job carries their baton. Skip-scan over the keys.
with recursive waited (key) as (
  select min(waits_for) from job where waits_for is not null
  union all
  select (select min(waits_for) from job where waits_for > waited.key) from waited where waited.key is not null
)
select key
from waited
where key is not null
  and not exists (select 1 from resource r where r.key = waited.key and r.holder is not null)
  and exists (
    select 1 from job s
    where s.waits_for = waited.key
      and s.state = 'blocked'
      and s.type not in (select value from json_each(:halted_types))
      and s.origin not in (select value from json_each(:halted_origins)))
  and not exists (
    select 1 from job b
    where b.waits_for = waited.key
      and b.state = 'ready'
      and b.woken_at > :stale
      and b.type not in (select value from json_each(:halted_types))
      and b.origin not in (select value from json_each(:halted_origins)))
limit :limit;

-- name: of_job
select r.key, coalesce(r.holder, '') as holder, r.fence, r.closed,
       (select count(*) from job w where w.waits_for = r.key and w.state = 'blocked') as waiting
from resource r
where r.key in (select value from json_each(:keys))
order by r.key;
