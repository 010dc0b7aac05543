-- R-schema: somebody may use the tables' schema, or make objects in one of ours or, being anybody, in public or as temporary
-- ones: what shadows a name is half of an attack.
select
  n.nspname,
  lower(a.privilege_type) || ' for ' || case a.grantee when 0 then 'everybody' else pg_get_userbyid(a.grantee) end
from pg_namespace n
cross join lateral aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
where n.nspname in (%(tables)s::text, %(verbs)s::text)
  and a.grantee <> n.nspowner
  and not (n.nspname = %(verbs)s::text and a.privilege_type = 'USAGE' and pg_get_userbyid(a.grantee) = any (%(groups)s::text[]))
union all
select n.nspname, 'create for everybody'
from pg_namespace n
cross join lateral aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
where n.nspname = 'public'
  and a.grantee = 0
  and a.privilege_type = 'CREATE'
union all
select 'database ' || d.datname, lower(a.privilege_type) || ' for everybody'
from pg_database d
cross join lateral aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
where d.datname = current_database()
  and a.grantee = 0
union all
select 'function ' || p.proname, 'execute for everybody: large objects can fill the disk'
from pg_proc p
where p.pronamespace = 'pg_catalog'::regnamespace
  and p.proname in ('lo_creat', 'lo_create', 'lo_from_bytea')
  and exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0)
order by 1, 2
