-- register_artifact, allow_access: what jobs may refer to, and who may do what to what.
--
-- Promise   only in a dev installation until signed approval exists; but one person may revoke an artifact anywhere.
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
