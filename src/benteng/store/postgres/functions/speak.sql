-- allow_speaking: let a producer's login enqueue a type for an actor. No facet has it: it is for the owner's members, as
-- migrations are, because who may ask for what in production is decided by nobody whom a service could become.
--
-- Promise   the row and its audit record in one transaction; what is allowed already is not recorded again. '*' is any type or
--           actor, '' a job that names no actor.
create or replace function benteng.allow_speaking(p_login text, p_actor text, p_type text, p_reason text) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_reason text := benteng.needed(p_reason);
begin
  if not exists (select from benteng.login l where l.name = p_login and l.facet = 'producer') then
    perform benteng.break_rule('R-speaks', 'there is no producer''s login of that name', 'make it: benteng roles create');
  end if;
  insert into benteng.speaks (origin, actor, type)
  values (p_login, p_actor, p_type)
  on conflict do nothing;
  if not found then
    return false;
  end if;
  perform benteng.say(benteng.now(), 'policy_applied', v_reason, 'may be enqueued by ' || p_login, p_type, p_actor);
  return true;
end $$;
