-- lead: one active keeper.
--
-- Promise   the row is taken or renewed only by its holder, or when its lease ran out.
create or replace function benteng_v1.lead(p_name text, p_holder text, p_seconds float8) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_me  benteng.login := benteng.me('keeper');
  v_now timestamptz := benteng.now();
begin
  insert into benteng.leader as l (name, holder, lease_until)
  values (left(p_name, 256), left(p_holder, 64), v_now + make_interval(secs => least(greatest(p_seconds, 0), 3600)))
  on conflict (name) do update
  set holder = excluded.holder,
      lease_until = excluded.lease_until
  where l.holder = excluded.holder
     or l.lease_until <= v_now;
  return found;
end $$;
