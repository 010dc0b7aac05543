-- purge: drop what may be forgotten.
--
-- Promise   up to n rows: results past their retention, then operations of jobs that ended past theirs; HIGH has none. Never the audit.
--           What is due and was not dropped, for want of room or because somebody holds it, stays due.
-- Locks     entries of retention, then operations; both with skip locked: waits for nothing.
create or replace function benteng_v1.purge(p_n bigint) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_me         benteng.login := benteng.me('keeper');
  v_now        timestamptz := benteng.now();
  v_n          bigint := greatest(0, least(p_n, 1000));
  v_seqs       bigint[] := benteng.take_due(v_now, v_n);
  v_held       bigint[];
  v_results    bigint;
  v_operations bigint;
begin
  if v_seqs is null then
    return 0;
  end if;
  v_held := array(select o.seq from benteng.operation o where o.seq = any (v_seqs) for update skip locked);
  update benteng.operation o
  set result = null,
      result_until = null
  where o.seq = any (v_held)
    and o.result_until <= v_now;
  get diagnostics v_results = row_count;
  delete from benteng.operation o
  where o.seq in (
    select x.seq
    from benteng.operation x
    where x.seq = any (v_held)
      and x.keep_until <= v_now
      and x.ended is not null
    limit v_n - v_results);
  get diagnostics v_operations = row_count;
  insert into benteng.retention (until, seqs)
  select d.until, array_agg(o.seq order by o.seq)
  from benteng.operation o
  cross join lateral (select least(o.result_until, case when o.ended is not null then o.keep_until end)) d (until)
  where o.seq = any (v_seqs)
    and d.until is not null
  group by d.until;

  if v_results + v_operations > 0 then
    perform benteng.say(v_now, 'purged',
      p_detail => format('%s results and %s operations past their retention', v_results, v_operations));
  end if;
  return v_results + v_operations;
end $$;

-- take_due: the operations that are due first, up to p_n of them; null: none. They leave their entries, which go when empty.
create or replace function benteng.take_due(p_now timestamptz, p_n bigint) returns bigint[]
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  v_entry tid;
  v_seqs  bigint[];
  v_taken bigint[];
  v_room  bigint := p_n;
begin
  for v_entry, v_seqs in
    select e.ctid, e.seqs
    from benteng.retention e
    where e.until <= p_now
    order by e.until
    limit p_n
    for update skip locked
  loop
    exit when v_room = 0;
    v_taken := v_taken || v_seqs[1 : v_room];
    update benteng.retention e set seqs = v_seqs[v_room + 1 :] where e.ctid = v_entry and cardinality(v_seqs) > v_room;
    delete from benteng.retention e where e.ctid = v_entry and cardinality(v_seqs) <= v_room;
    v_room := p_n - cardinality(v_taken);
  end loop;
  return v_taken;
end $$;
