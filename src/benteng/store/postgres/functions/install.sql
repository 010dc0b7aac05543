-- install: make the installation row, once.
--
-- Promise   the environment is fixed when the ledger is made. In `dev` every origin speaks for every actor on every target:
--           loud defaults, listed by health. In `prod` nobody may do anything that nobody allowed.
create or replace function benteng.install(p_environment text) returns void
language plpgsql
set client_min_messages = warning
as $$
declare
  v_key bytea := sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
begin
  if exists (select from benteng.installation) then
    return;
  end if;
  insert into benteng.installation (environment, pad_inner, pad_outer)
  values (p_environment, benteng.pad(v_key, 54), benteng.pad(v_key, 92));       -- 0x36 and 0x5c: RFC 2104
  if p_environment = 'dev' then
    insert into benteng.speaks (origin, actor, type) values ('*', '*', '*');
    insert into benteng.access (actor, type, target) values ('*', '*', '*');
  end if;
end $$;

-- pad: a 32 byte key, filled up with zeros to 64, each byte xor p_byte (RFC 2104).
create or replace function benteng.pad(p_key bytea, p_byte integer) returns bytea
language plpgsql immutable
as $$
declare
  v_pad bytea := decode(repeat(lpad(to_hex(p_byte), 2, '0'), 64), 'hex');
begin
  for v_at in 0 .. 31 loop
    v_pad := set_byte(v_pad, v_at, get_byte(p_key, v_at) # p_byte);
  end loop;
  return v_pad;
end $$;
