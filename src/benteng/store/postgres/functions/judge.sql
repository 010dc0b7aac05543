-- judge: what the gate cannot be trusted with, or cannot see in time. The first rule that a job breaks counts.
--
-- Promise   pool, tier and limits come from job_type, switches from control, the origin from the authenticated caller.
--           code: null, or `rule|suspicious|reason`. state: where the job would enter, the strictest of what its gate, the
--           switches and its due time ask for.
-- Locks     none; the caller has locked control in row share mode.
create or replace function benteng.is_name(p_text text) returns boolean
language sql immutable
as $$
  select octet_length(p_text) <= 256
     and p_text !~ '[\u0001-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]'
$$;

-- A digest in hexadecimal. Not by `{64}`: a counted repetition costs ten times as much as the length and a class.
create or replace function benteng.is_digest(p_text text) returns boolean
language sql immutable
as $$
  select octet_length(p_text) = 64 and p_text !~ '[^0-9a-f]'
$$;

create or replace function benteng.judge(p_jobs benteng_v1.entrance[], p_origins text[], p_now timestamptz)
returns table (ord integer, code text, state text)
language sql stable
as $$
  select
    i.ordinality::integer,
    case
      when num_nulls(
          i.type, i.tier, i.priority, i.available_at, i.expires_at, i.generation, i.origin, i.actor, i.request_id, i.payload,
          i.payload_sha256, i.operation_key, i.envelope, i.policy_sha256, i.artifacts, i.targets, i.resources, i.summary,
          i.entry, i.rule, i.reason, i.unfit) > 0
        then 'S-format|suspicious|a field is missing'
      when i.unfit or i.id is null or i.type !~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*@[1-9][0-9]{0,3}$'
        or not benteng.is_digest(i.operation_key)
        then 'S-format|suspicious|id, type or operation key is not well formed'
      when not (benteng.is_name(i.origin) and benteng.is_name(i.actor) and benteng.is_name(i.request_id)
        and benteng.is_name(i.policy_sha256))
        then 'S-format|suspicious|origin, actor or request id is too long or has control characters'
      when i.priority not between 0 and 9 or i.generation not between 0 and 1000000
        then 'S-format|suspicious|priority is 0 to 9, generation 0 at first'
      when i.available_at not between 0 and 72057594037927936 or i.expires_at not between 0 and 72057594037927936
        then 'S-format|suspicious|available_at or expires_at is out of range'
      when encode(sha256(i.payload), 'hex') <> i.payload_sha256
        then 'S-digest|suspicious|the payload has another digest'
      when octet_length(i.envelope) > 16384 or octet_length(i.summary) > 4096
        then 'S-limit|suspicious|envelope or summary is too large'
      when cardinality(i.resources) > 16
        then 'S-resources||more than 16 resources. Fan out: one job each'
      when i.resources is distinct from array(select distinct u.k collate "C" from unnest(i.resources) u (k) order by 1)
        or exists (select from unnest(i.resources) u (k) where u.k is null or u.k !~ '^[^:]+:.' or not benteng.is_name(u.k))
        then 'S-resources|suspicious|resources are sorted, distinct `kind:value` keys'
      when cardinality(i.targets) + cardinality(i.artifacts) > 256 or cardinality(i.artifacts) % 2 <> 0
        or exists (select from unnest(i.targets || i.artifacts) u (n) where u.n is null or not benteng.is_name(u.n))
        then 'S-format|suspicious|targets or artifacts are too many or not well formed'
      when i.origin <> p_origins[i.ordinality]
        then 'S-origin|suspicious|the job names another origin than the one that asks'
      when t.name is null
        then 'S-type||the store does not know this job type'
      when t.sha256 <> i.policy_sha256
        then 'S-policy||the job was judged by another policy than the store''s. Apply the policy, try again'
      when t.tier <> i.tier
        then 'S-policy|suspicious|the job has another tier than its type'
      when octet_length(i.payload) > t.payload_bytes_max
        then format('S-limit||the payload is larger than %s bytes', t.payload_bytes_max)
      when not exists (select from benteng.speech(p_origins[i.ordinality], i.actor, i.type))
        then 'S-speaks|suspicious|the origin may not enqueue this type for this actor'
      when c.mode = 'halt'
        then format('S-control||%s %s is halted: %s', c.scope, c.name, c.reason)
      when i.entry not in ('ready', 'scheduled', 'held', 'quarantined')
        then 'S-format|suspicious|a job enters ready, held or quarantined'
    end,
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
    where c.mode <> 'open'
      and ((c.scope = 'type' and c.name = t.name)
        or (c.scope = 'pool' and c.name = t.pool)
        or (c.scope = 'origin' and c.name = p_origins[i.ordinality]))
    order by array_position(array['halt', 'divert', 'hold'], c.mode), c.scope
    limit 1) c on true
  order by i.ordinality
$$;
drop function if exists benteng.may_speak(text, text, text);                   -- what judge was made with before
