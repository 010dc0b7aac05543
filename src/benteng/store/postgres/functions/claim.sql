-- claim: start up to n ready jobs of the caller's own pool. A turn that settles nothing: turn.sql has the rounds.
--
-- Promise   never more than n; n if so many can start, by (priority, due, admission); only accepted types whose type, pool and
--           origin are not halted. Each spends one attempt and gets a secret token, a lease, fresh evidence, and a fence that is
--           drawn AFTER its resource rows are held: it rises for each job and each resource. Resources all or none: a job
--           with a busy one is parked `blocked` and spends nothing. Expired, exhausted and undecodable rows are set apart.
-- Locks     control in row share mode, to the commit: a switch waits for claims under way. Job rows with skip locked (never
--           waits), then resource rows.
-- Order     the first look takes the resource rows of its candidates by key, and may wait. Later ones skip locked ones, because
--           some are held already: to wait there would break the order. Nothing else in here waits. Behind a settlement in the
--           same transaction resource rows are held from the start: then no look waits.
-- History   nothing starts in a database that was promoted or restored, until its fence epoch was raised (history.sql).
-- Baton     a woken job that parks on ANOTHER key, or is set apart, gives the baton of its old key on, in each round.
create or replace function benteng_v1.claim(p_n bigint, p_accepts text[], p_worker text)
returns setof benteng_v1.granted
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select t.*
  from benteng_v1.turn('{}', '{}', p_n, p_accepts, p_worker) t;
end $$;

-- quotas: how many of each type stand among the first p_page in line. One short index walk a type, so that nobody's backlog
-- costs anything. A set, so that it is planned with the query around it.
create or replace function benteng.quotas(
  p_types text[], p_levels smallint[], p_sinces timestamptz[], p_page integer, p_halted text[], p_later uuid[])
returns table (quotas integer[], head bigint)
language sql stable
as $$
  select array_agg(coalesce(h.n, 0)::integer order by t.ord), sum(h.n)::bigint
  from unnest(p_types) with ordinality t (name, ord)
  left join (
    select head.ord, count(*) as n
    from (
      select u.ord
      from unnest(p_types, p_levels, p_sinces) with ordinality u (name, priority, since, ord)
      cross join lateral (
        select j.priority, j.due_at, j.seq
        from benteng.job j
        where j.type = u.name
          and j.state = 'ready'
          and j.priority between coalesce(u.priority, 0) and coalesce(u.priority, 9)
          and j.due_at >= coalesce(u.since, '-infinity')
          and j.origin <> all (p_halted)
          and j.id <> all (p_later)
        order by j.priority, j.due_at, j.seq
        limit p_page) x
      order by x.priority, x.due_at, x.seq
      limit p_page) head
    group by head.ord) h on h.ord = t.ord
$$;

-- choose: who of those at the head of the line may start. Locks them, takes the resource rows that they want, parks or sets apart
-- those that cannot start, and says the rest. p_before: what the round before said; resource rows stay held.
create or replace function benteng.choose(
  p_types text[], p_levels smallint[], p_sinces timestamptz[], p_quotas integer[], p_limits integer[], p_halted text[], p_want integer, p_is_first boolean,
  p_may_wait boolean, p_before benteng.chosen)
returns benteng.chosen
language plpgsql
as $$
declare
  v_chosen    benteng.chosen;
  v_later     uuid[] := coalesce(p_before.later, '{}');      -- left ready: a resource row was in somebody's hands
  v_ids       uuid[];
  v_here      tid[];                                         -- where they are: a row that is ours does not move
  v_flawed    boolean;
  v_expires   timestamptz;
  v_keys      text[];
  v_repeated  boolean;
  v_held      text[];
  v_taken     boolean;
  v_unreached uuid[];
  v_parks     benteng.move[];
  v_flaws     benteng.move[];
begin
  v_chosen.mine := coalesce(p_before.mine, '{}');
  v_chosen.now := benteng.now();
  select
    array_agg(c.id), array_agg(c.tid), count(*), min(c.expires_at),
    coalesce(bool_or(c.flaw is not null), false), coalesce(bool_or(c.wanting), false)
  into v_ids, v_here, v_chosen.found, v_expires, v_flawed, v_chosen.wanting
  from (
    select
      x.id, x.tid, x.expires_at, x.resources <> '{}' as wanting,
      benteng.flaw(
        x.tier, x.operation_key, x.forged, x.expires_at < v_chosen.now, x.attempts >= q.attempts_max) as flaw
    from unnest(p_types, p_levels, p_sinces, p_quotas, p_limits) q (name, priority, since, n, attempts_max)
    cross join lateral (
      select
        j.id, j.ctid as tid, j.priority, j.due_at, j.seq, j.tier, j.operation_key,
        sha256(j.payload) <> j.payload_sha256 as forged, j.expires_at, j.attempts, j.resources
      from benteng.job j
      where j.type = q.name
        and j.state = 'ready'
        and j.priority between coalesce(q.priority, 0) and coalesce(q.priority, 9)
        and j.due_at >= coalesce(q.since, '-infinity')
        and j.origin <> all (p_halted)
        and j.id <> all (v_later)
      order by j.priority, j.due_at, j.seq
      limit q.n
      for update skip locked) x
    order by x.priority, x.due_at, x.seq) c;
  v_chosen.later := v_later;
  v_chosen.contended := v_flawed;
  if v_chosen.found = 0 then
    return v_chosen;
  end if;

  if v_chosen.wanting then
    select array_agg(distinct k.key) filter (where k.key <> all (v_chosen.mine)), count(*) > count(distinct k.key)
    into v_keys, v_repeated
    from unnest(v_here) g (tid)
    cross join lateral (select x.* from benteng.job x where x.ctid = g.tid offset 0) j
    cross join lateral unnest(j.resources) k (key);
    if p_may_wait then
      select array_agg(h.key), bool_or(h.holder is not null)
      into v_held, v_taken
      from (select r.key, r.holder from benteng.resource r where r.key = any (v_keys) order by r.key for update) h;
    else
      select array_agg(h.key), bool_or(h.holder is not null)
      into v_held, v_taken
      from (select r.key, r.holder from benteng.resource r where r.key = any (v_keys) order by r.key for update skip locked) h;
    end if;
    v_chosen.mine := v_chosen.mine || v_held;
    v_chosen.now := benteng.now();
    -- Each key is wanted once, free and ours: then nobody contends with anybody.
    v_chosen.contended := v_flawed or v_repeated or coalesce(v_taken, false) or coalesce(v_expires < v_chosen.now, false)
      or not p_is_first or cardinality(v_held) is distinct from cardinality(v_keys);
  end if;
  if not v_chosen.contended then
    v_chosen.ids := v_ids[:p_want];
    v_chosen.tids := v_here[:p_want];
    return v_chosen;
  end if;

  -- A new snapshot, and everything that it looks at is ours. granted: first in line on each of its keys, all of them
  -- free. parked: some key is held, or granted here to one before it. Neither: the next round decides; the first in line
  -- is always decided. What stands behind the last job that may be granted is left alone: a decision looks only forward.
  with looked as materialized (
    select
      j.id, g.tid, g.ord, j.waits_for, j.resources,
      benteng.flaw(
        j.tier, j.operation_key, sha256(j.payload) <> j.payload_sha256, j.expires_at < v_chosen.now,
        j.attempts >= p_limits[array_position(p_types, j.type)]) as flaw
    from unnest(v_here) with ordinality g (tid, ord)
    cross join lateral (select x.* from benteng.job x where x.ctid = g.tid offset 0) j
  ), want as materialized (
    select
      w.id, w.tid, w.ord, w.waits_for, w.flaw, k.key,
      k.key is not null and k.key <> all (v_chosen.mine) as foreign_row,
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
    where c.nth < p_want
       or (c.nth = p_want and c.granted)
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
  into v_chosen.ids, v_chosen.tids, v_parks, v_chosen.batons, v_unreached, v_flaws
  from parted p;
  v_chosen.later := v_later || v_unreached;

  if v_flaws is not null then
    v_chosen.batons := v_chosen.batons || benteng.move_jobs(v_flaws, v_chosen.now);
  end if;
  if v_parks is not null then
    perform benteng.note(v_parks, v_chosen.now, benteng.here(array(select p.id from unnest(v_parks) p)));
    update benteng.job j
    set state = 'blocked',
        waits_for = p.error,
        woken_at = null
    from unnest(v_parks) p
    where j.id = p.id
      and j.state || '' = 'ready';                           -- keeps the planner off job_ready: it would walk it for each job
  end if;
  return v_chosen;
end $$;

-- seize: give the resources that were held for them to the jobs that were chosen and have started, and pass the batons on.
create or replace function benteng.seize(p_chosen benteng.chosen) returns void
language plpgsql
as $$
begin
  if p_chosen.wanting and p_chosen.ids is not null then
    update benteng.resource r
    set holder = j.id,
        fence = j.fence
    from unnest(p_chosen.ids) g (id)
    cross join lateral benteng.newest(g.id) j
    cross join lateral unnest(j.resources) k (key)
    where r.key = k.key
      and r.holder is null
      and r.fence < j.fence
      and j.state = 'running';
  end if;
  if p_chosen.batons <> '{}' then
    perform benteng.wake(p_chosen.batons, p_chosen.now);
  end if;
end $$;

-- flaw: why a job that stands in line cannot start, or null. p_forged: its payload is not the one of its digest.
create or replace function benteng.flaw(
  p_tier text, p_operation_key bytea, p_forged boolean, p_late boolean, p_spent boolean)
returns text
language sql immutable
as $$
  select case
    when p_tier not in ('low', 'medium', 'high') or octet_length(p_operation_key) <> 32 or p_forged
      then 'undecodable'
    when p_late then 'expired'
    when p_spent then 'exhausted'
  end
$$;
