-- show: everything about one job, wherever it is now.
--
-- Promise   reads only, and no more than a few rows and 10,000 index entries for each type of the pool: `ahead` counts no
--           further. The audit part: see audit_page.sql.
create or replace function benteng_v1.show(p_id uuid)
returns table (
  job_id uuid, type text, tier text, priority integer, available_at bigint, expires_at bigint, generation integer,
  origin text, actor text, request_id text, payload bytea, payload_sha256 text, operation_key text, envelope bytea,
  policy_sha256 text, artifacts text[], targets text[], resources text[], summary text,
  state text, attempts integer, crashes integer, handbacks integer, snoozes integer, starts integer, admitted_at bigint,
  due_at bigint, finished_at bigint, now bigint, pool text, reason text, classified text, rule text, error text, fence bigint,
  worker text, lease_until bigint, cancel_asked boolean, waits_for text, progress text, parent uuid, operation text, epoch integer,
  result bytea, control_scope text, control_name text, control_mode text, control_reason text, worker_seen_at bigint,
  ahead bigint, resource_views text, audit text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_me benteng.login := benteng.me('operator');
begin
  return query
  select
    o.job_id, o.type, coalesce(j.tier, q.tier, o.tier), coalesce(j.priority, q.priority, o.priority)::integer,
    coalesce(benteng.instant(coalesce(j.available_at, q.available_at)), 0),
    coalesce(benteng.instant(coalesce(j.expires_at, q.expires_at)), 0),
    coalesce(j.generation, q.generation, o.generation), o.origin, o.actor, coalesce(j.request_id, q.request_id, o.request_id),
    coalesce(j.payload, q.payload, ''), encode(o.payload_sha256, 'hex'), encode(o.key, 'hex'),
    coalesce(j.envelope, q.envelope, ''), coalesce(j.policy_sha256, q.policy_sha256, o.policy_sha256),
    coalesce(j.artifacts, q.artifacts, o.artifacts), coalesce(j.targets, q.targets, o.targets), r.keys,
    coalesce(j.summary, q.summary, o.summary),
    coalesce(j.state, case when q.id is not null then 'quarantined' end, o.ended),
    coalesce(j.attempts, q.attempts, o.attempts), coalesce(j.crashes, q.crashes, o.crashes),
    coalesce(j.handbacks, q.handbacks, 0), coalesce(j.snoozes, q.snoozes, 0), coalesce(j.starts, q.starts, o.starts),
    benteng.instant(o.admitted_at), coalesce(benteng.instant(j.due_at), 0), coalesce(benteng.instant(o.finished_at), 0),
    benteng.instant(benteng.now()), coalesce(t.pool, ''), q.reason, coalesce(q.classified, ''),
    coalesce(j.rule, q.rule, o.rule), coalesce(j.last_error, q.error, o.error), coalesce(j.fence, q.fence, o.fence),
    case when j.state = 'running' then coalesce(j.worker, '') else '' end, coalesce(benteng.instant(j.lease_until), 0),
    coalesce(j.cancel_asked, false), coalesce(j.waits_for, ''), coalesce(j.progress, ''), o.parent, o.state::text, o.epoch, o.result,
    f.scope, f.name, f.mode, f.reason,
    coalesce((select benteng.instant(max(w.seen_at)) from benteng.worker w where w.pool = t.pool), 0),
    case
      when j.state = 'ready' then (
        select count(*)
        from benteng.job_type u
        cross join lateral (
          select
          from benteng.job a
          where a.type = u.name
            and a.state = 'ready'
            and (a.priority, a.due_at, a.seq) < (j.priority, j.due_at, j.seq)
          limit 10000) before
        where u.pool = t.pool)
      else 0
    end,
    (select jsonb_agg(jsonb_build_object(
        'key', k.key, 'holder', coalesce(x.holder::text, ''), 'fence', coalesce(x.fence, 0),
        'closed', coalesce(x.closed, false), 'waiting', (
          select count(*) from benteng.job w where w.waits_for = k.key and w.state = 'blocked')) order by k.ord)
     from unnest(r.keys) with ordinality k (key, ord)
     left join benteng.resource x on x.key = k.key)::text,
    (select jsonb_agg(to_jsonb(a) order by a.id) from (
      select a.* from benteng.audit_row a where a.job_id = p_id order by a.id desc limit 200) a)::text
  from benteng.operation o
  left join benteng.job j on j.id = o.job_id
  left join benteng.quarantine q on q.id = o.job_id
  left join benteng.job_type t on t.name = o.type
  cross join lateral (select coalesce(j.resources, q.resources, o.resources)) r (keys)
  cross join lateral benteng.facts(o.type, o.actor, o.origin, '{}', '{}') f
  where o.job_id = p_id;
end $$;
