-- facts: what the guards want to know about one job, at the gate and after the claim alike.
--
-- Promise   read in the deciding transaction. `*` matches any whole value; it is no pattern. Reads only. p_switched: false when the
--           caller has seen, in the same transaction and under the lock that holds it so, that no switch is thrown.
create or replace function benteng.facts(
  p_type text, p_actor text, p_origin text, p_artifacts text[], p_targets text[], p_switched boolean default true)
returns benteng.facts
language plpgsql stable
as $$
declare
  v_facts benteng.facts;
  v_pool  text;
begin
  select t.pool, t.sha256 into v_pool, v_facts.policy_sha256 from benteng.job_type t where t.name = p_type;
  if p_switched then
    select c.scope, c.name, c.mode, c.reason
    into v_facts.scope, v_facts.name, v_facts.mode, v_facts.reason
    from benteng.control c
    where c.mode <> 'open'
      and ((c.scope = 'type' and c.name = p_type)
        or (c.scope = 'pool' and c.name = v_pool)
        or (c.scope = 'origin' and c.name = p_origin))
    order by array_position(array['halt', 'divert', 'hold'], c.mode), c.scope
    limit 1;
  end if;
  v_facts.speaks := exists (select from benteng.speech(p_origin, p_actor, p_type));
  if p_targets <> '{}' then
    select array_agg(g.target order by g.ord)
    into v_facts.denied
    from unnest(p_targets) with ordinality g (target, ord)
    where not exists (
      select from benteng.access a
      where a.actor in (p_actor, '*')
        and a.type in (p_type, '*')
        and a.target in (g.target, '*'));
  end if;
  if p_artifacts <> '{}' then
    select array_agg(f.part order by a.id, f.ord)
    into v_facts.artifacts
    from benteng.artifact a
    cross join lateral unnest(array[a.id, a.sha256, a.state, coalesce(a.expires_at::text, '')]) with ordinality f (part, ord)
    where a.id = any (p_artifacts);
  end if;
  return v_facts;
end $$;

-- speech: the rows that let an origin enqueue a type for an actor. A set, so that it is planned once, with the query around it.
create or replace function benteng.speech(p_origin text, p_actor text, p_type text) returns setof benteng.speaks
language sql stable
as $$
  select s.*
  from benteng.speaks s
  where s.origin in (p_origin, '*')
    and s.actor in (p_actor, '*')
    and s.type in (p_type, '*')
$$;
