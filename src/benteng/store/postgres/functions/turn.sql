-- turn: settle, then claim, in one transaction and one round trip.
--
-- Promise   as settle and claim (claim.sql); all of it or nothing. When the claim fails nothing has happened, and the caller
--           settles alone: to undo the claim alone would cost each turn a savepoint, and rows that were returned cannot be undone.
--           One row that tells what was settled, one with the facts of the jobs behind it, one for each job that starts.
-- Locks     control in row share mode, first; then as settle; then jobs and resources with skip locked. Without settlements
--           resource rows may be waited for, see claim.sql.
-- Order     the settlements may hold resource rows, so the claim behind them waits for nothing: a job whose resource row is in
--           somebody's hands stays ready for the next claim. The sketch forbade resources here, because its claim waited.
-- Rounds    the first starts what stands at the head of the line as it was locked: all of it or nothing, and nothing when
--           somebody there wants a resource or is flawed. Then, and when more can start, `choose` looks and decides.
-- Facts     jobs of which the facts are the same share one evaluation of them: [type, actor, origin, artifacts, targets, ...].
--           Mostly all are alike, and the look that locks them has seen it: then nothing is read again to find out.
create or replace function benteng_v1.turn(
  p_settlements benteng_v1.settlement[], p_successors benteng_v1.entrance[], p_n bigint, p_accepts text[], p_worker text,
  p_connects bigint[] default '{}', p_refused bigint[] default '{}',
  p_ids uuid[] default '{}', p_fences bigint[] default '{}', p_tokens text[] default '{}', p_results bytea[] default '{}')
returns setof benteng_v1.granted
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_me      benteng.login;
  v_login   text;
  v_pool    text;
  v_known   boolean;                                         -- the history is the one that the fences belong to
  v_types   text[];
  v_leases  float8[];                                        -- of each type
  v_limits  integer[];
  v_switched boolean;                                        -- any switch is thrown
  v_halted  text[] := '{}';                                  -- origins
  v_levels  smallint[];                                      -- the priority that each stands for, and from where its line is
  v_sinces  timestamptz[];                                   -- read: only while the head of the lines is dead, see lanes.sql
  v_made_at timestamptz;
  v_read    bigint;                                          -- entries of the lines that this session had read before
  v_settles boolean := p_settlements <> '{}' or p_ids <> '{}';
  v_want    integer := least(coalesce(p_n, 0), 1000);
  v_page    integer;
  v_quotas  integer[];
  v_head    integer;                                         -- how many stand there, up to a page
  v_look    record;                                          -- what the first round has found
  v_chosen  benteng.chosen;                                  -- what the later ones have
  v_now     timestamptz;
  v_tids    tid[];                                           -- of those that start
  v_again   boolean;                                         -- somebody at the head was passed by
  v_ends    record;
  v_row     benteng_v1.granted;
  v_secret  text;
  v_rows    integer;
begin
  lock table benteng.control in row share mode;
  select
    l.name, l.pool, t.types, t.leases, t.limits, exists (select from benteng.control c where c.mode <> 'open'),
    h.timeline = benteng.timeline() and h.claims_from <= benteng.now()
      and (h.compared_at = pg_postmaster_start_time() or h.system_identifier = benteng.system_identifier())
  into v_login, v_pool, v_types, v_leases, v_limits, v_switched, v_known
  from benteng.login l
  cross join benteng.history h
  left join benteng.pool_types t on t.pool = l.pool
  where l.name = session_user
    and l.facet = 'consumer'
    and current_setting('transaction_isolation') = 'read committed';
  if not found then
    perform benteng.me('consumer');                          -- says why
  end if;
  if v_switched or (v_types <@ p_accepts) is not true then
    select array_agg(t.name), array_agg(t.lease_seconds), array_agg(t.attempts_max)
    into v_types, v_leases, v_limits
    from benteng.open_type t
    where t.pool = v_pool
      and t.name = any (p_accepts);
    v_halted := array(select c.name from benteng.control c where c.scope = 'origin' and c.mode = 'halt');
  end if;

  if v_settles then
    v_me.name := v_login;                                    -- by name: a login may come to have more columns
    v_me.pool := v_pool;
    v_ends := benteng.end_attempts(
      v_me, p_settlements, p_successors, false, p_connects, p_refused, p_ids, p_fences, p_tokens, p_results);
    v_row.settled_ids := v_ends.ids;
    v_row.settled_states := v_ends.states;
    v_row.settled_reasons := v_ends.reasons;
    return next v_row;
    v_row := null;
  end if;

  if not v_known then
    if v_settles then
      return;                                                -- the next claim says why
    end if;
    perform benteng.same_history();
  end if;
  if current_setting('benteng.lanes', true) <> '' then
    select l.* into v_types, v_leases, v_limits, v_levels, v_sinces, v_made_at
    from benteng.lanes(v_types, v_leases, v_limits) l;
  end if;
  v_read := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_ready'));
  for v_round in 0 .. 24 loop
    exit when v_want <= 0 or v_types is null;
    -- Later rounds look further, so that many jobs to park at the head do not hide one that can start.
    v_page := case when v_round < 2 then v_want else least(1000, greatest(v_want, 4 << least(v_round, 8))) end;
    v_head := null;
    v_quotas := array[v_page];
    if cardinality(v_types) > 1 then
      select q.quotas, q.head
      into v_quotas, v_head
      from benteng.quotas(v_types, v_levels, v_sinces, v_page, v_halted, coalesce(v_chosen.later, '{}')) q;
    end if;
    if v_round = 0 then
      v_now := benteng.now();
      select
        array_agg(c.tid order by c.priority, c.due_at, c.seq) as tids, coalesce(bool_or(c.odd), false) as odd, count(*) as found,
        min(c.type) as type, min(c.actor) as actor, min(c.origin) as origin,
        min(c.type) = max(c.type) and min(c.actor) = max(c.actor) and min(c.origin) = max(c.origin)
          and not bool_or(c.refers) as alike
      into v_look
      from (
        select
          x.*,
          x.resources <> '{}' or benteng.flaw(
            x.tier, x.operation_key, x.forged, x.expires_at < v_now, x.attempts >= q.attempts_max) is not null as odd
        from unnest(v_types, v_levels, v_sinces, v_quotas, v_limits) q (name, priority, since, n, attempts_max)
        cross join lateral (
          select
            j.ctid as tid, j.priority, j.due_at, j.seq, j.type, j.actor, j.origin,
            j.artifacts <> '{}' or j.targets <> '{}' as refers, j.tier, j.operation_key,
            sha256(j.payload) <> j.payload_sha256 as forged, j.expires_at, j.attempts, j.resources
          from benteng.job j
          where j.type = q.name
            and j.state = 'ready'
            and j.priority between coalesce(q.priority, 0) and coalesce(q.priority, 9)
            and j.due_at >= coalesce(q.since, '-infinity')
            and j.origin <> all (v_halted)
          order by j.priority, j.due_at, j.seq
          limit q.n
          for update skip locked) x) c;
      v_head := coalesce(v_head, v_look.found);
      v_again := v_look.odd;
      if not v_again then
        v_tids := v_look.tids;
      end if;
    else
      v_chosen := benteng.choose(
        v_types, v_levels, v_sinces, v_quotas, v_limits, v_halted, v_want, v_round = 1, v_round = 1 and not v_settles, v_chosen);
      v_head := coalesce(v_head, v_chosen.found);
      v_again := v_chosen.contended;
      v_tids := v_chosen.tids;
      v_now := v_chosen.now;
    end if;
    -- Nothing: the end of the line, or all that stands at its head is in the hands of other claims. Then look further.
    exit when case when v_round = 0 then v_look.found else v_chosen.found end = 0 and (v_page >= 1000 or v_head < v_page);

    if v_tids is not null then
      v_row.facts := json_build_object('now', benteng.instant(v_now), 'groups', case
        when v_round = 0 and v_look.alike then json_build_array(
          benteng.tell(v_look.type, v_look.actor, v_look.origin, '{}', '{}', v_leases[array_position(v_types, v_look.type)], v_switched))
        else benteng.tell_each(v_tids, v_types, v_leases, v_switched)
      end);
      return next v_row;
      v_secret := encode(uuid_send(gen_random_uuid()), 'hex');
      return query
      with started as (
        update benteng.job j
        set state = 'running',
            attempts = j.attempts + 1,
            starts = j.starts + 1,
            fence = g.fence,
            token = v_secret || g.fence,                     -- a secret of this claim, and no two alike
            pool = v_pool,
            worker = left(p_worker, 256),
            lease_until = v_now + make_interval(secs => v_leases[array_position(v_types, j.type)]),
            waits_for = null,
            woken_at = null,
            progress = ''
        from (select r.tid, nextval('benteng.fence') as fence from unnest(v_tids) r (tid)) g
        where j.ctid = g.tid
          and j.state || '' = 'ready'                        -- keeps the planner off job_ready: it would walk it for each job
          and j.fence < g.fence
        returning
          j.id, j.type, j.tier, j.priority, j.available_at, j.expires_at, j.generation, j.origin, j.actor, j.request_id,
          j.payload, j.payload_sha256, j.operation_key, j.envelope, j.policy_sha256, j.artifacts, j.targets, j.resources,
          j.summary, j.attempts, j.crashes, j.handbacks, j.snoozes, j.alone, j.fence, j.token, j.worker
      ), noted as (
        insert into benteng.audit (
          id, at, event, job_id, type, policy_sha256, state_from, state_to, attempt, fence, origin, actor, request_id,
          operation_key, payload_sha256, summary, resources, worker)
        select
          s.fence, v_now, 'claimed', s.id, s.type, s.policy_sha256, 'ready', 'running', s.attempts, s.fence, s.origin, s.actor,
          s.request_id, s.operation_key, s.payload_sha256, s.summary, s.resources, s.worker
        from started s
      )
      select
        s.id, s.type, s.tier, s.priority::integer, coalesce(benteng.instant(s.available_at), 0),
        coalesce(benteng.instant(s.expires_at), 0), s.generation, s.origin, s.actor, s.request_id, s.payload,
        s.payload_sha256, s.operation_key, s.envelope, s.policy_sha256, s.artifacts, s.targets, s.resources, s.summary,
        s.attempts, s.crashes, s.handbacks, s.snoozes, s.alone, s.fence, s.token, null, null::uuid[], null::text[], null::text[]
      from started s;
      get diagnostics v_rows = row_count;
      v_want := v_want - v_rows;
    end if;
    if v_round > 0 then
      perform benteng.seize(v_chosen);
    end if;
    exit when v_head < v_page and not v_again;               -- the line was no longer than what we have looked at
  end loop;
  v_read := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_ready')) - v_read;
  if v_read > (case when v_made_at is null then 2000 else 500 + 4 * p_n end)
      and coalesce(v_made_at < benteng.committed_by(benteng.now()), true) then
    perform benteng.pass_dead(v_types);
  end if;
end $$;

-- tell: the facts of jobs that are alike, as turn tells them.
create or replace function benteng.tell(
  p_type text, p_actor text, p_origin text, p_artifacts text[], p_targets text[], p_lease_seconds float8, p_switched boolean)
returns json
language plpgsql stable
as $$
declare
  v_facts benteng.facts := benteng.facts(p_type, p_actor, p_origin, p_artifacts, p_targets, p_switched);
begin
  return json_build_array(
    p_type, p_actor, p_origin, p_artifacts, p_targets, p_lease_seconds, v_facts.scope, v_facts.name, v_facts.mode,
    v_facts.reason, v_facts.policy_sha256, v_facts.speaks, v_facts.denied, v_facts.artifacts);
end $$;

-- tell_each: those of jobs that are not all alike, once for each kind. The caller holds their rows.
create or replace function benteng.tell_each(p_tids tid[], p_types text[], p_leases float8[], p_switched boolean)
returns json
language sql stable
as $$
  select json_agg(benteng.tell(
    a.type, a.actor, a.origin, a.artifacts, a.targets, p_leases[array_position(p_types, a.type)], p_switched))
  from (
    select distinct j.type, j.actor, j.origin, j.artifacts, j.targets
    from unnest(p_tids) g (tid)
    cross join lateral (select x.* from benteng.job x where x.ctid = g.tid offset 0) j) a
$$;
