-- enter: what admit and the successors of settle share.
--
-- Promise   one operation row for every job; of all callers with one key exactly one is admitted, and the others get ITS
--           receipt (duplicate), or conflict if digest or origin differ; also when they race, and when the winner rolls back.
--           A freed key is taken by a new row with the next epoch. One bad row never stops the batch. Whatever comes out is
--           recorded. p_codes: null, or for successors why each may not enter at all. p_origins: who asks for each job; the
--           last counts for all that follow.
-- Locks     new operation rows by key, new resource rows by key, new job rows, tallies. Takes no existing row but
--           depths, with skip locked.
-- Order     judge; reserve (may wait for another open admission of the same key); when fewer were reserved than wanted, read
--           the owners (a new snapshot that sees the winner), and try again what was freed between the two; then write.
-- Arrays    what is known of each job stands in arrays by its position: a join of functions whose rows nobody can estimate
--           would be a nested loop.
create or replace function benteng.enter(
  p_jobs benteng_v1.entrance[], p_origins text[], p_codes text[], p_now timestamptz)
returns table (ord integer, disposal text, job_id uuid, state text, rule text, reason text, result bytea)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_full      text[] := benteng.full_origins(p_origins, p_now);
  v_codes     text[];
  v_states    text[];
  v_seqs      bigint[];
  v_types     text[] := array[(p_jobs[1]).type];
  v_quiet     text[];
  v_repeated  boolean;
  v_needs     boolean;
  v_reserved  integer;
  v_open      integer;
  v_disposals text[];                                        -- null: all were admitted
  v_owners    uuid[];
  v_whys      text[];
  v_results   bytea[];
begin
  if cardinality(p_jobs) > 1 then
    select array_agg(distinct i.type), count(i.id) > count(distinct i.id) into v_types, v_repeated from unnest(p_jobs) i;
  end if;
  v_quiet := benteng.quiet(v_types);
  -- No aggregate here may ask for an order or for what is distinct: the rows would be sorted, and the positions lost.
  select
    array_agg(case
      when p_codes is null and (g.generation <> 0 or g.parent is not null)
        then 'S-format|suspicious|a new job has generation 0 and no parent'
      else coalesce(p_codes[g.ord], g.code)
    end),
    array_agg(g.state), array_agg(nextval('benteng.admission')), bool_or(g.resources <> '{}')
  into v_codes, v_states, v_seqs, v_needs
  from benteng.judge(p_jobs, p_origins, p_now) g;
  if v_repeated or v_full <> '{}' then
    v_codes := benteng.judge_together(p_jobs, p_origins, v_codes, v_full);
  end if;

  for v_try in 1 .. 5 loop
    insert into benteng.operation (
      seq, job_id, key, epoch, state, payload_sha256, type, name, tier, origin, actor, request_id, priority, policy_sha256,
      artifacts, targets, resources, parent, summary, generation, admitted_at)
    select
      v_seqs[i.ordinality], i.id, decode(i.operation_key, 'hex'), 1, 'reserved', decode(i.payload_sha256, 'hex'), i.type,
      split_part(i.type, '@', 1), i.tier, i.origin, i.actor, i.request_id, i.priority, i.policy_sha256, i.artifacts,
      i.targets, i.resources, i.parent, i.summary, i.generation, p_now
    from unnest(p_jobs) with ordinality i
    where v_codes[i.ordinality] is null
      and v_disposals[i.ordinality] is null
    order by i.operation_key collate "C", i.ordinality
    on conflict do nothing;
    get diagnostics v_reserved = row_count;
    exit when v_reserved = cardinality(p_jobs);
    select
      array_agg(o.disposal), array_agg(o.owner), array_agg(o.why),
      array_agg(case when o.disposal <> 'admitted' then o.state else v_states[o.ord] end), array_agg(o.result),
      count(*) filter (where o.disposal is null)
    into v_disposals, v_owners, v_whys, v_states, v_results, v_open
    from benteng.owners(p_jobs, p_origins, v_codes, v_seqs) o;
    exit when v_open = 0;
    if v_try = 5 then
      raise exception 'operation keys change too fast' using errcode = 'lock_not_available';
    end if;
  end loop;

  if v_needs then                                            -- resource rows exist before a job can want them
    insert into benteng.resource (key)
    select distinct u.k collate "C"
    from unnest(p_jobs) with ordinality i
    cross join lateral unnest(i.resources) u (k)
    where coalesce(v_disposals[i.ordinality], 'admitted') = 'admitted'
      and not exists (select from benteng.resource r where r.key = u.k)
    order by 1
    on conflict do nothing;
  end if;
  if 'quarantined' = any (v_states) then
    insert into benteng.quarantine (
      id, seq, reason, rule, error, at, type, tier, priority, due_at, available_at, expires_at, attempts, crashes, handbacks,
      snoozes, starts, generation, fence, alone, origin, actor, request_id, payload, payload_sha256, operation_key, envelope,
      policy_sha256, artifacts, targets, resources, parent, summary, progress, admitted_at)
    select
      i.id, v_seqs[i.ordinality], 'diverted', left(i.rule, 256), left(i.reason, 512), p_now, i.type, i.tier, i.priority,
      greatest(benteng.moment(i.available_at), p_now), benteng.moment(nullif(i.available_at, 0)),
      benteng.moment(nullif(i.expires_at, 0)), 0, 0, 0, 0, 0, i.generation, 0, false, i.origin, i.actor, i.request_id,
      i.payload, decode(i.payload_sha256, 'hex'), decode(i.operation_key, 'hex'), i.envelope, i.policy_sha256, i.artifacts,
      i.targets, i.resources, i.parent, i.summary, '', p_now
    from unnest(p_jobs) with ordinality i
    where coalesce(v_disposals[i.ordinality], 'admitted') = 'admitted'
      and v_states[i.ordinality] = 'quarantined';
  end if;
  with entered as (
    insert into benteng.job (
      id, seq, state, type, tier, priority, due_at, available_at, expires_at, generation, origin, actor, request_id, payload,
      payload_sha256, operation_key, envelope, policy_sha256, artifacts, targets, resources, parent, summary, rule,
      last_error, admitted_at)
    select
      i.id, v_seqs[i.ordinality], v_states[i.ordinality], i.type, i.tier, i.priority,
      greatest(benteng.moment(i.available_at), p_now), benteng.moment(nullif(i.available_at, 0)),
      benteng.moment(nullif(i.expires_at, 0)), i.generation, i.origin, i.actor, i.request_id, i.payload,
      decode(i.payload_sha256, 'hex'), decode(i.operation_key, 'hex'), i.envelope, i.policy_sha256, i.artifacts, i.targets,
      i.resources, i.parent, i.summary, left(i.rule, 256), left(i.reason, 512), p_now
    from unnest(p_jobs) with ordinality i
    where coalesce(v_disposals[i.ordinality], 'admitted') = 'admitted'
      and v_states[i.ordinality] <> 'quarantined'
  )
  insert into benteng.audit (
    at, event, job_id, type, policy_sha256, state_to, origin, actor, request_id, operation_key, payload_sha256, summary,
    resources, rule, reason, detail)
  select
    p_now, case v_states[i.ordinality] when 'held' then 'held' when 'quarantined' then 'diverted' else 'admitted' end, i.id,
    i.type, i.policy_sha256, v_states[i.ordinality], i.origin, i.actor, i.request_id, decode(i.operation_key, 'hex'),
    decode(i.payload_sha256, 'hex'), i.summary, i.resources, left(i.rule, 256), left(i.reason, 512),
    coalesce(i.parent::text, '')
  from unnest(p_jobs) with ordinality i
  where coalesce(v_disposals[i.ordinality], 'admitted') = 'admitted';
  if exists (select from benteng.operation f where f.freed) then    -- there is none in most ledgers, most of the time
    perform benteng.take_freed(v_seqs);
  end if;

  return query
  select
    i.ordinality::integer, coalesce(v_disposals[i.ordinality], 'admitted'),
    case when v_disposals is null then i.id else v_owners[i.ordinality] end, v_states[i.ordinality],
    case coalesce(v_disposals[i.ordinality], 'admitted')
      when 'admitted' then i.rule
      when 'duplicate' then ''
      else split_part(v_whys[i.ordinality], '|', 1)
    end,
    case coalesce(v_disposals[i.ordinality], 'admitted')
      when 'admitted' then i.reason
      when 'duplicate' then ''
      else split_part(v_whys[i.ordinality], '|', 3)
    end,
    v_results[i.ordinality]
  from unnest(p_jobs) with ordinality i;

  if v_disposals is not null then
    perform benteng.refuse(
      array_agg((
        i.type, p_origins[least(i.ordinality, cardinality(p_origins))], i.actor, i.request_id,
        split_part(v_whys[i.ordinality], '|', 1), split_part(v_whys[i.ordinality], '|', 3), i.payload_sha256,
        i.operation_key, i.id, 0,
        concat_ws(' ', nullif(split_part(v_whys[i.ordinality], '|', 2), ''), v_owners[i.ordinality]::text, i.parent::text)
        )::benteng_v1.refusal order by i.ordinality),
      p_now)
    from unnest(p_jobs) with ordinality i
    where v_disposals[i.ordinality] <> 'admitted';
  end if;
  if v_quiet <> '{}' then
    perform benteng.ring(v_quiet);
  end if;
end $$;

-- take_freed: give operations that were just reserved the next epoch of their keys. These are the caller's: nobody else takes or
-- frees them, and this snapshot sees every row that has had one of them.
create or replace function benteng.take_freed(p_seqs bigint[]) returns void
language sql
as $$
  update benteng.operation o
  set epoch = 1 + f.epoch
  from (
    select n.seq, max(g.epoch) as epoch
    from unnest(p_seqs) w (seq)
    join benteng.operation n on n.seq = w.seq
    join benteng.operation g on g.freed and g.key = n.key and g.name = n.name
    group by n.seq) f
  where o.seq = f.seq
$$;

-- owners: who has the key of each job, as this snapshot shows it, and what that means. disposal: null when nobody has it.
create or replace function benteng.owners(
  p_jobs benteng_v1.entrance[], p_origins text[], p_codes text[], p_seqs bigint[])
returns table (ord bigint, disposal text, owner uuid, why text, state text, result bytea)
language sql stable
as $$
  select
    d.ordinality,
    case d.found when 'foreign' then 'conflict' when 'taken' then 'refused' else d.found end,
    case when d.found in ('admitted', 'duplicate', 'conflict') then d.job_id end,
    case d.found
      when 'refused' then p_codes[d.ordinality]
      when 'duplicate' then 'S-duplicate||the operation exists already'
      when 'conflict' then 'S-conflict||the operation exists already, with another payload'
      when 'foreign' then 'S-conflict|suspicious|the operation exists already, from another origin'
      when 'taken' then 'S-id|suspicious|the job id belongs to another operation'
    end,
    case
      when d.found in ('duplicate', 'conflict')
        then coalesce(
          (select j.state from benteng.job j where j.id = d.job_id),
          (select 'quarantined' from benteng.quarantine q where q.id = d.job_id), d.ended)
    end,
    case when d.found = 'duplicate' then d.result end
  from (
    select
      i.ordinality, o.job_id, o.ended, o.result,
      case
        when p_codes[i.ordinality] is not null then 'refused'
        when o.seq = p_seqs[i.ordinality] then 'admitted'    -- seq was drawn by this call: the row is the one it inserted
        when o.origin <> p_origins[least(i.ordinality, cardinality(p_origins))] then 'foreign'
        when o.payload_sha256 <> decode(i.payload_sha256, 'hex') then 'conflict'
        when o.job_id is not null then 'duplicate'
        when exists (select from benteng.operation x where x.job_id = i.id) then 'taken'
      end as found
    from unnest(p_jobs) with ordinality i
    left join benteng.operation o
      on o.key = case when p_codes[i.ordinality] is null then decode(i.operation_key, 'hex') end    -- a refused one may be no hex
      and o.name = split_part(i.type, '@', 1)
      and not o.freed) d
  order by d.ordinality
$$;

-- judge_together: what only the whole batch shows. An id that is repeated, and origins that are full: their duplicates still
-- get a receipt.
create or replace function benteng.judge_together(
  p_jobs benteng_v1.entrance[], p_origins text[], p_codes text[], p_full text[]) returns text[]
language sql stable
as $$
  select array_agg(
    case
      when i.nth > 1 and i.id is not null
        then 'S-id|suspicious|the job id is repeated in the batch'
      when p_codes[i.ordinality] is not null
        then p_codes[i.ordinality]
      when i.asks = any (p_full) and not exists (
          select from benteng.operation o
          where o.key = decode(i.operation_key, 'hex')
            and o.name = split_part(i.type, '@', 1)
            and not o.freed)
        then format('S-depth||the origin has %s jobs waiting', benteng.depth_limit(i.asks))
    end order by i.ordinality)
  from (
    select
      i.id, i.type, i.operation_key, i.ordinality, p_origins[least(i.ordinality, cardinality(p_origins))] as asks,
      row_number() over (partition by i.id order by i.ordinality) as nth
    from unnest(p_jobs) with ordinality i) i
$$;
