-- register: a worker's sign of life.
--
-- Promise   facts of host and process, kept for people; no decision is made from them. A worker speaks for its login's pool only.
create or replace function benteng_v1.register(
  p_worker text, p_pool text, p_host text, p_boot_id text, p_pid bigint, p_version text, p_types text)
returns table (now bigint, name text, sha256 text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  v_me     benteng.login := benteng.me('consumer');
  v_now    timestamptz := benteng.now();
  v_is_new boolean;
begin
  if p_pool <> v_me.pool then
    perform benteng.break_rule('S-pool', 'the worker is of another pool than its login', 'use the login of that pool');
  end if;
  insert into benteng.worker as w (worker, pool, host, boot_id, pid, version, types, registered_at, seen_at)
  values (left(p_worker, 256), p_pool, left(p_host, 256), left(p_boot_id, 256), p_pid, left(p_version, 256),
    left(p_types, 65536), v_now, v_now)
  on conflict (pool, worker) do update
  set host = excluded.host,
      boot_id = excluded.boot_id,
      pid = excluded.pid,
      version = excluded.version,
      types = excluded.types,
      seen_at = excluded.seen_at
  returning w.registered_at = w.seen_at into v_is_new;
  if v_is_new then
    perform benteng.say(v_now, 'registered', p_detail => format('pool %s, version %s', p_pool, left(p_version, 256)),
      p_worker => left(p_worker, 256));
  end if;
  return query
  select benteng.instant(v_now), t.name, t.sha256
  from (select) one
  left join benteng.job_type t on t.pool = v_me.pool
  order by t.name;
end $$;
