-- complete_jobs: jobs have done what they are for. This is the only way to that end; for all others see move_jobs.
--
-- Promise   each leaves `job`, its operation keeps the result and says until when, and there is one audit record for each, in the
--           order of the arrays. What comes due together is one entry of `retention`. A result that is too large is not kept.
-- Locks     the caller holds the job rows since an earlier statement: nobody can have moved them from p_rows.
-- Order     operations; resources are the caller's. One statement: a job row is read once, where it goes.
create or replace function benteng.complete_jobs(
  p_rows tid[], p_results bytea[], p_used text[], p_now timestamptz) returns void
language plpgsql
as $$
begin
  with gone as (
    delete from benteng.job j
    using unnest(p_rows, p_results, p_used) with ordinality d (at, result, used, ord), benteng.job_type t
    where j.ctid = d.at
      and t.name = j.type
    returning
      j.id, j.seq, j.type, j.policy_sha256, j.attempts, j.crashes, j.starts, j.fence, j.token, j.origin, j.actor, j.request_id,
      j.operation_key, j.payload_sha256, j.summary, j.resources, j.worker, d.ord, d.used,
      case
        when octet_length(d.result) > t.result_bytes_max
          then '{"$error":"the result was larger than result_bytes_max"}'::bytea
        else d.result
      end as result,
      case when d.result is not null then p_now + make_interval(secs => t.result_keep_seconds) end as result_until,
      p_now + make_interval(secs => t.operation_keep_seconds) as keep_until
  ), noted as (
    insert into benteng.audit (
      at, event, job_id, type, policy_sha256, state_from, state_to, attempt, fence, origin, actor, request_id,
      operation_key, payload_sha256, summary, resources, worker, detail)
    select
      p_now, 'completed', g.id, g.type, g.policy_sha256, 'running', 'completed', g.attempts, g.fence, g.origin, g.actor,
      g.request_id, g.operation_key, g.payload_sha256, g.summary, g.resources, coalesce(g.worker, ''), coalesce(g.used, '')
    from gone g
    order by g.ord
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
        result_until = g.result_until,
        keep_until = g.keep_until,
        finished_at = p_now
    from gone g
    where o.seq = g.seq
  )
  insert into benteng.retention (until, seqs)
  select d.until, array_agg(g.seq order by g.seq)
  from gone g
  cross join lateral (select least(g.result_until, g.keep_until)) d (until)
  where d.until is not null
  group by d.until;
end $$;
