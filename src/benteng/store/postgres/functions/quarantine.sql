-- classify, discard, resolve: what a person does with a quarantined job. One audit record a move.
--
-- Promise   a discarded job is a state, never a delete; an uncertain one must be resolved. Resolved: completed, or discarded with
--           its key freed; its resources open and the next in line is woken. What loosens at HIGH needs an Action.
-- Locks     quarantine rows by id, resources by key, operations.
create or replace function benteng_v1.classify(p_id uuid, p_reason text, p_note text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me  benteng.login := benteng.me('operator');
  v_row benteng.quarantine := benteng.apart(p_id);
begin
  if 'uncertain' in (v_row.reason, p_reason) then
    perform benteng.break_rule('S-uncertain', 'uncertain is neither given nor taken away', 'resolve the job instead');
  end if;
  update benteng.quarantine q set classified = p_reason where q.id = p_id;
  perform benteng.note_apart(v_row, 'classified', '', p_reason, benteng.needed(p_note));
end $$;

create or replace function benteng_v1.discard(p_ids uuid[], p_reason text, p_free boolean)
returns table (job_id uuid, state text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_me     benteng.login := benteng.me('operator');
  v_reason text := benteng.needed(p_reason);
  v_row    benteng.quarantine;
  v_kept   text;
begin
  perform 1 from benteng.quarantine q where q.id = any (p_ids) order by q.id for update;
  if exists (select from benteng.quarantine q where q.id = any (p_ids) and q.reason = 'uncertain') then
    perform benteng.break_rule('S-uncertain', 'one of the jobs is uncertain', 'resolve it: did it happen or not?');
  end if;
  if p_free and exists (select from benteng.quarantine q where q.id = any (p_ids) and q.tier not in ('low', 'medium')) then
    perform benteng.need_action('one of the jobs is of tier HIGH: freeing its operation needs another person''s vote');
  end if;
  for v_row in
    select q.*
    from benteng.quarantine q
    join unnest(p_ids) with ordinality g (id, ord) on g.id = q.id
    order by g.ord
  loop
    continue when job_id = v_row.id;
    v_kept := case when p_free or v_row.starts = 0 then 'freed' else 'kept' end;
    perform benteng.end_apart(v_row, v_kept, 'discarded', v_reason);
    perform benteng.note_apart(v_row, 'discarded', 'discarded', v_reason, 'operation ' || v_kept);
    job_id := v_row.id;
    state := 'discarded';
    return next;
  end loop;
end $$;

create or replace function benteng_v1.resolve(p_id uuid, p_happened boolean, p_reason text) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me     benteng.login := benteng.me('operator');
  v_reason text := benteng.needed(p_reason);
  v_row    benteng.quarantine := benteng.apart(p_id);
  v_ended  text := case when p_happened then 'completed' else 'discarded' end;
  v_keys   text[];
begin
  if v_row.reason <> 'uncertain' then
    perform benteng.break_rule('S-resolve', 'only an uncertain job is resolved', 'discard or replay it');
  end if;
  perform benteng.alone_at_high(v_row.tier, 'resolving');
  perform 1 from benteng.resource r where r.key = any (v_row.resources) order by r.key for update;
  perform benteng.end_apart(v_row, case when p_happened then 'completed' else 'freed' end, v_ended, v_reason);
  perform benteng.note_apart(v_row, 'resolved', v_ended, v_reason,
    case when p_happened then 'it happened' else 'it did not happen' end);
  with opened as (
    update benteng.resource r
    set holder = null,
        closed = false
    where r.key = any (v_row.resources)
      and r.holder = p_id
    returning r.key)
  select array_agg(o.key) into v_keys from opened o;
  perform benteng.wake(v_keys, benteng.now());
  return v_ended;
end $$;

-- apart: the row of a quarantined job, locked; an error when there is none.
create or replace function benteng.apart(p_id uuid) returns benteng.quarantine
language plpgsql
as $$
declare
  v_row benteng.quarantine;
begin
  select q.* into v_row from benteng.quarantine q where q.id = p_id for update;
  if not found then
    perform benteng.break_rule('S-unknown', 'no such job is in quarantine', 'look for it with: benteng quarantine list');
  end if;
  return v_row;
end $$;

create or replace function benteng.end_apart(p_row benteng.quarantine, p_kept text, p_ended text, p_reason text) returns void
language plpgsql
as $$
declare
  v_now timestamptz := benteng.now();
begin
  delete from benteng.quarantine q where q.id = p_row.id;
  with recorded as (
    update benteng.operation o
    set state = p_kept,
        freed = p_kept = 'freed',
        ended = p_ended,
        error = p_reason,
        keep_until = v_now + make_interval(secs => t.operation_keep_seconds),
        finished_at = v_now
    from benteng.job_type t
    where o.job_id = p_row.id
      and t.name = o.type
    returning o.seq, o.keep_until
  )
  insert into benteng.retention (until, seqs)
  select d.keep_until, array[d.seq]
  from recorded d
  where d.keep_until is not null;
end $$;

create or replace function benteng.note_apart(
  p_row benteng.quarantine, p_event text, p_state_to text, p_reason text, p_detail text, p_state_from text default 'quarantined')
returns void
language sql
as $$
  insert into benteng.audit (
    at, event, job_id, type, policy_sha256, state_from, state_to, attempt, fence, origin, actor, request_id, operation_key,
    payload_sha256, summary, resources, reason, detail)
  select
    benteng.now(), p_event, p_row.id, p_row.type, p_row.policy_sha256,
    case when p_state_to = '' then '' else p_state_from end, p_state_to,
    p_row.attempts, p_row.fence, p_row.origin, p_row.actor, p_row.request_id, p_row.operation_key, p_row.payload_sha256,
    p_row.summary, p_row.resources, p_reason, p_detail
$$;

create or replace function benteng.alone_at_high(p_tier text, p_what text) returns void
language plpgsql
as $$
begin
  if p_tier not in ('low', 'medium') and not benteng.is_dev() then
    perform benteng.need_action('the job is of tier HIGH: ' || p_what || ' it needs another person''s vote');
  end if;
end $$;
