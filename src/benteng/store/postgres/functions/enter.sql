-- enter: what admit and the successors of settle share.
--
-- Promise   one operation row for every job; of all callers with one key exactly one is admitted, and the others get ITS
--           receipt (duplicate), or conflict if digest or origin differ; also when they race, and when the winner rolls back.
--           A freed key is taken by a new row with the next epoch. One bad row never stops the batch. Whatever comes out is
--           recorded. p_codes: null, or why a row may not enter at all.
-- Locks     new resource rows by key, new operation rows by key, new job rows, tallies. Takes no existing row.
-- Order     reserve (statement 1: may wait for another open admission of the same key), read the owners (statement 2: a new
--           snapshot that sees the winner), then write. A key that was freed between the two is tried again.
create or replace function benteng.enter(
  p_jobs benteng_v1.entrance[], p_origins text[], p_codes text[], p_now timestamptz)
returns table (ord integer, disposal text, job_id uuid, state text, rule text, reason text, result bytea)
language plpgsql
as $$
#variable_conflict use_column
declare
  v_quiet     text[] := benteng.quiet(array(select i.type from unnest(p_jobs) i));
  v_full      text[] := benteng.full_origins(p_origins);
  v_seqs      bigint[] := array(select nextval('benteng.admission') from generate_series(1, cardinality(p_jobs)));
  v_codes     text[];
  v_states    text[];
  v_disposals text[];
  v_owners    uuid[];
  v_open      integer;
  v_refused   boolean;
  v_outdated  boolean;
begin
  -- Joined by position, in arrays: a join of functions whose rows nobody can estimate would be a nested loop.
  select array_agg(coalesce(p_codes[g.ord], g.code) order by g.ord), array_agg(g.state order by g.ord)
  into v_codes, v_states
  from benteng.judge(p_jobs, p_origins, p_now) g;

  if cardinality(p_jobs) > 1 or v_full <> '{}' then
    select array_agg(
             case
               when i.nth > 1 and i.id is not null
                 then 'S-id|suspicious|the job id is repeated in the batch'
               else coalesce(v_codes[i.ordinality],
                 case
                   when p_origins[i.ordinality] = any (v_full) and not exists (
                     select from benteng.operation o
                     where o.key = decode(i.operation_key, 'hex')
                       and o.name = split_part(i.type, '@', 1)
                       and not o.freed)
                     then 'S-depth||the origin has 100000 jobs waiting'
                 end)
             end order by i.ordinality)
    into v_codes
    from (
      select i.id, i.type, i.operation_key, i.ordinality, row_number() over (partition by i.id order by i.ordinality) as nth
      from unnest(p_jobs) with ordinality i) i;
  end if;

  -- Resource rows exist before a job can want them.
  insert into benteng.resource (key)
  select distinct u.k collate "C"
  from unnest(p_jobs) with ordinality i
  cross join lateral unnest(i.resources) u (k)
  where v_codes[i.ordinality] is null
    and not exists (select from benteng.resource r where r.key = u.k)
  order by 1
  on conflict do nothing;

  for v_try in 1 .. 5 loop
    insert into benteng.operation (
      seq, job_id, key, epoch, state, payload_sha256, type, tier, origin, actor, request_id, priority, policy_sha256,
      artifacts, targets, resources, parent, summary, generation, admitted_at)
    select
      v_seqs[i.ordinality], i.id, decode(i.operation_key, 'hex'),
      1 + coalesce((
        select max(f.epoch)
        from benteng.operation f
        where f.freed
          and f.key = decode(i.operation_key, 'hex')
          and f.name = split_part(i.type, '@', 1)), 0),
      'reserved', decode(i.payload_sha256, 'hex'), i.type, i.tier, i.origin, i.actor, i.request_id, i.priority,
      i.policy_sha256, i.artifacts, i.targets, i.resources, i.parent, i.summary, i.generation, p_now
    from unnest(p_jobs) with ordinality i
    where v_codes[i.ordinality] is null
      and (v_owners is null or v_owners[i.ordinality] is null)
    order by i.operation_key, i.ordinality
    on conflict do nothing;

    -- seq was drawn by this call: the row that has it is the one that was inserted above.
    select array_agg(d.owner order by d.ordinality),
           array_agg(d.disposal order by d.ordinality),
           count(*) filter (where d.disposal is null),
           bool_or(d.disposal <> 'admitted'),
           bool_or(d.outdated)
    into v_owners, v_disposals, v_open, v_refused, v_outdated
    from (
      select
        i.ordinality, o.job_id as owner,
        case
          when v_codes[i.ordinality] is not null then 'refused'
          when o.seq = v_seqs[i.ordinality] then 'admitted'
          when o.origin <> p_origins[i.ordinality] then 'foreign'
          when o.payload_sha256 <> decode(i.payload_sha256, 'hex') then 'conflict'
          when o.job_id is not null then 'duplicate'
          when exists (select from benteng.operation x where x.job_id = i.id) then 'taken'
        end as disposal,
        o.seq = v_seqs[i.ordinality] and exists (
          select from benteng.operation f
          where f.freed
            and f.key = o.key
            and f.name = o.name
            and f.epoch >= o.epoch) as outdated
      from unnest(p_jobs) with ordinality i
      left join benteng.operation o
        on v_codes[i.ordinality] is null
        and o.key = decode(i.operation_key, 'hex')
        and o.name = split_part(i.type, '@', 1)
        and not o.freed) d;
    exit when v_open = 0;
    if v_try = 5 then
      raise exception 'operation keys change too fast' using errcode = 'lock_not_available';
    end if;
  end loop;

  -- A key that was freed after the reservation's snapshot and before its insert gave an epoch that is taken. Now that the
  -- keys are ours nobody else can take or free them: a later snapshot counts right.
  if v_outdated then
    update benteng.operation o
    set epoch = 1 + f.epoch
    from (
      select n.seq, max(g.epoch) as epoch
      from unnest(v_seqs, v_disposals) w (seq, disposal)
      join benteng.operation n on n.seq = w.seq
      join benteng.operation g on g.key = n.key and g.name = n.name and g.freed
      where w.disposal = 'admitted'
      group by n.seq) f
    where o.seq = f.seq
      and o.epoch <= f.epoch;
  end if;

  return query
  with i as materialized (
    select
      i.*, v_seqs[i.ordinality] as seq, v_disposals[i.ordinality] as disposal, v_states[i.ordinality] as state,
      v_owners[i.ordinality] as owner
    from unnest(p_jobs) with ordinality i
  ), entered as (
    insert into benteng.job (
      id, seq, state, type, tier, priority, due_at, available_at, expires_at, generation, origin, actor, request_id, payload,
      payload_sha256, operation_key, envelope, policy_sha256, artifacts, targets, resources, parent, summary, rule,
      last_error, admitted_at)
    select
      i.id, i.seq, i.state, i.type, i.tier, i.priority, greatest(benteng.moment(i.available_at), p_now),
      benteng.moment(nullif(i.available_at, 0)), benteng.moment(nullif(i.expires_at, 0)), i.generation, i.origin, i.actor,
      i.request_id, i.payload, decode(i.payload_sha256, 'hex'), decode(i.operation_key, 'hex'), i.envelope, i.policy_sha256,
      i.artifacts, i.targets, i.resources, i.parent, i.summary, left(i.rule, 256), left(i.reason, 512), p_now
    from i
    where i.disposal = 'admitted'
      and i.state <> 'quarantined'
    order by i.id
  ), diverted as (
    insert into benteng.quarantine (
      id, seq, reason, rule, error, at, type, tier, priority, due_at, available_at, expires_at, attempts, crashes, handbacks,
      snoozes, starts, generation, fence, alone, origin, actor, request_id, payload, payload_sha256, operation_key, envelope,
      policy_sha256, artifacts, targets, resources, parent, summary, progress, admitted_at)
    select
      i.id, i.seq, 'diverted', left(i.rule, 256), left(i.reason, 512), p_now, i.type, i.tier, i.priority,
      greatest(benteng.moment(i.available_at), p_now), benteng.moment(nullif(i.available_at, 0)),
      benteng.moment(nullif(i.expires_at, 0)), 0, 0, 0, 0, 0, i.generation, 0, false, i.origin, i.actor, i.request_id,
      i.payload, decode(i.payload_sha256, 'hex'), decode(i.operation_key, 'hex'), i.envelope, i.policy_sha256, i.artifacts,
      i.targets, i.resources, i.parent, i.summary, '', p_now
    from i
    where i.disposal = 'admitted'
      and i.state = 'quarantined'
    order by i.id
  ), noted as (
    insert into benteng.audit (
      at, event, job_id, type, policy_sha256, state_to, origin, actor, request_id, operation_key, payload_sha256, summary,
      resources, rule, reason, detail)
    select
      p_now, case i.state when 'held' then 'held' when 'quarantined' then 'diverted' else 'admitted' end, i.id, i.type,
      i.policy_sha256, i.state, i.origin, i.actor, i.request_id, decode(i.operation_key, 'hex'),
      decode(i.payload_sha256, 'hex'), i.summary, i.resources, left(i.rule, 256), left(i.reason, 512),
      coalesce(i.parent::text, '')
    from i
    where i.disposal = 'admitted'
    order by i.ordinality
  )
  select
    i.ordinality::integer,
    case i.disposal when 'foreign' then 'conflict' when 'taken' then 'refused' else i.disposal end,
    case when i.disposal in ('admitted', 'duplicate', 'conflict') then i.owner end,
    case
      when i.disposal = 'admitted' then i.state
      when i.disposal in ('duplicate', 'conflict') then o.state
    end,
    case i.disposal
      when 'admitted' then i.rule
      when 'duplicate' then ''
      when 'conflict' then 'S-conflict'
      when 'foreign' then 'S-conflict'
      when 'taken' then 'S-id'
      else split_part(v_codes[i.ordinality], '|', 1)
    end,
    case i.disposal
      when 'admitted' then i.reason
      when 'duplicate' then ''
      when 'conflict' then 'the operation exists already, with another payload'
      when 'foreign' then 'the operation exists already, from another origin'
      when 'taken' then 'the job id belongs to another operation'
      else split_part(v_codes[i.ordinality], '|', 3)
    end,
    case when i.disposal = 'duplicate' then o.result end
  from i
  left join lateral (
    select o.result, coalesce(j.state, case when q.id is not null then 'quarantined' end, o.ended) as state
    from benteng.operation o
    left join benteng.job j on j.id = o.job_id
    left join benteng.quarantine q on q.id = o.job_id
    where o.job_id = i.owner
      and i.disposal in ('duplicate', 'conflict')) o on true
  order by i.ordinality;

  if v_refused then
    perform benteng.refuse(
      array_agg((
        i.type, p_origins[i.ordinality], i.actor, i.request_id,
        case d.disposal
          when 'duplicate' then 'S-duplicate'
          when 'conflict' then 'S-conflict'
          when 'foreign' then 'S-conflict'
          when 'taken' then 'S-id'
          else split_part(v_codes[i.ordinality], '|', 1)
        end,
        case d.disposal
          when 'duplicate' then 'the operation exists already'
          when 'conflict' then 'the operation exists already, with another payload'
          when 'foreign' then 'the operation exists already, from another origin'
          when 'taken' then 'the job id belongs to another operation'
          else split_part(v_codes[i.ordinality], '|', 3)
        end,
        i.payload_sha256, i.operation_key, i.id, 0,
        concat_ws(' ',
          case
            when d.disposal in ('foreign', 'taken') or split_part(v_codes[i.ordinality], '|', 2) <> '' then 'suspicious'
          end,
          case when d.disposal in ('duplicate', 'conflict') then v_owners[i.ordinality]::text end,
          i.parent::text))::benteng_v1.refusal order by i.ordinality),
      p_now)
    from unnest(p_jobs) with ordinality i
    join unnest(v_disposals) with ordinality d (disposal, n) on d.n = i.ordinality
    where d.disposal <> 'admitted';
  end if;
  if v_quiet <> '{}' then
    perform benteng.ring(v_quiet);
  end if;
end $$;

-- full_origins: the origins that have too many jobs waiting. Counts only when the span of all jobs allows so many.
create or replace function benteng.full_origins(p_origins text[]) returns text[]
language plpgsql stable
as $$
begin
  if (select coalesce(max(j.seq) - min(j.seq) + 1, 0) < 100000 from benteng.job j) then
    return '{}';
  end if;
  return array(
    select g.origin
    from (select distinct u.origin from unnest(p_origins) u (origin)) g
    where (select count(*) from (select from benteng.job j where j.origin = g.origin limit 100000) d) >= 100000);
end $$;
