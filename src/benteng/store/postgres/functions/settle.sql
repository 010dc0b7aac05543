-- settle: say how attempts ended.
--
-- Promise   compare-and-set on (id, fence, token, running, own pool) for each; an id that is not returned was fenced off, and
--           nothing of it happened but a record of the stale try. The verb keeps the bounds itself, whatever a worker says:
--           attempts, crashes, hand-backs, snoozes, delays. A cancel asked for wins over going back. The same id twice: the
--           first counts. Successors: only types in the parent type's list, of at most its tier, by its actor; HIGH ones enter
--           held. p_again: the answer of an earlier try was lost; what that try settled is answered again. p_connects and
--           p_refused: what each attempt did with the network, for its record; text of a worker cannot pass for it.
-- Plain     p_ids to p_results, and then no p_settlements: attempts that complete, without resources as far as the worker knows.
--           They are not looked at before they are ended. What it was wrong about goes the way of all others.
-- Nothing   of a call with nothing in it all runs, on nothing: the plans stay with the session (as in admit.sql).
-- Locks     control in row share mode when there are successors; jobs by id, resources by key, operations; then what enter
--           inserts; tallies.
-- Order     1 jobs  2 resources  3 decide and move (sees the latest of both)  4 successors  5 wake, in a later snapshot  6 tallies
create or replace function benteng_v1.settle(
  p_settlements benteng_v1.settlement[], p_successors benteng_v1.entrance[], p_again boolean,
  p_connects bigint[] default '{}', p_refused bigint[] default '{}',
  p_ids uuid[] default '{}', p_fences bigint[] default '{}', p_tokens text[] default '{}', p_results bytea[] default '{}')
returns setof benteng_v1.settled
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
  v_me   benteng.login := benteng.me('consumer');
  v_ends record;
begin
  if p_successors <> '{}' then
    lock table benteng.control in row share mode;
  end if;
  v_ends := benteng.end_attempts(
    v_me, p_settlements, p_successors, p_again, p_connects, p_refused, p_ids, p_fences, p_tokens, p_results);
  return query
  select e.id, coalesce(e.state, 'completed'), e.reason
  from unnest(v_ends.ids, v_ends.states, v_ends.reasons) e (id, state, reason);
end $$;

-- end_attempts: the attempts that ended and what became of each. No states: all of them completed.
create or replace function benteng.end_attempts(
  p_me benteng.login, p_settlements benteng_v1.settlement[], p_successors benteng_v1.entrance[], p_again boolean,
  p_connects bigint[], p_refused bigint[], p_ids uuid[], p_fences bigint[], p_tokens text[], p_results bytea[],
  out ids uuid[], out states text[], out reasons text[])
language plpgsql
as $$
declare
  v_ords bigint[];                                           -- of those that were completed at once
  v_rest benteng_v1.settlement[];
  v_more bigint[];
begin
  if greatest(
      cardinality(p_settlements), cardinality(p_ids), cardinality(p_connects), cardinality(p_refused),
      cardinality(p_successors) / 10) > 1000 then
    raise exception 'at most 1000 in one call' using errcode = 'program_limit_exceeded';
  end if;
  if p_ids = '{}' then
    if p_settlements = '{}' then
      perform benteng.complete_jobs(p_me, '{}', '{}', '{}', '{}', null, false);
    end if;
    select array_agg(e.job_id), array_agg(e.state), array_agg(e.reason)
    into ids, states, reasons
    from benteng.end_each(p_me, p_settlements, p_successors, p_again, p_connects, p_refused) e;
    return;
  end if;
  v_ords := benteng.complete_jobs(
    p_me, p_ids, p_fences, p_tokens, p_results,
    case
      when p_connects <> '{}' or p_refused <> '{}'
        then array(select benteng.used(u.connects, u.refused) from unnest(p_connects, p_refused) u (connects, refused))
    end, false);
  if cardinality(v_ords) = cardinality(p_ids) then
    ids := p_ids;
    return;
  end if;
  select
    array_agg((u.id, u.fence, u.token, 'complete', 0, null, '', '', u.result, true, false)::benteng_v1.settlement order by u.ord),
    array_agg(u.ord order by u.ord)
  into v_rest, v_more
  from unnest(p_ids, p_fences, p_tokens, p_results) with ordinality u (id, fence, token, result, ord)
  where not exists (select from unnest(v_ords) d (ord) where p_ids[d.ord] = u.id);
  select
    array_agg(r.job_id order by r.place), array_agg(r.state order by r.place), array_agg(r.reason order by r.place)
  into ids, states, reasons
  from (
    select s.*, array_position(p_ids, s.job_id) as place
    from (
      select p_ids[d.ord] as job_id, 'completed' as state, null as reason
      from unnest(v_ords) d (ord)
      union all
      select e.*
      from benteng.end_each(
        p_me, v_rest, '{}', p_again, array(select p_connects[m.ord] from unnest(v_more) m (ord)),
        array(select p_refused[m.ord] from unnest(v_more) m (ord))) e) s) r;
end $$;

-- used: what an attempt did with the network, as its record says it. Null: nothing, and no text of a worker claims that it did.
create or replace function benteng.used(p_connects bigint, p_refused bigint, p_claimed boolean default false) returns text
language sql immutable
as $$
  select case
    when p_claimed or p_connects > 0 or p_refused > 0 then format(
      'egress connects=%s refused=%s',
      least(greatest(p_connects, 0), 1000000000), least(greatest(p_refused, 0), 1000000000))
  end
$$;

-- end_each: attempts end, each in its way.
create or replace function benteng.end_each(
  p_me benteng.login, p_settlements benteng_v1.settlement[], p_successors benteng_v1.entrance[], p_again boolean,
  p_connects bigint[], p_refused bigint[])
returns setof benteng_v1.settled
language plpgsql
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_ids     uuid[];                                          -- of all that end here
  v_ords    bigint[];
  v_here    tid[];                                           -- where those are that do not complete
  v_holds   boolean;
  v_held    text[];
  v_done    uuid[];                                          -- of those that complete
  v_places  bigint[];
  v_fences  bigint[];
  v_tokens  text[];
  v_results bytea[];
  v_used    text[];
  v_rest    benteng_v1.settlement[];                         -- of those that do not
  v_others  bigint[];
  v_spent   text[];
  v_moves   benteng.move[];
  v_keys    text[];
  v_heirs   benteng_v1.entrance[];
  v_owners  text[];
  v_codes   text[];
begin
  with asked as (
    select
      s.id, s.fence, s.token, s.ordinality as ord, s.result, coalesce(s.disposition = 'complete', false) as completes,
      benteng.used(
        p_connects[s.ordinality], p_refused[s.ordinality], s.disposition <> 'complete' and s.error like 'egress %') as used
    from unnest(p_settlements) with ordinality s
    order by s.id, s.ordinality
  ), held as (
    select distinct on (a.id)
      a.id, a.ord, a.fence, a.token, a.result, a.completes, a.used, j.tid, j.resources <> '{}' as holds
    from asked a
    cross join lateral (
      select x.ctid as tid, x.state, x.fence, x.token, x.resources
      from benteng.job x
      where x.id between a.id and a.id                       -- from behind, see newest.sql
        and x.pool = p_me.pool
      order by x.id desc
      limit 1
      for update) j
    where j.state = 'running'
      and j.fence = a.fence
      and j.token = a.token
    order by a.id, a.ord
  )
  select
    array_agg(h.id), array_agg(h.ord), bool_or(h.holds),
    array_agg(h.id) filter (where h.completes), array_agg(h.ord) filter (where h.completes),
    array_agg(h.fence) filter (where h.completes), array_agg(h.token) filter (where h.completes),
    array_agg(h.result) filter (where h.completes), array_agg(h.used) filter (where h.completes),
    array_agg(p_settlements[h.ord]) filter (where not h.completes), array_agg(h.ord) filter (where not h.completes),
    array_agg(h.used) filter (where not h.completes), array_agg(h.tid) filter (where not h.completes)
  into v_ids, v_ords, v_holds, v_done, v_places, v_fences, v_tokens, v_results, v_used, v_rest, v_others, v_spent, v_here
  from (select x.* from held x order by x.ord) h;
  if v_holds then
    v_held := benteng.hold_resources(v_ids);
  end if;
  v_now := benteng.now();

  if v_rest is not null then
    v_moves := benteng.decide(v_rest, v_here, v_now);
  end if;
  -- Who the parents are must be read before they are gone.
  if p_successors <> '{}' and v_done is not null then
    select array_agg(h.heir order by h.ord),
           array_agg(h.origin order by h.ord),
           array_agg(h.code order by h.ord)
    into v_heirs, v_owners, v_codes
    from benteng.heirs(p_successors, v_done) h;
  end if;
  if v_done is not null then
    perform benteng.complete_jobs(p_me, v_done, v_fences, v_tokens, v_results, v_used, true);
    v_keys := benteng.let_go(v_held, v_done);
  end if;
  if v_moves is not null then
    v_keys := v_keys || benteng.move_jobs(v_moves, v_now, v_spent, v_holds, v_here);
  end if;
  if v_heirs is not null then
    perform 1 from benteng.enter(v_heirs, v_owners, v_codes, v_now);
  end if;
  -- A statement of its own: its snapshot is younger than the resource rows that it holds.
  if v_keys is not null then
    perform benteng.wake(v_keys, v_now);
  end if;

  return query
  select e.id, e.state, e.reason
  from (
    select d.id, 'completed' as state, null as reason, d.ord
    from unnest(v_done, v_places) d (id, ord)
    union all
    select m.id, m.state_to, case when m.state_to = 'quarantined' then m.reason end, v_others[m.ordinality]
    from unnest(v_moves) with ordinality m) e
  order by e.ord;
  if coalesce(cardinality(v_ids), 0) = cardinality(p_settlements) then
    return;
  end if;
  if p_again then
    return query select g.* from benteng.settled_before(p_settlements, v_ords, p_me.pool) g;
  end if;
  perform benteng.refuse(
    array_agg((
      coalesce(o.type, ''), coalesce(o.origin, p_me.name), null, null, 'S-stale',
      'a settlement of an attempt that is over was refused', null, null, o.job_id, s.fence,
      left(s.disposition, 32))::benteng_v1.refusal order by s.ordinality),
    v_now)
  from unnest(p_settlements) with ordinality s
  left join benteng.operation o on o.job_id = s.id
  where s.ordinality <> all (coalesce(v_ords, '{}'))
    and not (p_again and exists (select from benteng.settled_before(p_settlements, v_ords, p_me.pool) g where g.job_id = s.id))
    and (s.id is null or s.id <> all (coalesce(v_ids, '{}')));
end $$;

-- decide: what becomes of jobs whose attempt did not complete. The caller holds their rows and has compared the proofs.
create or replace function benteng.decide(p_settlements benteng_v1.settlement[], p_here tid[], p_now timestamptz)
returns benteng.move[]
language plpgsql
as $$
declare
  v_moves benteng.move[];
begin
  with told as materialized (
    select
      j.id, j.attempts, j.crashes, j.handbacks, j.snoozes, j.starts, j.alone, j.cancel_asked, t.effect,
      t.attempts_max, t.crashes_max, t.handbacks_max, t.snoozes_max,
      s.ordinality as ord, s.disposition, left(s.error, 2048) as error, left(s.rule, 256) as rule,
      coalesce(s.reason, 'permanent') as reason, s.started, s.alone as asks_alone,
      s.disposition in ('hand_back', 'hold') or (s.disposition = 'quarantine' and not s.started) as unstarted,
      make_interval(secs => least(greatest(s.delay_seconds, t.backoff_seconds_min),
        case when s.disposition = 'snooze' then t.snooze_seconds_max else t.backoff_seconds_max end)) as delay
    from unnest(p_settlements) with ordinality s
    cross join lateral (select x.* from benteng.job x where x.ctid = p_here[s.ordinality] offset 0) j
    join benteng.job_type t on t.name = j.type
  ), counted as (
    select
      k.*,
      case
        when k.effect = 'once' and k.disposition in ('crash', 'interrupt') then 'uncertain'
        when k.disposition = 'quarantine' then 'quarantine'
        when k.cancel_asked then 'cancel'
        when k.disposition = 'retry' and k.attempts >= k.attempts_max then 'exhausted'
        when k.disposition = 'crash' and (k.crashes + 1 >= k.crashes_max or k.attempts >= k.attempts_max) then 'crashed'
        when k.disposition = 'snooze' and k.snoozes >= k.snoozes_max then 'exhausted'
        when k.disposition in ('hand_back', 'interrupt') and k.handbacks >= k.handbacks_max
          and k.attempts >= k.attempts_max then 'exhausted'
        else k.disposition
      end as ending,
      k.disposition in ('hand_back', 'interrupt') and k.handbacks < k.handbacks_max as is_free
    from told k
  ), decided as (
    select
      c.*,
      -- Attempt and start are given back for what was never started; an exhausted snooze or retry has spent its own.
      c.attempts - case
        when c.ending = 'uncertain' then 0
        when c.ending in ('quarantine', 'cancel', 'hold') then c.unstarted::integer
        when c.ending = 'snooze' then 1
        else c.is_free::integer
      end as attempts_to,
      c.starts - case when c.ending = 'uncertain' then 0 else c.unstarted::integer end as starts_to,
      -- A crash counts wherever the job goes on to, also the last one, which a worker answers with quarantine.
      c.crashes + (c.disposition = 'crash' or (c.disposition = 'quarantine' and c.reason = 'crashed' and c.started))::integer
        as crashes_to,
      c.handbacks + (c.disposition in ('hand_back', 'interrupt') and c.ending in ('hand_back', 'interrupt', 'exhausted'))::integer
        as handbacks_to,
      c.snoozes + (c.ending = 'snooze')::integer as snoozes_to
    from counted c
  )
  select array_agg((
    d.id,
    case d.ending
      when 'cancel' then 'cancelled'
      when 'uncertain' then 'uncertain'
      when 'retry' then 'retried'
      when 'crash' then 'retried'
      when 'snooze' then 'snoozed'
      when 'hand_back' then 'handed_back'
      when 'interrupt' then 'handed_back'
      when 'hold' then 'held'
      else case when d.ending = 'quarantine' and d.reason = 'uncertain' then 'uncertain' else 'quarantined' end
    end,
    case d.ending
      when 'cancel' then 'cancelled'
      when 'retry' then 'scheduled'
      when 'crash' then 'scheduled'
      when 'snooze' then 'scheduled'
      when 'hand_back' then 'ready'
      when 'interrupt' then 'ready'
      when 'hold' then 'held'
      else 'quarantined'
    end,
    case
      when d.ending = 'quarantine' then d.reason
      when d.ending in ('uncertain', 'exhausted', 'crashed') then d.ending
      when d.ending = 'cancel' then 'as asked'
    end,
    case when d.ending = 'cancel' then '' else d.rule end,
    case when d.ending = 'cancel' then 'as asked' else d.error end,
    d.attempts_to, d.crashes_to, d.handbacks_to, d.snoozes_to, d.starts_to,
    case when d.ending in ('retry', 'crash', 'snooze') then p_now + greatest(d.delay, interval '1 ms') end,
    -- What was not run has not shown yet whether it was to blame for the crash of its cell.
    d.asks_alone or (d.alone and d.starts_to < d.starts))::benteng.move order by d.ord)
  into v_moves
  from decided d;
  return v_moves;
end $$;

-- heirs: successors of jobs that complete, as entrances, with the code of what forbids one. Read before the parents are gone.
create or replace function benteng.heirs(p_successors benteng_v1.entrance[], p_parents uuid[])
returns table (ord bigint, heir benteng_v1.entrance, origin text, code text)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
  select
    s.ordinality,
    (s.id, s.type, s.tier, s.priority, s.available_at, s.expires_at, s.generation, s.origin, s.actor, s.request_id,
      s.payload, s.payload_sha256, s.operation_key, s.envelope, s.policy_sha256, s.artifacts, s.targets, s.resources,
      s.summary, case when s.tier = 'high' then 'held' else 'ready' end,
      case when s.tier = 'high' then 'S-agreement' else '' end,
      case when s.tier = 'high' then 'a successor of tier HIGH waits for agreement' else '' end,
      s.parent, s.unfit)::benteng_v1.entrance,
    j.origin,
    case
      when row_number() over (partition by s.parent order by s.ordinality) > 100
        then 'S-successor||more than 100 successors'
      when s.type <> all (t.successors)
        then 'S-successor|suspicious|the parent''s policy does not list this type'
      when array_position(array['low', 'medium', 'high'], s.tier) > array_position(array['low', 'medium', 'high'], t.tier)
        or array_position(array['low', 'medium', 'high'], s.tier) is null
        then 'S-successor|suspicious|the tier is above the parent''s'
      when s.actor <> j.actor
        then 'S-successor|suspicious|the actor is not the parent''s'
      when s.generation <> 0
        then 'S-format|suspicious|a new job has generation 0'
    end
  from unnest(p_successors) with ordinality s
  cross join lateral benteng.newest(s.parent) j
  join benteng.job_type t on t.name = j.type
  where s.parent = any (p_parents);
end $$;

-- settled_before: what an earlier try of the same settlements has done, told by fence and token.
create or replace function benteng.settled_before(p_settlements benteng_v1.settlement[], p_done bigint[], p_pool text)
returns table (job_id uuid, state text, reason text)
language plpgsql stable
as $$
#variable_conflict use_column
begin
  return query
  select s.id, coalesce(j.state, o.ended, 'quarantined'), q.reason
  from unnest(p_settlements) with ordinality s
  join benteng.operation o on o.job_id = s.id
  join benteng.job_type t on t.name = o.type and t.pool = p_pool
  left join benteng.job j on j.id = s.id
  left join benteng.quarantine q on q.id = s.id
  where s.ordinality <> all (coalesce(p_done, '{}'))
    and s.fence = coalesce(j.fence, o.fence)
    and s.token = coalesce(j.token, o.token)
    and j.state is distinct from 'running';
end $$;
