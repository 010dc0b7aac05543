-- hold_resources, let_go, move_jobs: take jobs out of `job`, or put them back in it. All verbs that end or return a job come
-- here, but for those that complete: see complete.sql.
--
-- Promise   quarantined: set apart with its context; the key freed when nothing can have happened. Cancelled: the key freed when
--           it never started. Else back in `job`, the lease gone. One audit record a move. What a running job held is free, or
--           closed when it is uncertain and its type closes. `hold_resources` returns the keys that it holds, `let_go` and
--           `move_jobs` those to wake: what was freed, and the batons of woken jobs. p_holds: false when the caller has seen
--           that none of the jobs has a resource or a baton: nobody looks for them then. p_here: where their rows are, in the order
--           of the moves, when the caller knows.
-- Locks     the caller holds the job rows, and after `hold_resources` the resource rows.
-- Order     jobs by id, then resources by key, then operations. Wake in a statement after this one.
create or replace function benteng.hold_resources(p_ids uuid[]) returns text[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_keys text[];
begin
  select array_agg(distinct k.key)
  into v_keys
  from unnest(p_ids) g (id)
  cross join lateral benteng.newest(g.id) j
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
  return v_keys;
end $$;

create or replace function benteng.let_go(p_keys text[], p_holders uuid[]) returns text[]
language plpgsql
as $$
declare
  v_keys text[];
begin
  if p_keys is null then
    return null;
  end if;
  with free as (
    update benteng.resource r
    set holder = null
    where r.key = any (p_keys)
      and r.holder = any (p_holders)
    returning r.key)
  select array_agg(f.key) into v_keys from free f;
  return v_keys;
end $$;

create or replace function benteng.move_jobs(
  p_moves benteng.move[], p_now timestamptz, p_used text[] default null, p_holds boolean default true,
  p_here tid[] default null) returns text[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_keys  text[];
  v_apart boolean;
  v_leave boolean;
  v_stay  boolean;
begin
  select
    bool_or(m.state_to = 'quarantined'), bool_or(m.state_to in ('cancelled', 'quarantined')),
    bool_or(m.state_to not in ('cancelled', 'quarantined'))
  into v_apart, v_leave, v_stay
  from unnest(p_moves) m;
  if v_leave is null then
    return null;
  end if;
  p_here := coalesce(p_here, benteng.here(array(select m.id from unnest(p_moves) m)));
  perform benteng.note(p_moves, p_now, p_here, p_used);
  if p_holds then
    with moved as materialized (
      select
        j.id, j.state, j.waits_for, j.resources,
        coalesce(m.state_to = 'quarantined' and m.reason = 'uncertain' and t.closes, false) as closes
      from unnest(p_moves) with ordinality m
      cross join lateral (select x.* from benteng.job x where x.ctid = p_here[m.ordinality] offset 0) j
      join benteng.job_type t on t.name = j.type
      where j.resources <> '{}'
         or j.waits_for is not null
    ), freed as (
      update benteng.resource r
      set holder = case when m.closes then r.holder end,
          closed = m.closes
      from moved m
      cross join lateral unnest(m.resources) k (key)
      where r.key = k.key
        and r.holder = m.id
        and m.state = 'running'
      returning r.key, r.holder
    )
    select array_agg(distinct f.key)
    into v_keys
    from (
      select f.key from freed f where f.holder is null
      union all
      select m.waits_for from moved m where m.state = 'ready' and m.waits_for is not null) f;
  end if;
  if v_apart then
    perform benteng.set_apart(p_moves, p_now, p_here);
  end if;
  if v_leave then
    perform benteng.leave(p_moves, p_now, p_here);
  end if;
  if v_stay then
    update benteng.job j
    set state = m.state_to,
        due_at = coalesce(m.due_at, j.due_at),
        attempts = coalesce(m.attempts, j.attempts),
        crashes = coalesce(m.crashes, j.crashes),
        handbacks = coalesce(m.handbacks, j.handbacks),
        snoozes = coalesce(m.snoozes, j.snoozes),
        starts = coalesce(m.starts, j.starts),
        alone = coalesce(m.alone, j.alone),
        last_error = coalesce(m.error, ''),
        rule = coalesce(m.rule, ''),
        lease_until = null,
        pool = null,
        waits_for = null,
        woken_at = null
    from unnest(p_moves) with ordinality m
    where j.ctid = p_here[m.ordinality]
      and m.state_to not in ('cancelled', 'quarantined');
  end if;
  return v_keys;
end $$;

create or replace function benteng.set_apart(p_moves benteng.move[], p_now timestamptz, p_here tid[]) returns void
language plpgsql
as $$
begin
  insert into benteng.quarantine (
    id, seq, reason, rule, error, at, type, tier, priority, due_at, available_at, expires_at, attempts, crashes, handbacks,
    snoozes, starts, generation, fence, worker, alone, origin, actor, request_id, payload, payload_sha256, operation_key,
    envelope, policy_sha256, artifacts, targets, resources, parent, summary, progress, admitted_at)
  select
    j.id, j.seq, m.reason, coalesce(m.rule, ''), coalesce(m.error, ''), p_now, j.type, j.tier, j.priority,
    coalesce(m.due_at, j.due_at), j.available_at, j.expires_at, coalesce(m.attempts, j.attempts),
    coalesce(m.crashes, j.crashes), coalesce(m.handbacks, j.handbacks), coalesce(m.snoozes, j.snoozes),
    coalesce(m.starts, j.starts), j.generation, j.fence, j.worker, coalesce(m.alone, j.alone), j.origin, j.actor,
    j.request_id, j.payload, j.payload_sha256, j.operation_key, j.envelope, j.policy_sha256, j.artifacts, j.targets,
    j.resources, j.parent, j.summary, j.progress, j.admitted_at
  from unnest(p_moves) with ordinality m
  cross join lateral (select x.* from benteng.job x where x.ctid = p_here[m.ordinality] offset 0) j
  where m.state_to = 'quarantined';
end $$;

create or replace function benteng.leave(p_moves benteng.move[], p_now timestamptz, p_here tid[]) returns void
language plpgsql
as $$
begin
  with gone as (
    delete from benteng.job j
    using unnest(p_moves) with ordinality m
    where j.ctid = p_here[m.ordinality]
      and m.state_to in ('cancelled', 'quarantined')
    returning
      j.seq, j.type, j.fence, m.state_to, m.reason, coalesce(m.rule, '') as rule, coalesce(m.error, '') as error,
      coalesce(m.attempts, j.attempts) as attempts, coalesce(m.crashes, j.crashes) as crashes,
      coalesce(m.starts, j.starts) as starts, case when j.state = 'running' then j.token end as token
  ), kept as (
    select
      g.*,
      case                                                   -- the table of lifecycle.operation_after
        when g.state_to = 'cancelled' then case when g.starts > 0 then 'kept' else 'freed' end
        when g.reason = 'uncertain' then 'uncertain'
        when g.starts > 0 then 'kept'
        when g.reason in ('refused', 'expired') then 'freed'
        else 'reserved'
      end as operation_to
    from gone g
  ), recorded as (
    update benteng.operation o
    set state = k.operation_to,
        freed = k.operation_to = 'freed',
        ended = nullif(k.state_to, 'quarantined'),
        attempts = k.attempts,
        crashes = k.crashes,
        starts = k.starts,
        fence = k.fence,
        token = k.token,
        error = case when k.state_to = 'cancelled' then coalesce(k.reason, '') else k.error end,
        rule = k.rule,
        result = null,
        result_until = null,
        keep_until = case when k.state_to <> 'quarantined' then p_now + make_interval(secs => t.operation_keep_seconds) end,
        finished_at = case when k.state_to <> 'quarantined' then p_now end
    from kept k
    left join benteng.job_type t on t.name = k.type
    where o.seq = k.seq
    returning o.seq, o.keep_until
  )
  insert into benteng.retention (until, seqs)
  select min(r.keep_until), array_agg(r.seq)
  from recorded r
  where r.keep_until is not null
  having count(*) > 0;
end $$;
