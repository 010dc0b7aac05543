-- R-table: somebody has a right on a table, a view, a column or a sequence. Who can become the owner is R-owner's.
-- MAINTAIN (17) lets its holder lock a table against every verb; older servers do not know the word, so the list is read as text.
select r.rolname, 'has rights on ' || string_agg(n.nspname || '.' || c.relname, ', ' order by c.relname)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join pg_roles r
join pg_roles o on o.rolname = %(owner)s::text
where n.nspname in (%(tables)s::text, %(verbs)s::text)
  and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
  and not r.rolsuper
  and not pg_has_role(r.oid, o.oid, 'member')
  and r.rolname not like 'pg\_%%'
  and case
    when c.relkind = 'S' then has_sequence_privilege(r.oid, c.oid, 'usage, select, update')
    else has_table_privilege(r.oid, c.oid, 'select, insert, update, delete, truncate, references, trigger')
      or has_any_column_privilege(r.oid, c.oid, 'select, insert, update, references')
      or exists (
        select from aclexplode(c.relacl) a
        where a.privilege_type = 'MAINTAIN'
          and case when a.grantee = 0 then true else pg_has_role(r.oid, a.grantee, 'usage') end)
      or exists (select from pg_roles m where m.rolname = 'pg_maintain' and pg_has_role(r.oid, m.oid, 'usage'))
  end
group by 1
order by 1
