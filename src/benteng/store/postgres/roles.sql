-- roles.sql: the owner, one group a facet, and what a database gives away by default.
--
-- Promise   everything of the ledger belongs to a role that cannot log in. A group may do nothing yet (see grants.sql).
--           In this database nobody else may connect, make temporary tables, or use the schema public.
-- Run as    a superuser in the ledger's database, before the first migration. May be repeated.
do $$
declare
  v_role text;
begin
  foreach v_role in array array[{roles}] loop
    begin
      execute format('create role %I nologin', v_role);
    exception when duplicate_object or unique_violation then
      null;                                                  -- what it is then, `benteng roles verify` says
    end;
  end loop;
  execute format('revoke all on database %I from public', current_database());
  execute format('grant connect on database %I to {groups}', current_database());
  execute format('grant create on database %I to {owner}', current_database());
end $$;

revoke all on schema public from public;

-- Large objects are everybody's by default: a place to fill the disk beside every limit of the verbs.
do $$
begin
  revoke execute on function lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) from public;
exception when insufficient_privilege then
  raise notice 'large objects stay everybody''s: only a superuser can take them back';
end $$;

-- PostgreSQL lets everybody execute each new function. Only this global form takes that back; "in schema ..." is accepted
-- and does nothing.
alter default privileges for role {owner} revoke execute on functions from public;
