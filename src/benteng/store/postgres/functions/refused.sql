-- break_rule, need_action, needed: how a verb says no. The client knows the codes (store/postgres/faults.py).
--
-- Promise   the message never holds a value; the rule is in the detail, what to do in the hint.
create or replace function benteng.break_rule(p_rule text, p_reason text, p_fix text default '') returns void
language plpgsql
as $$
begin
  raise exception using errcode = 'BT001', message = p_reason, detail = p_rule, hint = p_fix;
end $$;

create or replace function benteng.need_action(p_what text) returns void
language plpgsql
as $$
begin
  raise exception using errcode = 'BT002', message = p_what;
end $$;

create or replace function benteng.needed(p_reason text) returns text
language plpgsql
as $$
begin
  if coalesce(btrim(p_reason), '') = '' then
    perform benteng.break_rule('S-reason', 'a reason is needed', 'say why');
  end if;
  return left(p_reason, 512);
end $$;

create or replace function benteng.is_dev() returns boolean
language sql stable
as $$ select i.environment = 'dev' from benteng.installation i $$;
