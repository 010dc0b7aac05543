-- R-body: the functions as they are installed, to be compared with the files.
select n.nspname || '.' || p.proname, p.prosrc
from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
where n.nspname in (%(tables)s::text, %(verbs)s::text)
order by 1, 2
