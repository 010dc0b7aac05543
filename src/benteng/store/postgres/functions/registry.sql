-- register_artifact, allow_access, limit_depth: what jobs may refer to, who may do what to what, and how much of it.
--
-- Promise   only in a dev installation until signed approval exists; but one person may revoke an artifact anywhere, and set a
--           depth: it lets nothing run that may not.
create or replace function benteng_v1.register_artifact(
  p_id text, p_sha256 text, p_state text, p_expires_at bigint, p_reason text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me     benteng.login := benteng.me('operator');
  v_reason text := benteng.needed(p_reason);
begin
  if not benteng.is_dev() and p_state <> 'revoked' then
    perform benteng.need_action('registering an artifact needs an Action with another person''s vote, outside a dev installation');
  end if;
  insert into benteng.artifact (id, sha256, state, expires_at)
  values (left(p_id, 256), left(p_sha256, 64), p_state, p_expires_at)
  on conflict (id) do update
  set sha256 = excluded.sha256,
      state = excluded.state,
      expires_at = excluded.expires_at;
  perform benteng.say(benteng.now(), 'artifact_registered', v_reason,
    format('%s sha256:%s %s', left(p_id, 256), left(p_sha256, 64), p_state));
end $$;

create or replace function benteng_v1.allow_access(p_actor text, p_type text, p_target text, p_reason text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me     benteng.login := benteng.me('operator');
  v_reason text := benteng.needed(p_reason);
begin
  if not benteng.is_dev() then
    perform benteng.need_action('allowing access needs an Action with another person''s vote, outside a dev installation');
  end if;
  insert into benteng.access (actor, type, target)
  values (left(p_actor, 256), left(p_type, 256), left(p_target, 256))
  on conflict do nothing;
  perform benteng.say(benteng.now(), 'policy_applied', v_reason, 'access to ' || left(p_target, 256), left(p_type, 256),
    left(p_actor, 256));
end $$;

-- depths: the origins that have another depth than the default.
create or replace function benteng_v1.depths()
returns table (origin text, jobs_max bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me benteng.login := benteng.me('operator');
begin
  return query
  select l.name, l.jobs_max
  from benteng.login l
  where l.facet = 'producer'
    and l.jobs_max <> 100000
  order by l.name;
end $$;

create or replace function benteng_v1.limit_depth(p_origin text, p_jobs_max bigint, p_reason text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me     benteng.login := benteng.me('operator');
  v_reason text := benteng.needed(p_reason);
  v_was    bigint;
begin
  if p_jobs_max not between 1 and 10000000 then
    perform benteng.break_rule('S-depth', 'that is no depth of an origin', 'an origin may have 1 to 10000000 jobs');
  end if;
  select l.jobs_max into v_was from benteng.login l where l.name = p_origin and l.facet = 'producer' for update;
  if not found then
    perform benteng.break_rule('S-depth', 'there is no producer''s login of that name', 'make it: benteng roles create');
  end if;
  update benteng.login l set jobs_max = p_jobs_max where l.name = p_origin and l.facet = 'producer';
  delete from benteng.depth d where d.origin = p_origin;     -- counted anew by whoever admits next
  perform benteng.say(
    benteng.now(), 'policy_applied', v_reason, format('depth of %s: %s -> %s', p_origin, v_was, p_jobs_max));
end $$;
