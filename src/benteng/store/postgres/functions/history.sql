-- same_history: whether fences may be drawn in this database.
--
-- Promise   no claim starts anything in a history other than the one that the fences belong to. The timeline is that of the
--           WAL that is written now, not of the last checkpoint: a promoted server is noticed at its first claim.
create or replace function benteng.same_history() returns void
language plpgsql
as $$
declare
  v_known benteng.history;
begin
  select h.* into v_known from benteng.history h;
  if v_known.system_identifier <> benteng.system_identifier() or v_known.timeline <> benteng.timeline() then
    raise exception 'the database was promoted or restored: claims wait until the fence epoch is raised. Run: benteng restore --fence-epoch'
      using errcode = 'BT003';
  end if;
  if v_known.claims_from > benteng.now() then
    raise exception 'the database was restored: claims wait until every lease that may have been lost has ended'
      using errcode = 'BT003';
  end if;
end $$;

create or replace function benteng.system_identifier() returns text
language sql volatile
as $$ select c.system_identifier::text from pg_control_system() c $$;

create or replace function benteng.timeline() returns text
language sql volatile
as $$ select left(pg_walfile_name(pg_current_wal_lsn()), 8) $$;

-- follow_history: what the keeper does about it. Class D2 goes on by itself, everything else waits for a person.
--
-- Promise   it notes in which server the identifier was found right: a claim there need not read the server's control file for it.
--           On the timeline it knows it notes whom commits wait for. On another one it raises the epoch only when this server
--           is, by its cluster_name, one that every acknowledged commit had waited for: then nothing acknowledged is missing.
-- Locks     the history row, when there is something to write.
create or replace function benteng.follow_history() returns void
language plpgsql
as $$
declare
  v_known    benteng.history;
  v_standbys text := case
    when current_setting('fsync') = 'on' and current_setting('synchronous_commit') in ('on', 'remote_apply')
      then current_setting('synchronous_standby_names')
    else ''
  end;
begin
  select h.* into v_known from benteng.history h;
  if v_known.system_identifier <> benteng.system_identifier() then
    return;
  end if;
  if v_known.compared_at <> pg_postmaster_start_time() then
    update benteng.history h
    set compared_at = pg_postmaster_start_time()
    where h.one = (select x.one from benteng.history x for update skip locked);   -- another keeper is noting it: nobody waits
  end if;
  if v_known.timeline = benteng.timeline() then
    if v_known.standbys <> v_standbys then
      update benteng.history h set standbys = v_standbys;
    end if;
  elsif benteng.waits_for(v_known.standbys, current_setting('cluster_name')) then
    perform benteng.raise_epoch('promoted: commits had waited for this standby', 0, 0);
  end if;
end $$;

-- waits_for: whether each commit waits for the standby p_name, whatever others do. FIRST 1 (a, b) is no promise of b.
create or replace function benteng.waits_for(p_standbys text, p_name text) returns boolean
language plpgsql immutable
as $$
declare
  v_names text[] := regexp_split_to_array(
    lower(replace(regexp_replace(p_standbys, '^\s*((first|any)\s+)?(\d+\s*)?\(|\)\s*$', '', 'gi'), '"', '')), '\s*,\s*');
  v_count integer := coalesce(substring(p_standbys from '^\s*(?:[a-zA-Z]+\s+)?(\d+)\s*\(')::integer, 1);
begin
  return p_name <> ''
    and lower(p_name) = any (select btrim(n) from unnest(v_names) n)
    and v_count >= cardinality(v_names);
end $$;

-- raise_epoch: draw every later fence above any that was ever issued, and take this history for the right one.
--
-- Promise   an epoch is a minute since 2026 and has 2^26 numbers: whatever a lost history issued, it issued fewer in a minute,
--           so also a second restore to the time before the first one repeats no number. Fences stay below 2^53.
-- Locks     control in exclusive mode (waits for claims under way), the history row.
create or replace function benteng.raise_epoch(p_reason text, p_above bigint, p_wait_seconds float8) returns bigint
language plpgsql
as $$
declare
  v_now   timestamptz := benteng.now();
  v_last  bigint;
  v_epoch bigint;
begin
  lock table benteng.control in exclusive mode;
  perform 1 from benteng.history h for update;
  select f.last_value into v_last from benteng.fence f;
  v_epoch := greatest(
    (v_last >> 26) + 1, (p_above >> 26) + 1,
    floor(extract(epoch from v_now - timestamptz '2026-01-01 00:00:00+00') / 60)::bigint);
  perform setval('benteng.fence', v_epoch << 26);
  update benteng.history h
  set system_identifier = benteng.system_identifier(),
      timeline = benteng.timeline(),
      epoch = v_epoch,
      standbys = '',
      claims_from = v_now + make_interval(secs => p_wait_seconds);
  perform benteng.say(v_now, 'restored', p_reason, format('timeline %s, fences above %s', benteng.timeline(), v_epoch << 26));
  return v_epoch << 26;
end $$;

-- restore: what a person does after a failover or a restore that may have lost something. No facet has it: it is for the
-- owner's members, as migrations are.
--
-- Promise   attempts that run keep their job for a whole lease from now: no lease that a worker was ever told outlasts that, so
--           nobody else starts before. Claims wait as long, because a lost claim may have a running attempt that nobody knows.
--           What does not come back then is lost: by its effect taken up again, or uncertain.
-- Locks     as raise_epoch, then all running jobs by id.
create or replace function benteng.restore(p_reason text, p_above bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_wait  float8 := coalesce((select max(t.lease_seconds) from benteng.job_type t), 0);
  v_fence bigint;
begin
  v_fence := benteng.raise_epoch(benteng.needed(p_reason), greatest(p_above, 0), v_wait);
  perform 1 from benteng.job j where j.state = 'running' order by j.id for update;
  update benteng.job j
  set lease_until = greatest(j.lease_until, benteng.now() + make_interval(secs => t.lease_seconds))
  from benteng.job_type t
  where j.state = 'running'
    and t.name = j.type;
  return v_fence;
end $$;
