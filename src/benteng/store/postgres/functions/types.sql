-- types, apply_types: the reviewed policies as the ledger has them.
--
-- Promise   everything that the verbs obey is read here from the policy's canonical JSON, so that it can never differ from what
--           was reviewed, and is checked by the table's constraints. All rows of a call are applied or none.
-- Locks     job_type rows by name, then the lookout: a lease may be shorter from now on.
create or replace function benteng_v1.types()
returns setof benteng_v1.type_row
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me benteng.login := benteng.me('operator');
begin
  return query select t.name, t.policy, t.sha256 from benteng.job_type t order by t.name;
end $$;

create or replace function benteng_v1.apply_types(p_rows benteng_v1.type_row[], p_reason text) returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me      benteng.login := benteng.me('operator');
  v_reason  text := benteng.needed(p_reason);
  v_now     timestamptz;
  v_changed text[];
begin
  if exists (select from unnest(p_rows) r where encode(sha256(r.policy), 'hex') <> r.sha256) then
    perform benteng.break_rule('S-policy', 'a digest is not that of its policy', 'write the lock file anew');
  end if;
  if exists (select from unnest(p_rows) r where convert_from(r.policy, 'utf8')::jsonb ->> 'name' is distinct from r.name) then
    perform benteng.break_rule('S-policy', 'a row carries the policy of another type', 'write the lock file anew');
  end if;
  perform 1 from benteng.job_type t where t.name = any (array(select r.name from unnest(p_rows) r)) order by t.name for update;
  v_now := benteng.now();
  select array_agg(r.name order by r.ordinality)
  into v_changed
  from unnest(p_rows) with ordinality r
  left join benteng.job_type t on t.name = r.name
  where (t.sha256, t.policy) is distinct from (r.sha256, r.policy);
  if v_changed is null then
    return '{}';
  end if;
  if not benteng.is_dev() and exists (
      select
      from unnest(p_rows) r
      left join benteng.job_type t on t.name = r.name
      where r.name = any (v_changed)
        and 'high' in (coalesce(t.tier, ''), coalesce(convert_from(r.policy, 'utf8')::jsonb ->> 'tier', 'high'))) then
    perform benteng.need_action('a type is of tier HIGH: changing its policy needs another person''s vote');
  end if;

  insert into benteng.job_type as t (
    name, policy, sha256, changed_at, pool, tier, effect, closes, successors, attempts_max, crashes_max, handbacks_max,
    snoozes_max, snooze_seconds_max, backoff_seconds_min, backoff_seconds_max, lease_seconds, payload_bytes_max,
    result_bytes_max, result_keep_seconds, operation_keep_seconds)
  select
    r.name, r.policy, r.sha256, v_now, p.j ->> 'pool', p.j ->> 'tier', p.j ->> 'effect', p.j ->> 'tier' = 'high',
    array(select jsonb_array_elements_text(p.j -> 'successors')),
    (l.j ->> 'attempts_max')::integer, (l.j ->> 'crashes_max')::integer, (l.j ->> 'handbacks_max')::integer,
    (l.j ->> 'snoozes_max')::integer, (l.j ->> 'snooze_seconds_max')::float8, (l.j ->> 'backoff_seconds_min')::float8,
    (l.j ->> 'backoff_seconds_max')::float8, (l.j ->> 'lease_seconds')::float8, (l.j ->> 'payload_bytes_max')::integer,
    (l.j ->> 'result_bytes_max')::integer, (l.j ->> 'result_keep_seconds')::float8,
    (l.j ->> 'operation_keep_seconds')::float8
  from unnest(p_rows) r
  cross join lateral (select convert_from(r.policy, 'utf8')::jsonb) p (j)
  cross join lateral (select p.j -> 'limits') l (j)
  where r.name = any (v_changed)
  order by r.name
  on conflict (name) do update
  set policy = excluded.policy,
      sha256 = excluded.sha256,
      changed_at = excluded.changed_at,
      pool = excluded.pool,
      tier = excluded.tier,
      effect = excluded.effect,
      closes = excluded.closes,
      successors = excluded.successors,
      attempts_max = excluded.attempts_max,
      crashes_max = excluded.crashes_max,
      handbacks_max = excluded.handbacks_max,
      snoozes_max = excluded.snoozes_max,
      snooze_seconds_max = excluded.snooze_seconds_max,
      backoff_seconds_min = excluded.backoff_seconds_min,
      backoff_seconds_max = excluded.backoff_seconds_max,
      lease_seconds = excluded.lease_seconds,
      payload_bytes_max = excluded.payload_bytes_max,
      result_bytes_max = excluded.result_bytes_max,
      result_keep_seconds = excluded.result_keep_seconds,
      operation_keep_seconds = excluded.operation_keep_seconds;
  update benteng.lookout l set look_at = '-infinity';
  insert into benteng.audit (at, event, type, policy_sha256, reason)
  select v_now, 'policy_applied', r.name, r.sha256, v_reason
  from unnest(p_rows) with ordinality r
  where r.name = any (v_changed)
  order by r.ordinality;
  return v_changed;
end $$;
