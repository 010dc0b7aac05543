-- R-superuser: a service has a power against which no wall holds.
with service as (
  select distinct r.*
  from pg_roles r
  left join pg_auth_members m on m.member = r.oid
  where pg_get_userbyid(m.roleid) = any (%(groups)s::text[])
     or r.rolname in (select l.name from benteng.login l)
)
select s.rolname, 'is a superuser: no right and no function holds against it'
from service s
where s.rolsuper
union all
select s.rolname, 'may make roles or databases, replicate, or pass row security'
from service s
where not s.rolsuper
  and (s.rolcreaterole or s.rolcreatedb or s.rolreplication or s.rolbypassrls)
order by 1, 2
