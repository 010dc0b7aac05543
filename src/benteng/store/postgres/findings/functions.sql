-- R-function: a verb is not what protects it: owned by the owner, security definer, a pinned search path with pg_temp named
-- and last (unnamed it is searched first), executable by its groups alone; a helper by nobody.
with ours as (
  select p.*, n.nspname, n.nspname || '.' || p.proname as name
  from pg_proc p
  join pg_namespace n on n.oid = p.pronamespace
  where n.nspname in (%(tables)s::text, %(verbs)s::text)
)
select f.name, 'belongs to ' || pg_get_userbyid(f.proowner)
from ours f
where pg_get_userbyid(f.proowner) <> %(owner)s::text
union all
select f.name, 'is not security definer'
from ours f
where f.nspname = %(verbs)s::text
  and not f.prosecdef
union all
select f.name, 'has no pinned search path'
from ours f
where (f.nspname = %(verbs)s::text or f.prosecdef)
  and not coalesce(f.proconfig, '{}') && array['search_path=pg_catalog, pg_temp', 'search_path=pg_catalog, benteng, pg_temp']
union all
select f.name, 'may be executed by ' || case a.grantee when 0 then 'everybody' else pg_get_userbyid(a.grantee) end
from ours f
cross join lateral aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a
where a.grantee <> f.proowner
  and not (f.nspname = %(verbs)s::text and a.grantee <> 0 and pg_get_userbyid(a.grantee) || ' ' || f.proname = any (%(rights)s::text[]))
order by 1, 2
