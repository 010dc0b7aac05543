-- R-owner: the owner is a login or more than an owner, something of the ledger is not the owner's, or somebody can become
-- the owner. Superusers are left out: nothing holds against them.
select r.rolname, 'can log in, or has a power beyond owning: the owner is to be nobody'
from pg_roles r
where r.rolname = %(owner)s::text
  and (r.rolcanlogin or r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls)
union all
select r.rolname, 'can become ' || %(owner)s::text || ', and with it change functions and tables'
from pg_roles r
join pg_roles o on o.rolname = %(owner)s::text
where pg_has_role(r.oid, o.oid, 'member')
  and r.oid <> o.oid
  and not r.rolsuper
union all
select n.nspname || '.' || c.relname, 'belongs to ' || pg_get_userbyid(c.relowner)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where n.nspname in (%(tables)s::text, %(verbs)s::text)
  and pg_get_userbyid(c.relowner) <> %(owner)s::text
union all
select n.nspname, 'belongs to ' || pg_get_userbyid(n.nspowner)
from pg_namespace n
where n.nspname in (%(tables)s::text, %(verbs)s::text)
  and pg_get_userbyid(n.nspowner) <> %(owner)s::text
order by 1, 2
