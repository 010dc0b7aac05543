-- evidence: fresh facts for each question, in order.
--
-- Promise   reads only. A producer hears of an operation only when its own job holds it. For an operator the origin is that of
--           the job which has the operation: a replay is judged as its admission was.
create or replace function benteng_v1.evidence(p_questions benteng_v1.question[])
returns table (
  ord integer, now bigint, scope text, name text, mode text, reason text, policy_sha256 text, speaks boolean,
  denied text[], artifacts text[], job_id uuid, origin text, payload_sha256 text, operation text, epoch integer)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_me  benteng.login := benteng.me('producer', 'operator');
  v_now bigint := benteng.instant(benteng.now());
begin
  if cardinality(p_questions) > 1000 then
    raise exception 'at most 1000 in one call' using errcode = 'program_limit_exceeded';
  end if;
  return query
  select
    q.ordinality::integer, v_now, f.scope, f.name, f.mode, f.reason, f.policy_sha256, f.speaks, f.denied, f.artifacts,
    o.job_id, o.origin, encode(o.payload_sha256, 'hex'), o.state::text, o.epoch
  from unnest(p_questions) with ordinality q
  -- offset 0: computed once for each question. Else it is a filter over all operations, for as long as nobody analysed them.
  cross join lateral (
    select
      case when benteng.is_digest(q.operation_key) then decode(q.operation_key, 'hex') end as key,
      split_part(q.type, '@', 1) as name
    offset 0) k
  left join benteng.operation o
    on o.key = k.key
    and o.name = k.name
    and not o.freed
    and (o.origin = v_me.name or v_me.facet = 'operator')
  cross join lateral benteng.facts(
    q.type, q.actor, case when v_me.facet = 'operator' then coalesce(o.origin, v_me.name) else v_me.name end,
    q.artifacts, q.targets) f
  order by q.ordinality;
end $$;
