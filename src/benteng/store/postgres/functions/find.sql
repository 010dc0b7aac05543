-- find: a page of jobs, newest first.
--
-- Promise   never a payload; a page costs no more than the rows it walks. Empty parameters do not filter. Reads only.
create or replace function benteng_v1.find(
  p_states text[], p_type text, p_origin text, p_actor text, p_request_id text, p_resource text, p_reason text,
  p_before bigint, p_limit bigint)
returns table (
  seq bigint, job_id uuid, type text, tier text, state text, priority integer, attempts integer, origin text, actor text,
  request_id text, admitted_at bigint, available_at bigint, reason text, error text, summary text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
  v_me benteng.login := benteng.me('operator');
begin
  return query
  select
    o.seq, o.job_id, o.type, o.tier, coalesce(j.state, case when q.id is not null then 'quarantined' end, o.ended),
    o.priority::integer, coalesce(j.attempts, q.attempts, o.attempts), o.origin, o.actor, o.request_id,
    benteng.instant(o.admitted_at), coalesce(benteng.instant(j.due_at), 0), q.reason,
    coalesce(j.last_error, q.error, o.error), o.summary
  from benteng.operation o
  left join benteng.job j on j.id = o.job_id
  left join benteng.quarantine q on q.id = o.job_id
  where o.seq < p_before
    and (p_states = '{}' or coalesce(j.state, case when q.id is not null then 'quarantined' end, o.ended) = any (p_states))
    and (p_type = '' or o.type = p_type)
    and (p_origin = '' or o.origin = p_origin)
    and (p_actor = '' or o.actor = p_actor)
    and (p_request_id = '' or o.request_id = p_request_id)
    and (p_resource = '' or o.resources @> array[p_resource] collate "C")
    and (p_reason = '' or q.reason = p_reason)
  order by o.seq desc
  limit least(p_limit, 1001);
end $$;
