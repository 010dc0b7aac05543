-- claim: start up to n ready jobs of the caller's own pool.
--
-- Promise   never more than n; n if so many can start, by (priority, due, admission); only accepted types whose type, pool and
--           origin are not halted. Each spends one attempt and gets a secret token, a lease, fresh evidence, and a fence that is
--           drawn AFTER its resource rows are held: it rises for each job and each resource. Resources all or none: a job
--           with a busy one is parked `blocked` and spends nothing. Expired, exhausted and undecodable rows are set apart.
-- Locks     control in row share mode, to the commit: a switch waits for claims under way. Job rows with skip locked (never
--           waits), then resource rows.
-- Order     round 1 takes the resource rows of its candidates by key, and may wait. Later rounds skip locked ones, because some
--           are held already: to wait there would break the order. Nothing else in here waits. Behind a settlement in the same
--           transaction (turn) resource rows are held from the start: then p_may_wait is false, and no round waits.
-- History   nothing starts in a database that was promoted or restored, until its fence epoch was raised (history.sql).
-- Look      a row is locked, judged and counted by one statement, and started by the next, which finds it where it was: a row
--           that is ours does not move. Who contends for resources is asked only when somebody does.
-- Baton     a woken job that parks on ANOTHER key, or is set apart, gives the baton of its old key on, in each round.
create or replace function benteng_v1.claim(p_n bigint, p_accepts text[], p_worker text)
returns setof benteng_v1.granted
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
  v_me benteng.login := benteng.me('consumer');
begin
  lock table benteng.control in row share mode;
  return query select g.* from benteng.start_jobs(v_me.pool, p_n, p_accepts, p_worker, true) g;
end $$;

create or replace function benteng.start_jobs(p_pool text, p_n bigint, p_accepts text[], p_worker text, p_may_wait boolean)
returns setof benteng_v1.granted
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_now       timestamptz;                                   -- read after the last wait
  v_instant   bigint;
  v_types     text[];
  v_leases    float8[];                                      -- of each type
  v_limits    integer[];
  v_halted    text[];
  v_quotas    integer[];
  v_want      integer := least(coalesce(p_n, 0), 1000);
  v_page      integer;
  v_head      integer;                                       -- how many stand there, up to a page
  v_found     integer;                                       -- how many of them are ours
  v_ids       uuid[];
  v_here      tid[];                                         -- where they are: a row that is ours does not move
  v_flawed    boolean;
  v_wanting   boolean;                                       -- somebody wants a resource
  v_expires   timestamptz;
  v_keys      text[];
  v_repeated  boolean;
  v_held      text[];
  v_taken     boolean;
  v_mine      text[] := '{}';                                -- resource rows that we hold
  v_contended boolean;
  v_later     uuid[] := '{}';                                -- left ready: a resource row was in somebody's hands
  v_unreached uuid[];
  v_run       uuid[];
  v_tids      tid[];
  v_started   integer;
  v_parks     benteng.move[];
  v_flaws     benteng.move[];
  v_batons    text[];
begin
  perform benteng.same_history();
  select
    array_agg(t.name), array_agg(t.lease_seconds), array_agg(t.attempts_max),
    (select coalesce(array_agg(c.name), '{}') from benteng.control c where c.scope = 'origin' and c.mode = 'halt')
  into v_types, v_leases, v_limits, v_halted
  from benteng.open_type o
  join benteng.job_type t on t.name = o.name
  where o.pool = p_pool
    and o.name = any (p_accepts);

  for v_round in 1 .. 24 loop
    exit when v_want <= 0 or v_types is null;
    -- Later rounds look further, so that many jobs to park at the head do not hide one that can start.
    v_page := case when v_round = 1 then v_want else least(1000, greatest(v_want, 4 << least(v_round, 8))) end;
    -- How many of each type stand at the head: one short index walk a type, so that nobody's backlog costs anything.
    if cardinality(v_types) = 1 then
      v_quotas := array[v_page];
    else
      select array_agg(coalesce(h.n, 0)::integer order by t.ord), sum(h.n)
      into v_quotas, v_head
      from unnest(v_types) with ordinality t (name, ord)
      left join (
        select head.type, count(*) as n
        from (
          select x.type
          from unnest(v_types) u (name)
          cross join lateral (
            select j.type, j.priority, j.due_at, j.seq
            from benteng.job j
            where j.type = u.name
              and j.state = 'ready'
              and j.origin <> all (v_halted)
              and j.id <> all (v_later)
            order by j.priority, j.due_at, j.seq
            limit v_page) x
          order by x.priority, x.due_at, x.seq
          limit v_page) head
        group by head.type) h on h.type = t.name;
    end if;

    v_now := benteng.now();
    select
      array_agg(c.id), array_agg(c.tid), count(*), min(c.expires_at),
      coalesce(bool_or(c.flaw is not null), false), coalesce(bool_or(c.wanting), false)
    into v_ids, v_here, v_found, v_expires, v_flawed, v_wanting
    from (
      select
        x.id, x.tid, x.expires_at, x.resources <> '{}' as wanting,
        benteng.flaw(
          x.tier, x.operation_key, x.payload, x.payload_sha256, x.expires_at < v_now, x.attempts >= q.attempts_max) as flaw
      from unnest(v_types, v_quotas, v_limits) q (name, n, attempts_max)
      cross join lateral (
        select
          j.id, j.ctid as tid, j.priority, j.due_at, j.seq, j.tier, j.operation_key, j.payload, j.payload_sha256,
          j.expires_at, j.attempts, j.resources
        from benteng.job j
        where j.type = q.name
          and j.state = 'ready'
          and j.origin <> all (v_halted)
          and j.id <> all (v_later)
        order by j.priority, j.due_at, j.seq
        limit q.n
        for update skip locked) x
      order by x.priority, x.due_at, x.seq) c;
    if cardinality(v_types) = 1 then
      v_head := v_found;
    end if;
    -- Nothing: the end of the line, or all that stands at its head is in the hands of other claims. Then look further.
    exit when v_found = 0 and (v_page >= 1000 or coalesce(v_head, 0) < v_page);
    continue when v_found = 0;

    v_contended := v_flawed;
    v_batons := null;
    if v_wanting then
      select array_agg(distinct k.key) filter (where k.key <> all (v_mine)), count(*) > count(distinct k.key)
      into v_keys, v_repeated
      from unnest(v_here) g (tid)
      cross join lateral (select x.* from benteng.job x where x.ctid = g.tid offset 0) j
      cross join lateral unnest(j.resources) k (key);
      if v_round = 1 and p_may_wait then
        select array_agg(h.key), bool_or(h.holder is not null)
        into v_held, v_taken
        from (select r.key, r.holder from benteng.resource r where r.key = any (v_keys) order by r.key for update) h;
      else
        select array_agg(h.key), bool_or(h.holder is not null)
        into v_held, v_taken
        from (select r.key, r.holder from benteng.resource r where r.key = any (v_keys) order by r.key for update skip locked) h;
      end if;
      v_mine := v_mine || v_held;
      v_now := benteng.now();
      -- Each key is wanted once, free and ours: then nobody contends with anybody.
      v_contended := v_flawed or v_repeated or coalesce(v_taken, false) or coalesce(v_expires < v_now, false) or v_round > 1
        or cardinality(v_held) is distinct from cardinality(v_keys);
    end if;

    v_run := v_ids[:v_want];
    v_tids := v_here[:v_want];
    if v_contended then
      -- A new snapshot, and everything that it looks at is ours. granted: first in line on each of its keys, all of them
      -- free. parked: some key is held, or granted here to one before it. Neither: the next round decides; the first in line
      -- is always decided. What stands behind the last job that may be granted is left alone: a decision looks only forward.
      with looked as materialized (
        select
          j.id, g.tid, g.ord, j.waits_for, j.resources,
          benteng.flaw(
            j.tier, j.operation_key, j.payload, j.payload_sha256, j.expires_at < v_now,
            j.attempts >= v_limits[array_position(v_types, j.type)]) as flaw
        from unnest(v_here) with ordinality g (tid, ord)
        cross join lateral (select x.* from benteng.job x where x.ctid = g.tid offset 0) j
      ), want as materialized (
        select
          w.id, w.tid, w.ord, w.waits_for, w.flaw, k.key,
          k.key is not null and k.key <> all (v_mine) as foreign_row,
          coalesce(r.holder is not null, false) as taken
        from looked w
        left join lateral unnest(w.resources) k (key) on true
        left join benteng.resource r on r.key = k.key
      ), reachable as (
        select w.*, bool_or(w.foreign_row) over (partition by w.id) as later
        from want w
      ), ranked as (
        select r.*, r.key is null or r.ord = min(r.ord) over (partition by r.key) as first
        from reachable r
        where not r.later
          and r.flaw is null
      ), granted as (
        select r.*, bool_and(r.first and not r.taken) over (partition by r.id) as granted
        from ranked r
      ), busy as (
        select g.*, g.taken or (g.key is not null and bool_or(g.granted) over (partition by g.key)) as busy
        from granted g
      ), decided as materialized (
        select b.id, b.tid, b.ord, b.waits_for, b.granted, min(b.key) filter (where b.busy and not b.granted) as busy_key
        from busy b
        group by b.id, b.tid, b.ord, b.waits_for, b.granted
      ), counted as (
        select d.*, count(*) filter (where d.granted) over (order by d.ord) as nth
        from decided d
      ), parted as materialized (
        select c.*
        from counted c
        where c.nth < v_want
           or (c.nth = v_want and c.granted)
      )
      select array_agg(p.id order by p.ord) filter (where p.granted),
             array_agg(p.tid order by p.ord) filter (where p.granted),
             array_agg((
               p.id, 'blocked', 'blocked', null, null, p.busy_key, null, null, null, null, null, null,
               null)::benteng.move order by p.ord) filter (where not p.granted and p.busy_key is not null),
             array_agg(p.waits_for) filter (where not p.granted and p.busy_key is not null and p.waits_for <> p.busy_key),
             (select array_agg(distinct r.id) from reachable r where r.later),
             (select array_agg((
                f.id, 'quarantined', 'quarantined', f.flaw, null,
                case f.flaw
                  when 'expired' then 'not started in time'
                  when 'exhausted' then 'no attempt is left'
                  else 'tier, operation_key or payload_sha256 cannot be read'
                end, null, null, null, null, null, null, null)::benteng.move order by f.ord)
              from (select distinct r.id, r.ord, r.flaw from reachable r where r.flaw is not null and not r.later) f)
      into v_run, v_tids, v_parks, v_batons, v_unreached, v_flaws
      from parted p;
      v_later := v_later || v_unreached;

      if v_flaws is not null then
        v_batons := v_batons || benteng.move_jobs(v_flaws, v_now);
      end if;
      if v_parks is not null then
        perform benteng.note(v_parks, v_now);
        update benteng.job j
        set state = 'blocked',
            waits_for = p.error,
            woken_at = null
        from unnest(v_parks) p
        where j.id = p.id
          and j.state = 'ready';
      end if;
    end if;

    if v_run is not null then
      v_instant := benteng.instant(v_now);
      return query
      with started as (
        update benteng.job j
        set state = 'running',
            attempts = j.attempts + 1,
            starts = j.starts + 1,
            fence = g.fence,
            token = encode(uuid_send(gen_random_uuid()), 'hex'),
            pool = p_pool,
            worker = left(p_worker, 256),
            lease_until = v_now + make_interval(secs => v_leases[array_position(v_types, j.type)]),
            waits_for = null,
            woken_at = null,
            progress = ''
        from (select r.tid, r.ord, nextval('benteng.fence') as fence from unnest(v_tids) with ordinality r (tid, ord)) g
        where j.ctid = g.tid
          and j.state || '' = 'ready'                        -- keeps the planner off job_ready: it would walk it for each job
          and j.fence < g.fence
        returning
          j.id, j.type, j.tier, j.priority, j.available_at, j.expires_at, j.generation, j.origin, j.actor, j.request_id,
          j.payload, j.payload_sha256, j.operation_key, j.envelope, j.policy_sha256, j.artifacts, j.targets, j.resources,
          j.summary, j.attempts, j.crashes, j.handbacks, j.snoozes, j.alone, j.fence, j.token, j.worker, g.ord
      ), noted as (
        insert into benteng.audit (
          id, at, event, job_id, type, policy_sha256, state_from, state_to, attempt, fence, origin, actor, request_id,
          operation_key, payload_sha256, summary, resources, worker)
        select
          s.fence, v_now, 'claimed', s.id, s.type, s.policy_sha256, 'ready', 'running', s.attempts, s.fence, s.origin, s.actor,
          s.request_id, s.operation_key, s.payload_sha256, s.summary, s.resources, s.worker
        from started s
      ), alike as (                                          -- the first of those of which the facts are the same asks for all
        select s.*, min(s.ord) over (partition by s.type, s.actor, s.origin, s.artifacts, s.targets) as asker
        from started s
      ), known as materialized (
        select
          a.ord, f.scope, f.name, f.mode, f.reason, f.policy_sha256, f.speaks, f.denied, f.artifacts
        from alike a
        cross join lateral benteng.facts(a.type, a.actor, a.origin, a.artifacts, a.targets) f
        where a.ord = a.asker
      )
      select
        s.id, s.type, s.tier, s.priority::integer, coalesce(benteng.instant(s.available_at), 0),
        coalesce(benteng.instant(s.expires_at), 0), s.generation, s.origin, s.actor, s.request_id, s.payload,
        encode(s.payload_sha256, 'hex'), encode(s.operation_key, 'hex'), s.envelope, s.policy_sha256, s.artifacts, s.targets,
        s.resources, s.summary, s.attempts, s.crashes, s.handbacks, s.snoozes, s.alone, s.fence, s.token,
        v_leases[array_position(v_types, s.type)], v_instant, k.scope, k.name, k.mode, k.reason, k.policy_sha256, k.speaks,
        k.denied, k.artifacts
      from alike s
      join known k on k.ord = s.asker                        -- by a number: as many may ask as there are jobs
      order by s.ord;
      get diagnostics v_started = row_count;
      v_want := v_want - v_started;
      if v_wanting then
        update benteng.resource r
        set holder = j.id,
            fence = j.fence
        from unnest(v_run) g (id)
        cross join lateral (select x.* from benteng.job x where x.id = g.id offset 0) j
        cross join lateral unnest(j.resources) k (key)
        where r.key = k.key
          and r.holder is null
          and r.fence < j.fence
          and j.state = 'running';
      end if;
    end if;
    if v_batons <> '{}' then
      perform benteng.wake(v_batons, v_now);
    end if;
    exit when v_head < v_page and not v_contended;           -- the line was no longer than what we have looked at
  end loop;
end $$;

-- flaw: why a job that stands in line cannot start, or null.
create or replace function benteng.flaw(
  p_tier text, p_operation_key bytea, p_payload bytea, p_payload_sha256 bytea, p_late boolean, p_spent boolean)
returns text
language sql immutable
as $$
  select case
    when p_tier not in ('low', 'medium', 'high') or octet_length(p_operation_key) <> 32 or sha256(p_payload) <> p_payload_sha256
      then 'undecodable'
    when p_late then 'expired'
    when p_spent then 'exhausted'
  end
$$;
