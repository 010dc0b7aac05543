-- note, say: write the audit.
--
-- Promise   one record for each thing that happened, in the transaction in which it happened. `note` tells what becomes of
--           jobs that are still in `job`, as they are found there; call it before they are moved. `say` tells the rest.
--           p_here: where their rows are, in the order of the moves. p_used: what each attempt did with the network, in the same
--           order; it begins the record's detail.
-- Locks     the caller holds the job rows, so that each number is drawn after the last change of its job has committed.
create or replace function benteng.note(
  p_moves benteng.move[], p_now timestamptz, p_here tid[], p_used text[] default null) returns void
language plpgsql
as $$
begin
  insert into benteng.audit (
    at, event, job_id, type, policy_sha256, state_from, state_to, attempt, fence, origin, actor, request_id,
    operation_key, payload_sha256, summary, resources, worker, rule, reason, detail)
  select
    p_now, m.event, j.id, j.type, j.policy_sha256,
    case when m.state_to is null then '' else j.state end,
    coalesce(m.state_to, ''), j.attempts, j.fence, j.origin, j.actor, j.request_id,
    j.operation_key, j.payload_sha256, j.summary, j.resources,
    case when j.state = 'running' then coalesce(j.worker, '') else '' end,
    coalesce(m.rule, ''), coalesce(m.reason, ''),
    concat_ws('; ', p_used[m.ordinality::integer], case when m.state_to is distinct from 'cancelled' then nullif(m.error, '') end)
  from unnest(p_moves) with ordinality m
  cross join lateral (select x.* from benteng.job x where x.ctid = p_here[m.ordinality] offset 0) j
  order by m.ordinality;
end $$;

create or replace function benteng.say(
  p_now timestamptz, p_event text, p_reason text default '', p_detail text default '', p_type text default '',
  p_actor text default '', p_policy text default '', p_worker text default '') returns void
language sql
as $$
  insert into benteng.audit (at, event, reason, detail, type, actor, policy_sha256, worker)
  values (p_now, p_event, p_reason, p_detail, p_type, p_actor, p_policy, p_worker)
$$;
