-- tighten, loosen, controls: the switches.
--
-- Promise   after `tighten` returned true, no claim commits a start that the switch forbids: claims hold control in row share
--           mode to their commit, and this verb holds it exclusively. When a claim under way does not end in time the switch is
--           thrown all the same, and false says that this one claim may still start something.
-- Locks     control in exclusive mode, with a short lock_timeout: new claims queue behind it. A table lock on an owner-only
--           table and not an advisory lock: any login may squat an advisory lock.
create or replace function benteng_v1.tighten(p_scope text, p_name text, p_mode text, p_reason text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
  v_me       benteng.login := benteng.me('keeper', 'operator');
  v_is_quiet boolean := true;
begin
  begin
    lock table benteng.control in exclusive mode;
  exception when lock_not_available then
    v_is_quiet := false;
  end;
  if benteng.rank_of(p_mode) < benteng.rank_of(benteng.mode_of(p_scope, p_name)) then
    perform benteng.break_rule('S-tighten', 'the switch is stricter already', 'loosen it with a reason, if that is meant');
  end if;
  perform benteng.throw_switch('tightened', p_scope, p_name, p_mode, p_reason);
  return v_is_quiet;
end $$;

-- loosen: set a switch to a looser mode, and wake what slept behind it.
create or replace function benteng_v1.loosen(p_scope text, p_name text, p_mode text, p_reason text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
  v_me     benteng.login := benteng.me('operator');
  v_reason text := benteng.needed(p_reason);
begin
  lock table benteng.control in exclusive mode;
  if benteng.rank_of(p_mode) >= benteng.rank_of(benteng.mode_of(p_scope, p_name)) then
    perform benteng.break_rule('S-loosen', 'the switch is not stricter than that', 'tighten it, if that is meant');
  end if;
  if not benteng.is_dev() and exists (
      select from benteng.job_type t
      where t.tier = 'high'
        and (p_scope = 'origin' or (p_scope = 'type' and t.name = p_name) or (p_scope = 'pool' and t.pool = p_name))) then
    perform benteng.need_action('the switch covers a HIGH job type: loosening it needs another person''s vote');
  end if;
  perform benteng.throw_switch('loosened', p_scope, p_name, p_mode, v_reason);
  perform benteng.sweep(1000, benteng.now());
end $$;

create or replace function benteng_v1.controls()
returns table (scope text, name text, mode text, reason text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_me benteng.login := benteng.me('operator');
begin
  return query
  select c.scope, c.name, c.mode, c.reason
  from benteng.control c
  where c.mode <> 'open'
  order by c.scope, c.name;
end $$;

create or replace function benteng.rank_of(p_mode text) returns integer
language sql immutable
as $$ select array_position(array['open', 'hold', 'divert', 'halt'], p_mode) $$;

create or replace function benteng.mode_of(p_scope text, p_name text) returns text
language sql stable
as $$
  select coalesce((select c.mode from benteng.control c where c.scope = p_scope and c.name = left(p_name, 512)), 'open')
$$;

create or replace function benteng.throw_switch(p_event text, p_scope text, p_name text, p_mode text, p_reason text)
returns void
language plpgsql
as $$
declare
  v_now  timestamptz := benteng.now();
  v_name text := left(p_name, 512);
  v_was  text := benteng.mode_of(p_scope, p_name);
begin
  insert into benteng.control as c (scope, name, mode, reason, at)
  values (p_scope, v_name, p_mode, left(p_reason, 512), v_now)
  on conflict (scope, name) do update
  set mode = excluded.mode,
      reason = excluded.reason,
      at = excluded.at;
  perform benteng.say(v_now, p_event, left(p_reason, 512), format('%s %s: %s -> %s', p_scope, v_name, v_was, p_mode));
end $$;
