-- seen, register: a worker's sign of life.
--
-- Promise   facts of host and process, kept for people; no decision is made from them. A worker speaks for its login's pool only.
--           The log gets what holds its cells once, when it is new. One that is refused is logged, and is no worker.

-- Returns the event to log: 'registered' when nobody knew the worker, else ''.
create or replace function benteng.seen(
  p_worker text, p_pool text, p_host text, p_boot_id text, p_pid bigint, p_version text, p_types text, p_now timestamptz)
returns text
language sql
as $$
  insert into benteng.worker as w (worker, pool, host, boot_id, pid, version, types, registered_at, seen_at)
  values (left(p_worker, 256), p_pool, left(p_host, 256), left(p_boot_id, 256), p_pid, left(p_version, 256),
    left(p_types, 65536), p_now, p_now)
  on conflict (pool, worker) do update
  set host = excluded.host,
      boot_id = excluded.boot_id,
      pid = excluded.pid,
      version = excluded.version,
      types = excluded.types,
      seen_at = excluded.seen_at
  returning case when w.registered_at = w.seen_at then 'registered' else '' end
$$;

create or replace function benteng_v1.register(
  p_worker text, p_pool text, p_host text, p_boot_id text, p_pid bigint, p_version text, p_types text,
  p_isolation text default '{}', p_rule text default '', p_reason text default '')
returns table (now bigint, name text, sha256 text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_me     benteng.login := benteng.me('consumer');
  v_now    timestamptz := benteng.now();
  v_event  text;
begin
  if p_pool <> v_me.pool then
    perform benteng.break_rule('S-pool', 'the worker is of another pool than its login', 'use the login of that pool');
  end if;
  if p_rule <> '' then
    v_event := 'worker_refused';
  else
    v_event := benteng.seen(p_worker, p_pool, p_host, p_boot_id, p_pid, p_version, p_types, v_now);
  end if;
  if v_event <> '' then
    insert into benteng.audit (at, event, worker, rule, reason, detail, summary)
    values (v_now, v_event, left(p_worker, 256), left(p_rule, 256), left(p_reason, 512),
      format('pool %s, version %s', p_pool, left(p_version, 256)),
      case when octet_length(p_isolation) > 4096 then '{"cut":true}' else p_isolation end);
  end if;
  return query
  select benteng.instant(v_now), t.name, t.sha256
  from (select) one
  left join benteng.job_type t on t.pool = v_me.pool
  order by t.name;
end $$;
