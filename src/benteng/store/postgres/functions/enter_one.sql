-- enter_one: the straight way in for one job, because most callers bring one, and then what counts is each statement's beginning.
--
-- Promise   true: all that enter would have written for a list of this one job, which entered ready. False: nothing is written,
--           because something about it is not as with most jobs, and enter says what. The judgement is the same (fault); the rows
--           are compared by tests/store/postgres/test_enter_one.py, for every column and all that a field may say.
-- Nothing   of no job all runs, on nothing: see admit.
-- Locks     as enter.
create or replace function benteng.enter_one(p_job benteng_v1.entrance, p_me benteng.login, p_now timestamptz) returns boolean
language plpgsql
as $$
declare
  v_name     text;
  v_sha256   text;
  v_tier     text;
  v_bytes    integer;
  v_is_quiet boolean;
  v_is_usual boolean;
  v_is_freed boolean;
  v_read     bigint := pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_ready'));
  v_key      bytea;
  v_digest   bytea;
  v_seq      bigint;
begin
  if p_job.entry <> 'ready' or p_job.rule <> '' or p_job.reason <> '' or p_job.parent is not null or p_job.resources <> '{}'
    or p_job.generation <> 0 or p_job.available_at <> 0 or p_job.expires_at <> 0
  then
    return false;
  end if;
  select
    t.name, t.sha256, t.tier, t.payload_bytes_max,
    case
      when benteng.stands_dead() then benteng.is_quiet_lately(t.name)
      else not exists (select from benteng.last_in_line(t.name))
    end,
    exists (select from benteng.room(p_me.name, p_me.jobs_max))
      and exists (select from benteng.speech(p_job.origin, p_job.actor, p_job.type))
      and not exists (select from benteng.control c where c.mode <> 'open')
  into v_name, v_sha256, v_tier, v_bytes, v_is_quiet, v_is_usual
  from benteng.job_type t
  where t.name = p_job.type;
  if v_is_quiet then
    perform benteng.pass_tail(pg_stat_get_xact_tuples_returned(to_regclass('benteng.job_ready')) - v_read);
  end if;
  v_is_usual := coalesce(v_is_usual and benteng.fault(p_job, p_me.name, v_name, v_sha256, v_tier, v_bytes) is null, false);
  if not v_is_usual and not (p_job is null) then
    return false;
  end if;

  v_key := decode(p_job.operation_key, 'hex');
  v_digest := decode(p_job.payload_sha256, 'hex');
  insert into benteng.operation (
    seq, job_id, key, epoch, state, payload_sha256, type, name, tier, origin, actor, request_id, priority, policy_sha256,
    artifacts, targets, resources, summary, admitted_at)
  select
    nextval('benteng.admission'), p_job.id, v_key, 1, 'reserved', v_digest, p_job.type, split_part(p_job.type, '@', 1),
    p_job.tier, p_job.origin, p_job.actor, p_job.request_id, p_job.priority, p_job.policy_sha256, p_job.artifacts,
    p_job.targets, p_job.resources, p_job.summary, p_now
  where v_is_usual
  on conflict do nothing
  returning seq into v_seq;
  if v_seq is null and not (p_job is null) then
    return false;
  end if;
  with entered as (
    insert into benteng.job (
      id, seq, state, type, tier, priority, due_at, origin, actor, request_id, payload, payload_sha256, operation_key,
      envelope, policy_sha256, artifacts, targets, resources, summary, admitted_at)
    select
      p_job.id, v_seq, 'ready', p_job.type, p_job.tier, p_job.priority, p_now, p_job.origin, p_job.actor, p_job.request_id,
      p_job.payload, v_digest, v_key, p_job.envelope, p_job.policy_sha256, p_job.artifacts, p_job.targets, p_job.resources,
      p_job.summary, p_now
    where v_seq is not null
  )
  insert into benteng.audit (
    at, event, job_id, type, policy_sha256, state_to, origin, actor, request_id, operation_key, payload_sha256, summary,
    resources)
  select
    p_now, 'admitted', p_job.id, p_job.type, p_job.policy_sha256, 'ready', p_job.origin, p_job.actor, p_job.request_id,
    v_key, v_digest, p_job.summary, p_job.resources
  where v_seq is not null
  returning exists (select from benteng.operation f where f.freed) into v_is_freed;
  if v_is_freed then
    perform benteng.take_freed(array[v_seq]);
  end if;
  if v_is_quiet then
    perform benteng.ring(array[p_job.type]);
  end if;
  return v_seq is not null;
end $$;
