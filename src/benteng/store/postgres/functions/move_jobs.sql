-- hold_resources, move_jobs: take jobs out of `job`, or put them back in it. All verbs that end or return a job come here.
--
-- Promise   completed: the operation keeps the result. Quarantined: set apart with its context; the key freed when nothing can
--           have happened. Cancelled: the key freed when it never started. Else back in `job`, the lease gone. One audit
--           record a move. What a running job held is free, or closed when it is uncertain and its type closes.
--           Returns the keys to wake: what was freed, and the batons of woken jobs.
-- Locks     the caller holds the job rows, and after `hold_resources` the resource rows.
-- Order     jobs by id, then resources by key, then operations. Wake in a statement after this one.
create or replace function benteng.hold_resources(p_ids uuid[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_keys text[];
begin
  select array_agg(distinct k.key)
  into v_keys
  from unnest(p_ids) g (id)
  cross join lateral (select x.* from benteng.job x where x.id = g.id offset 0) j
  cross join lateral unnest(
    case
      when j.state = 'running' then j.resources
      when j.state = 'ready' and j.waits_for is not null then array[j.waits_for]
    end) k (key);
  if v_keys is not null then
    perform 1
    from benteng.resource r
    where r.key = any (v_keys)
    order by r.key
    for update;
  end if;
end $$;

create or replace function benteng.move_jobs(p_moves benteng.move[], p_now timestamptz, p_used text[] default null) returns text[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_keys text[];
begin
  perform benteng.note(p_moves, p_now, p_used);
  with moved as materialized (
    select
      j.id, j.state as state_from, j.waits_for, j.resources, j.fence, j.token,
      m.state_to, m.reason, coalesce(m.rule, '') as rule, coalesce(m.error, '') as error,
      coalesce(m.attempts, j.attempts) as attempts, coalesce(m.crashes, j.crashes) as crashes,
      coalesce(m.handbacks, j.handbacks) as handbacks, coalesce(m.snoozes, j.snoozes) as snoozes,
      coalesce(m.starts, j.starts) as starts, coalesce(m.due_at, j.due_at) as due_at,
      coalesce(m.alone, j.alone) as alone, m.result, t.result_keep_seconds, t.operation_keep_seconds,
      m.state_to in ('completed', 'cancelled', 'quarantined') as leaves,
      coalesce(m.state_to = 'quarantined' and m.reason = 'uncertain' and t.closes, false) as closes
    from unnest(p_moves) m
    cross join lateral (select x.* from benteng.job x where x.id = m.id offset 0) j
    join benteng.job_type t on t.name = j.type
  ), back as (
    update benteng.job j
    set state = m.state_to,
        due_at = m.due_at,
        attempts = m.attempts,
        crashes = m.crashes,
        handbacks = m.handbacks,
        snoozes = m.snoozes,
        starts = m.starts,
        alone = m.alone,
        last_error = m.error,
        rule = m.rule,
        lease_until = null,
        pool = null,
        waits_for = null,
        woken_at = null
    from moved m
    where j.id = m.id
      and not m.leaves
  ), gone as (
    delete from benteng.job j
    using moved m
    where j.id = m.id
      and m.leaves
    returning j.*
  ), apart as (
    insert into benteng.quarantine (
      id, seq, reason, rule, error, at, type, tier, priority, due_at, available_at, expires_at, attempts, crashes, handbacks,
      snoozes, starts, generation, fence, worker, alone, origin, actor, request_id, payload, payload_sha256, operation_key,
      envelope, policy_sha256, artifacts, targets, resources, parent, summary, progress, admitted_at)
    select
      g.id, g.seq, m.reason, m.rule, m.error, p_now, g.type, g.tier, g.priority, g.due_at, g.available_at, g.expires_at,
      m.attempts, m.crashes, m.handbacks, m.snoozes, m.starts, g.generation, g.fence, g.worker, m.alone, g.origin, g.actor,
      g.request_id, g.payload, g.payload_sha256, g.operation_key, g.envelope, g.policy_sha256, g.artifacts, g.targets,
      g.resources, g.parent, g.summary, g.progress, g.admitted_at
    from gone g
    join moved m on m.id = g.id
    where m.state_to = 'quarantined'
  ), kept as (
    select
      m.*,
      case                                                   -- the table of lifecycle.operation_after
        when m.state_to = 'completed' then 'completed'
        when m.state_to = 'cancelled' then case when m.starts > 0 then 'kept' else 'freed' end
        when m.reason = 'uncertain' then 'uncertain'
        when m.starts > 0 then 'kept'
        when m.reason in ('refused', 'expired') then 'freed'
        else 'reserved'
      end as operation_to
    from moved m
    where m.leaves
  ), recorded as (
    update benteng.operation o
    set state = k.operation_to,
        freed = k.operation_to = 'freed',
        ended = nullif(k.state_to, 'quarantined'),
        attempts = k.attempts,
        crashes = k.crashes,
        starts = k.starts,
        fence = k.fence,
        token = case when k.state_from = 'running' then k.token end,
        error = case when k.state_to = 'cancelled' then coalesce(k.reason, '') else k.error end,
        rule = k.rule,
        result = k.result,
        result_until = case when k.result is not null then p_now + make_interval(secs => k.result_keep_seconds) end,
        keep_until = case when k.state_to = 'completed' then p_now + make_interval(secs => k.operation_keep_seconds) end,
        finished_at = case when k.state_to <> 'quarantined' then p_now end
    from kept k
    where o.job_id = k.id
  ), freed as (
    update benteng.resource r
    set holder = case when m.closes then r.holder end,
        closed = m.closes
    from moved m
    cross join lateral unnest(m.resources) k (key)
    where r.key = k.key
      and r.holder = m.id
      and m.state_from = 'running'
    returning r.key, r.holder
  )
  select array_agg(distinct f.key)
  into v_keys
  from (
    select f.key from freed f where f.holder is null
    union all
    select m.waits_for from moved m where m.state_from = 'ready' and m.waits_for is not null) f;
  return v_keys;
end $$;
