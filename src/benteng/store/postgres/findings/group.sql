-- R-group: a group is more than a set of verbs.
select r.rolname, 'can log in, or has a power of its own: a group is to be a set of verbs'
from pg_roles r
where r.rolname = any (%(groups)s::text[])
  and (r.rolcanlogin or r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls)
union all
select r.rolname, 'is a member of ' || pg_get_userbyid(m.roleid)
from pg_auth_members m
join pg_roles r on r.oid = m.member
where r.rolname = any (%(groups)s::text[])
order by 1, 2
