-- replay: bring a quarantined job back, re-judged.
--
-- Promise   the same job and operation, one generation on, with a new budget; starts and fences stay counted. Refused when it is
--           uncertain or still suspicious, is not the job that was set apart, or when another job has taken its key.
-- Locks     control in row share mode, the quarantine row, new resource rows, the operation.
create or replace function benteng_v1.replay(p_job benteng_v1.entrance, p_reason text) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me     benteng.login := benteng.me('operator');
  v_reason text := benteng.needed(p_reason);
  v_row    benteng.quarantine;
  v_now    timestamptz;
  v_code   text;
  v_state  text;
  v_other  uuid;
begin
  lock table benteng.control in row share mode;
  v_row := benteng.apart((p_job).id);
  v_now := benteng.now();
  if v_row.reason = 'uncertain' then
    perform benteng.break_rule('S-uncertain', 'an uncertain job may have happened', 'resolve it first');
  end if;
  if coalesce(nullif(v_row.classified, ''), v_row.reason) = 'suspicious' then
    perform benteng.break_rule('S-suspicious', 'the job is suspicious', 'look at it, then classify it as something else');
  end if;
  perform benteng.alone_at_high(v_row.tier, 'replaying');
  if ((p_job).type, (p_job).origin, (p_job).actor, (p_job).payload, (p_job).payload_sha256, (p_job).operation_key)
    is distinct from (v_row.type, v_row.origin, v_row.actor, v_row.payload, encode(v_row.payload_sha256, 'hex'),
      encode(v_row.operation_key, 'hex')) then
    perform benteng.break_rule('S-replay', 'that is not the job in quarantine', 'replay exactly what was set apart');
  end if;
  if (p_job).generation <> v_row.generation + 1 then
    perform benteng.break_rule('S-replay', 'the generation is not the next one', 'read the job again, then replay');
  end if;
  select o.job_id into v_other
  from benteng.operation o
  where o.key = v_row.operation_key
    and o.name = split_part(v_row.type, '@', 1)
    and not o.freed
    and o.job_id <> v_row.id;
  if found then
    perform benteng.break_rule('S-replay', format('job %s has taken the operation', v_other), 'discard this one');
  end if;
  select g.code, g.state into v_code, v_state from benteng.judge(array[p_job], array[v_row.origin], v_now) g;
  if v_code is not null then
    perform benteng.break_rule(split_part(v_code, '|', 1), split_part(v_code, '|', 3), 'judge the job again, then replay');
  end if;
  if v_state = 'quarantined' then
    perform benteng.break_rule('S-control', 'a switch diverts jobs into quarantine', 'loosen it, or judge the job again');
  end if;

  insert into benteng.resource (key)
  select u.k
  from unnest((p_job).resources) u (k)
  order by u.k
  on conflict do nothing;
  update benteng.operation o
  set state = 'reserved',
      freed = false,
      generation = (p_job).generation,
      policy_sha256 = (p_job).policy_sha256,
      summary = (p_job).summary,
      artifacts = (p_job).artifacts,
      targets = (p_job).targets,
      resources = (p_job).resources,
      error = '',
      rule = ''
  where o.job_id = v_row.id;
  insert into benteng.job (
    id, seq, state, type, tier, priority, due_at, available_at, expires_at, starts, generation, fence, origin, actor, request_id,
    payload, payload_sha256, operation_key, envelope, policy_sha256, artifacts, targets, resources, parent, summary,
    admitted_at)
  values (
    v_row.id, v_row.seq, v_state, v_row.type, (p_job).tier, (p_job).priority,
    greatest(benteng.moment((p_job).available_at), v_now), benteng.moment(nullif((p_job).available_at, 0)),
    benteng.moment(nullif((p_job).expires_at, 0)), v_row.starts, (p_job).generation, v_row.fence, v_row.origin, v_row.actor,
    (p_job).request_id, v_row.payload, v_row.payload_sha256, v_row.operation_key, (p_job).envelope, (p_job).policy_sha256,
    (p_job).artifacts, (p_job).targets, (p_job).resources, v_row.parent, (p_job).summary, v_row.admitted_at);
  perform nextval('benteng.admission');                      -- the origin has one job more: see full_origins
  delete from benteng.quarantine q where q.id = v_row.id;
  perform benteng.note_apart(v_row, 'replayed', 'ready', v_reason, format('generation %s', (p_job).generation));
  if v_state <> 'ready' then                                 -- a second step of the life cycle, and so a record of its own
    perform benteng.note_apart(v_row, case v_state when 'held' then 'held' else 'replayed' end, v_state, v_reason,
      format('generation %s', (p_job).generation), 'ready');
  end if;
  return v_state;
exception when unique_violation then
  perform benteng.break_rule('S-replay', 'another job has just taken the operation', 'discard this one');
end $$;
