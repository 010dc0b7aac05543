-- admit: let judged jobs in, and record what the gate refused.
--
-- Promise   see enter.sql. The origin is the authenticated login, never what a job says. One receipt a job, in order.
-- Nothing   of a call with nothing in it all runs, on nothing: the plans stay with the session, and the first job finds them.
-- Locks     control in row share mode: a switch that was committed before this verb began is seen. Then as enter.sql.
create or replace function benteng_v1.admit(p_jobs benteng_v1.entrance[], p_refusals benteng_v1.refusal[])
returns table (ord integer, disposal text, job_id uuid, state text, rule text, reason text, result bytea)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan  -- a plan for each call's own array would be made anew in each call: 1 to 3 ms
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  v_me  benteng.login := benteng.me('producer');
  v_now timestamptz;
  v_job benteng_v1.entrance;
begin
  if cardinality(p_jobs) > 1000 or cardinality(p_refusals) > 1000 then
    raise exception 'at most 1000 in one call' using errcode = 'program_limit_exceeded';
  end if;
  lock table benteng.control in row share mode;
  v_now := benteng.now();
  v_job := p_jobs[1];
  if (cardinality(p_jobs) = 1 or cardinality(p_jobs) + cardinality(p_refusals) = 0)
    and benteng.enter_one(v_job, v_me, v_now)
  then
    ord := 1;
    disposal := 'admitted';
    job_id := v_job.id;
    state := 'ready';
    rule := '';
    reason := '';
    return next;
  elsif cardinality(p_jobs) > 0 or cardinality(p_refusals) = 0 then
    return query
    select e.*
    from benteng.enter(p_jobs, array[v_me.name], null, v_now) e;
  end if;
  if cardinality(p_refusals) > 0 then
    perform benteng.refuse(
      array_agg((
        r.type, v_me.name, r.actor, r.request_id, r.rule, r.reason, r.payload_sha256, null, null, 0,
        r.detail)::benteng_v1.refusal order by r.ordinality),
      v_now)
    from unnest(p_refusals) with ordinality r;
  end if;
end $$;
