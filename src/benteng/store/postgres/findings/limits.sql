-- R-limits: a service has no bound on its connections, or lacks a timeout that guards against its mistakes.
select r.rolname, 'has no connection limit'
from benteng.login l
join pg_roles r on r.rolname = l.name
where r.rolconnlimit < 0
union all
select r.rolname, 'has no ' || t.setting
from benteng.login l
join pg_roles r on r.rolname = l.name
cross join unnest(array['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout']) t (setting)
where not exists (
  select from unnest(r.rolconfig) c
  where c like t.setting || '=%%' and split_part(c, '=', 2) not in ('', '0'))
order by 1, 2
