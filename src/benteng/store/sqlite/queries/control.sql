-- control.sql: the switches.
--
-- Promise   a switch that was committed is seen by every verb that begins later: there is one writer at a time, so after
--           `tighten` returns no claim starts what it forbids.

-- name: closed
select scope, name, mode, reason
from control
where mode <> 'open'
order by scope, name;

-- name: one
select scope, name, mode, reason
from control
where scope = :scope
  and name = :name;

-- name: write
insert into control (scope, name, mode, reason, at)
values (:scope, :name, :mode, :reason, :now)
on conflict (scope, name) do update
set mode = excluded.mode, reason = excluded.reason, at = excluded.at;
