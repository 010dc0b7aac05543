-- grants.sql: which group may call which verb. Made from the protocols of store/contract.py; nothing else is granted.
--
-- Promise   afterwards each group may call the verbs of its facet and no other, and has no right on a table, a sequence or a
--           helper. What is granted beyond that is taken back, in the same statement.
-- Run as    {owner} (or a superuser), after each migration. May be repeated; verbs that are not there yet are left out.
do $$
declare
  v_everybody constant text := 'public, {groups}';
  v_right record;
begin
  for v_right in
    select n.nspname
    from pg_namespace n
    where n.nspname in ('{tables}', '{verbs}')
  loop
    execute format('revoke all on schema %I from %s', v_right.nspname, v_everybody);
    execute format('revoke all on all tables in schema %I from %s', v_right.nspname, v_everybody);
    execute format('revoke all on all sequences in schema %I from %s', v_right.nspname, v_everybody);
    execute format('revoke all on all routines in schema %I from %s', v_right.nspname, v_everybody);
  end loop;
  if to_regnamespace('{verbs}') is not null then
    grant usage on schema {verbs} to {groups};
  end if;
  for v_right in
    select p.oid::regprocedure as routine, g.role
    from (values
      {rights}
    ) as g (role, verb)
    join pg_proc p on p.proname = g.verb and p.pronamespace = to_regnamespace('{verbs}')
    order by 1, 2
  loop
    execute format('grant execute on function %s to %I', v_right.routine, v_right.role);
  end loop;
end $$;
