-- judge: what the gate cannot be trusted with, or cannot see in time. The first rule that a job breaks counts.
--
-- Promise   pool, tier and limits come from job_type, switches from control, the origin from the authenticated caller.
--           code: null, or `rule|suspicious|reason`. state: where the job would enter, the strictest of what its gate, the
--           switches and its due time ask for.
-- Locks     none; the caller has locked control in row share mode.
create or replace function benteng.is_clean(p_text text) returns boolean
language sql immutable
as $$
  select p_text !~ '[\u0001-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]'
$$;

create or replace function benteng.is_name(p_text text) returns boolean
language sql immutable
as $$
  select octet_length(p_text) <= 256 and benteng.is_clean(p_text)
$$;

-- are_names, are_keys: a plain array of names; of distinct, sorted `kind:value`. Called for what is not empty alone: a query
-- for each job in its stead costs the many that have none as much as a statement.
create or replace function benteng.are_names(p_names text[]) returns boolean
language plpgsql immutable
as $$
declare
  v_name text;
begin
  if array_ndims(p_names) <> 1 or array_lower(p_names, 1) <> 1 then
    return false;
  end if;
  foreach v_name in array p_names loop
    if v_name is null or not benteng.is_name(v_name) then
      return false;
    end if;
  end loop;
  return true;
end $$;

create or replace function benteng.are_keys(p_keys text[]) returns boolean
language plpgsql immutable
as $$
declare
  v_key  text;
  v_last text collate "C" := '';
begin
  if not benteng.are_names(p_keys) then
    return false;
  end if;
  foreach v_key in array p_keys loop
    if v_key <= v_last or v_key !~ '^[^:]+:.' then
      return false;
    end if;
    v_last := v_key;
  end loop;
  return true;
end $$;

-- misshapen: what is wrong with the references of a job; null: nothing. No expression on purpose: planned with whoever asks it
-- would be made ready for each job, and most have no references.
create or replace function benteng.misshapen(p_resources text[], p_targets text[], p_artifacts text[]) returns text
language plpgsql immutable
as $$
begin
  return case
    when cardinality(p_resources) > 16
      then 'S-resources||more than 16 resources. Fan out: one job each'
    when p_resources <> '{}' and not benteng.are_keys(p_resources)
      then 'S-resources|suspicious|resources are sorted, distinct `kind:value` keys'
    when cardinality(p_targets) + cardinality(p_artifacts) > 256 or cardinality(p_artifacts) % 2 <> 0
      or p_targets <> '{}' and not benteng.are_names(p_targets)
      or p_artifacts <> '{}' and not benteng.are_names(p_artifacts)
      then 'S-format|suspicious|targets or artifacts are too many or not well formed'
  end;
end $$;

-- A digest in hexadecimal. Not by `{64}`: a counted repetition costs ten times as much as the length and a class.
create or replace function benteng.is_digest(p_text text) returns boolean
language sql immutable
as $$
  select octet_length(p_text) = 64 and p_text !~ '[^0-9a-f]'
$$;

-- fault: what is wrong with one job by itself, as its origin asks and its type says (name, sha256, tier and payload_bytes_max of
-- job_type, null where there is none); null: nothing. One expression, so that it is planned with whoever asks.
create or replace function benteng.fault(
  p_job benteng_v1.entrance, p_asks text, p_name text, p_sha256 text, p_tier text, p_payload_bytes_max integer) returns text
language sql stable
as $$
  select
    case
      when num_nulls(
          p_job.type, p_job.tier, p_job.priority, p_job.available_at, p_job.expires_at, p_job.generation, p_job.origin,
          p_job.actor, p_job.request_id, p_job.payload, p_job.payload_sha256, p_job.operation_key, p_job.envelope,
          p_job.policy_sha256, p_job.artifacts, p_job.targets, p_job.resources, p_job.summary, p_job.entry, p_job.rule,
          p_job.reason, p_job.unfit) > 0
        then 'S-format|suspicious|a field is missing'
      when p_job.unfit or p_job.id is null
        or p_name is null and p_job.type !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*@[1-9][0-9]{0,3}$'
        or not benteng.is_digest(p_job.operation_key)
        then 'S-format|suspicious|id, type or operation key is not well formed'
      when octet_length(p_job.actor) > 256 or octet_length(p_job.request_id) > 256
        or not benteng.is_clean(p_job.actor || p_job.request_id)
        then 'S-format|suspicious|actor or request id is too long or has control characters'
      when p_job.priority not between 0 and 9 or p_job.generation not between 0 and 1000000
        then 'S-format|suspicious|priority is 0 to 9, generation 0 at first'
      when p_job.available_at not between 0 and 72057594037927936 or p_job.expires_at not between 0 and 72057594037927936
        then 'S-format|suspicious|available_at or expires_at is out of range'
      when encode(sha256(p_job.payload), 'hex') <> p_job.payload_sha256
        then 'S-digest|suspicious|the payload has another digest'
      when octet_length(p_job.envelope) > 16384 or octet_length(p_job.summary) > 4096
        then 'S-limit|suspicious|envelope or summary is too large'
      when not (p_job.resources = '{}' and p_job.targets = '{}' and p_job.artifacts = '{}')
        and benteng.misshapen(p_job.resources, p_job.targets, p_job.artifacts) is not null
        then benteng.misshapen(p_job.resources, p_job.targets, p_job.artifacts)
      when p_job.origin <> p_asks
        then 'S-origin|suspicious|the job names another origin than the one that asks'
      when p_name is null
        then 'S-type||the store does not know this job type'
      when p_sha256 <> p_job.policy_sha256
        then 'S-policy||the job was judged by another policy than the store''s. Apply the policy, try again'
      when p_tier <> p_job.tier
        then 'S-policy|suspicious|the job has another tier than its type'
      when octet_length(p_job.payload) > p_payload_bytes_max
        then format('S-limit||the payload is larger than %s bytes', p_payload_bytes_max)
    end
$$;

drop function if exists benteng.judge(benteng_v1.entrance[], text[], timestamptz);
create function benteng.judge(p_jobs benteng_v1.entrance[], p_origins text[], p_now timestamptz)
returns table (ord integer, generation bigint, parent uuid, resources text[], code text, state text)
language sql stable
as $$
  select
    i.ordinality::integer, i.generation, i.parent, i.resources,
    coalesce(
      benteng.fault((
          i.id, i.type, i.tier, i.priority, i.available_at, i.expires_at, i.generation, i.origin, i.actor, i.request_id,
          i.payload, i.payload_sha256, i.operation_key, i.envelope, i.policy_sha256, i.artifacts, i.targets, i.resources,
          i.summary, i.entry, i.rule, i.reason, i.parent, i.unfit)::benteng_v1.entrance,
        p_origins[least(i.ordinality, cardinality(p_origins))], t.name, t.sha256, t.tier, t.payload_bytes_max),
      case
        when not (
            select exists (                                  -- asked once, and then mostly all
              select from benteng.speech(case when cardinality(p_origins) = 1 then p_origins[1] end, '*', '*')))
          and not exists (select from benteng.speech(i.origin, i.actor, i.type))
          then 'S-speaks|suspicious|the origin may not enqueue this type for this actor'
        when c.mode = 'halt'
          then format('S-control||%s %s is halted: %s', c.scope, c.name, c.reason)
        when i.entry not in ('ready', 'scheduled', 'held', 'quarantined')
          then 'S-format|suspicious|a job enters ready, held or quarantined'
      end),
    case
      when i.entry = 'quarantined' or c.mode = 'divert' then 'quarantined'
      when i.entry = 'held' or c.mode = 'hold' then 'held'
      when benteng.moment(least(i.available_at, 72057594037927936)) > p_now then 'scheduled'
      else 'ready'
    end
  from unnest(p_jobs) with ordinality i
  left join benteng.job_type t on t.name = i.type
  left join lateral (
    select c.scope, c.name, c.mode, c.reason
    from benteng.control c
    where (select exists (select from benteng.control x where x.mode <> 'open'))    -- asked once, and then mostly all
      and c.mode <> 'open'
      and ((c.scope = 'type' and c.name = t.name)
        or (c.scope = 'pool' and c.name = t.pool)
        or (c.scope = 'origin' and c.name = i.origin))
    order by array_position(array['halt', 'divert', 'hold'], c.mode), c.scope
    limit 1) c on true
$$;
drop function if exists benteng.may_speak(text, text, text);                   -- what judge was made with before
