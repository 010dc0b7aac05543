-- R-trigger: what keeps rows as they are was switched off.
select n.nspname || '.' || c.relname, 'its trigger ' || t.tgname || ' is switched off'
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %(tables)s::text
  and t.tgenabled in ('D', 'R')
order by 1, 2
