-- turn: settle, then claim, in one transaction and one round trip.
--
-- Promise   as settle and claim; all of it or nothing. When the claim fails, the settlements stay: it is undone alone.
-- Locks     control in row share mode, first; then as settle; then jobs and resources with skip locked.
-- Order     the settlements may hold resource rows, so the claim behind them waits for nothing: a job whose resource row is in
--           somebody's hands stays ready for the next claim. The sketch forbade resources here, because its claim waited.
create or replace function benteng_v1.turn(
  p_settlements benteng_v1.settlement[], p_successors benteng_v1.entrance[], p_n bigint, p_accepts text[], p_worker text,
  p_connects bigint[] default '{}', p_refused bigint[] default '{}',
  p_ids uuid[] default '{}', p_fences bigint[] default '{}', p_tokens text[] default '{}', p_results bytea[] default '{}')
returns table (
  settled_id uuid, settled_state text, settled_reason text,
  job_id uuid, type text, tier text, priority integer, available_at bigint, expires_at bigint, generation integer,
  origin text, actor text, request_id text, payload bytea, payload_sha256 text, operation_key text, envelope bytea,
  policy_sha256 text, artifacts text[], targets text[], resources text[], summary text,
  attempt integer, crashes integer, handbacks integer, snoozes integer, alone boolean,
  fence bigint, token text, lease_seconds float8, now bigint,
  control_scope text, control_name text, control_mode text, control_reason text, type_sha256 text, speaks boolean,
  denied text[], artifact_facts text[])
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_me benteng.login := benteng.me('consumer');
begin
  lock table benteng.control in row share mode;
  return query
  select s.job_id, s.state, s.reason, (null::benteng_v1.granted).*
  from benteng.end_attempts(
    v_me, p_settlements, p_successors, false, p_connects, p_refused, p_ids, p_fences, p_tokens, p_results) s;
  begin
    return query
    select null::uuid, null::text, null::text, g.*
    from benteng.start_jobs(v_me.pool, p_n, p_accepts, p_worker, false) g;
  exception when others then
    raise warning 'the claim of a turn failed (%)', sqlstate;  -- the next claim meets it again, and says so
  end;
end $$;
