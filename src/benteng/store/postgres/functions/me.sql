-- me: the caller's login row, or an error.
--
-- Promise   reads session_user, which neither `set role` nor a security definer function changes. Any isolation but read
--           committed is refused: the verbs need a fresh snapshot for each statement.
create or replace function benteng.me(variadic p_facets text[]) returns benteng.login
language plpgsql stable
as $$
declare
  v_me benteng.login;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'the verbs need the isolation level read committed' using errcode = 'invalid_transaction_state';
  end if;
  select * into v_me
  from benteng.login l
  where l.name = session_user
    and l.facet = any (p_facets);
  if not found then
    raise exception 'this login is not registered as %', array_to_string(p_facets, ' or ')
      using errcode = 'insufficient_privilege';
  end if;
  return v_me;
end $$;

-- protocol: what this ledger speaks, and as whom it knows the caller. Every facet may ask.
create or replace function benteng_v1.protocol()
returns table (oldest integer, newest integer, login text, facet text, pool text, environment text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select 1, 1, l.name, l.facet, l.pool, i.environment
  from benteng.installation i
  left join benteng.login l on l.name = session_user
$$;
