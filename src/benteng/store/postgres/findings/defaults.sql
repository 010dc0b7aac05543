-- R-default: a function that the owner makes next would be everybody's.
select o.rolname, 'gives everybody execute on each new function'
from pg_roles o
where o.rolname = %(owner)s::text
  and not exists (
    select from pg_default_acl d
    where d.defaclrole = o.oid
      and d.defaclnamespace = 0
      and d.defaclobjtype = 'f'
      and not exists (select from aclexplode(d.defaclacl) a where a.grantee = 0))
order by 1
