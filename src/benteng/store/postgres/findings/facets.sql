-- R-facets: a login is not exactly one service in exactly one facet. A member of a group without a row may be a login of
-- another ledger on this server: every verb of this one refuses it.
with member as (
  select r.rolname, r.rolcanlogin, pg_get_userbyid(m.roleid) as role, l.facet
  from pg_auth_members m
  join pg_roles r on r.oid = m.member
  left join benteng.login l on l.name = r.rolname
), service as (
  select m.rolname, m.rolcanlogin, m.facet, array_agg(m.role order by m.role) as roles
  from member m
  where not m.rolname = any (%(groups)s::text[])
  group by 1, 2, 3
  having array_agg(m.role)::text[] && %(groups)s::text[] or m.facet is not null
)
select s.rolname, 'is a member of more than one role: ' || array_to_string(s.roles, ', ')
from service s
where cardinality(s.roles) > 1
union all
select s.rolname, 'is no login: whoever is its member holds a facet unseen'
from service s
where not s.rolcanlogin
union all
select s.rolname, 'is a member of ' || array_to_string(s.roles, ', ') || ' and registered as ' || s.facet
from service s
where 'benteng_' || s.facet <> all (s.roles)
union all
select l.name, 'is registered as ' || l.facet || ' and does not exist: whoever makes a role of that name gets the facet'
from benteng.login l
where l.name not in (select r.rolname from pg_roles r)
order by 1, 2
