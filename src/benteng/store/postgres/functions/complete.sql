-- complete_jobs: jobs have done what they are for. This is the only way to that end; for all others see move_jobs.
--
-- Promise   compare-and-set on (id, fence, token, running, own pool) for each; returns the positions of those that were completed.
--           Each leaves `job`, its operation keeps the result and says until when, and there is one audit record for each. What
--           ended together is one entry of `retention`, at the earliest time. A result that is too large is not kept.
--           p_held: the caller holds the job rows and their resources; without it, a job that has resources is left alone.
-- Locks     jobs by id, then operations; resources are the caller's.
-- Order     one statement: a job row is read once, where it goes. The clock is read when all of them are gone: after the last wait.
create or replace function benteng.complete_jobs(
  p_me benteng.login, p_ids uuid[], p_fences bigint[], p_tokens text[], p_results bytea[], p_used text[], p_held boolean)
returns bigint[]
language plpgsql
as $$
declare
  v_ords bigint[];
begin
  with gone as (
    delete from benteng.job j
    using (
      select d.id, d.fence, d.token, d.result, d.used, d.ord
      from unnest(p_ids, p_fences, p_tokens, p_results, p_used) with ordinality d (id, fence, token, result, used, ord)
      order by d.id, d.ord) a, benteng.job_type t
    where j.id = a.id
      and j.pool = p_me.pool
      and j.state || '' = 'running'                          -- keeps the planner off job_running: it would walk it for each job
      and j.fence = a.fence
      and j.token = a.token
      and (p_held or j.resources = '{}')
      and t.name = j.type
    returning
      j.id, j.seq, j.type, j.policy_sha256, j.attempts, j.crashes, j.starts, j.fence, j.token, j.origin, j.actor, j.request_id,
      j.operation_key, j.payload_sha256, j.summary, j.resources, j.worker, a.ord, a.used,
      case
        when octet_length(a.result) > t.result_bytes_max
          then '{"$error":"the result was larger than result_bytes_max"}'::bytea
        else a.result
      end as result,
      case when a.result is not null then make_interval(secs => t.result_keep_seconds) end as result_keep,
      make_interval(secs => t.operation_keep_seconds) as keep
  ), ended as materialized (
    select
      benteng.now() as now, array_agg(g.ord) as ords, min(least(g.result_keep, g.keep)) as keep,
      array_agg(g.seq) filter (where coalesce(g.result_keep, g.keep) is not null) as seqs
    from gone g
  ), noted as (
    insert into benteng.audit (
      at, event, job_id, type, policy_sha256, state_from, state_to, attempt, fence, origin, actor, request_id,
      operation_key, payload_sha256, summary, resources, worker, login, detail)
    select
      e.now, 'completed', g.id, g.type, g.policy_sha256, 'running', 'completed', g.attempts, g.fence, g.origin, g.actor,
      g.request_id, g.operation_key, g.payload_sha256, g.summary, g.resources, coalesce(g.worker, ''), p_me.name,
      coalesce(g.used, '')
    from ended e
    cross join gone g
  ), recorded as (
    update benteng.operation o
    set state = 'completed',
        ended = 'completed',
        attempts = g.attempts,
        crashes = g.crashes,
        starts = g.starts,
        fence = g.fence,
        token = g.token,
        error = '',
        rule = '',
        result = g.result,
        result_until = g.now + g.result_keep,
        keep_until = g.now + g.keep,
        finished_at = g.now
    from (                                                   -- what a join of two sets would copy for each row: all of both
      select e.now, g.seq, g.attempts, g.crashes, g.starts, g.fence, g.token, g.result, g.result_keep, g.keep
      from ended e
      cross join gone g
      offset 0) g
    where o.seq = g.seq
  ), dated as (
    insert into benteng.retention (until, seqs)
    select e.now + e.keep, e.seqs
    from ended e
    where e.keep is not null
  )
  select e.ords into v_ords from ended e;
  return v_ords;
end $$;
