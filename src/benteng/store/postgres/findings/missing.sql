-- R-missing: a role or a right that the table has is not there. What should work will be refused.
select g.role, 'does not exist'
from unnest(%(groups)s::text[] || %(owner)s::text) g (role)
where g.role not in (select r.rolname from pg_roles r)
union all
select split_part(g.pair, ' ', 1), 'may not call ' || split_part(g.pair, ' ', 2)
from unnest(%(rights)s::text[]) g (pair)
join pg_proc p on p.proname = split_part(g.pair, ' ', 2) and p.pronamespace = to_regnamespace(%(verbs)s::text)
join pg_roles r on r.rolname = split_part(g.pair, ' ', 1)
where not has_function_privilege(r.oid, p.oid, 'execute')
   or not has_schema_privilege(r.oid, p.pronamespace, 'usage')
union all
select l.name, 'is registered as ' || l.facet || ' and no member of its group'
from benteng.login l
join pg_roles r on r.rolname = l.name
where not exists (
  select from pg_auth_members m
  where m.member = r.oid and pg_get_userbyid(m.roleid) = 'benteng_' || l.facet)
order by 1, 2
