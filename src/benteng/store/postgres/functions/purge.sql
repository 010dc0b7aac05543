-- purge: drop what may be forgotten.
--
-- Promise   up to n rows: results past their retention, then completed operations past theirs; HIGH has none. Never the audit.
-- Locks     operations with skip locked.
create or replace function benteng_v1.purge(p_n bigint) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_me         benteng.login := benteng.me('keeper');
  v_now        timestamptz := benteng.now();
  v_n          bigint := greatest(0, least(p_n, 1000));
  v_results    bigint;
  v_operations bigint;
begin
  update benteng.operation o
  set result = null,
      result_until = null
  where o.seq in (
    select x.seq
    from benteng.operation x
    where x.result_until <= v_now
    order by x.result_until
    limit v_n
    for update skip locked);
  get diagnostics v_results = row_count;
  delete from benteng.operation o
  where o.seq in (
    select x.seq
    from benteng.operation x
    where x.keep_until <= v_now
      and x.state = 'completed'
    order by x.keep_until
    limit v_n - v_results
    for update skip locked);
  get diagnostics v_operations = row_count;
  if v_results + v_operations > 0 then
    perform benteng.say(v_now, 'purged',
      p_detail => format('%s results and %s operations past their retention', v_results, v_operations));
  end if;
  return v_results + v_operations;
end $$;
