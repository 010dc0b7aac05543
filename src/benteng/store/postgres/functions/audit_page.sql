-- audit_page: a page of the log, by seq.
--
-- Promise   gapless, in an order that respects cause and effect, and a record that was numbered never moves. A record is numbered
--           in the order of its id. Ids are drawn while the row that they are about is held, so of two records about one job or
--           resource the later one has the higher id; commits come in any order, so ids are numbered up to a point only when no
--           transaction that drew a lower one can still be open (sequence now, integrate later).
-- Locks     audit_head. Writes no audit record.
-- Order     look at the sequence first, at the snapshot in a later statement: whoever drew a number up to there has its xid by
--           then, because `xid` stands before `id` in the table. When every older transaction has ended, all that will ever
--           exist up to there is visible.
create or replace function benteng_v1.audit_page(p_after bigint, p_limit bigint)
returns table (
  seq bigint, at_us bigint, event text, job_id text, type text, policy_sha256 text, state_from text, state_to text,
  attempt integer, fence bigint, origin text, actor text, request_id text, operation text, payload text, summary text,
  resources text[], worker text, login text, rule text, reason text, detail text, salt text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  v_me benteng.login := benteng.me('auditor');
begin
  perform benteng.number_audit();
  return query
  select
    r.seq, r.at_us, r.event, r.job_text, r.type, r.policy_sha256, r.state_from, r.state_to, r.attempt, r.fence, r.origin,
    r.actor, r.request_id, r.operation, r.payload, r.summary, r.resources, r.worker, r.login, r.rule, r.reason, r.detail, r.salt
  from (
    select o.seq, o.id
    from benteng.audit_order o
    where o.seq > p_after
    order by o.seq
    limit least(greatest(p_limit, 0), 10000)) p
  join benteng.audit_row r on r.id = p.id
  order by p.seq;
end $$;

-- number_audit: number what is settled, waiting up to a second for the transactions that are older than the call. At most
-- 20,000 records, twice what a page has: whoever reads a log that was never read is not kept until all of it is numbered.
create or replace function benteng.number_audit() returns void
language plpgsql
as $$
declare
  v_head benteng.audit_head;
  v_last bigint;
  v_xid  xid8;
  v_ids  bigint[];
begin
  select f.last_value into v_last from benteng.fence f;
  v_xid := pg_snapshot_xmax(pg_current_snapshot());
  select h.* into v_head from benteng.audit_head h;
  if v_last <= v_head.id then
    return;
  end if;
  for v_try in 1 .. 200 loop
    exit when pg_snapshot_xmin(pg_current_snapshot()) >= v_xid;
    if v_try = 200 then
      return;                                                -- somebody keeps a transaction open: later
    end if;
    perform pg_sleep(0.005);
  end loop;

  select h.* into v_head from benteng.audit_head h for update;
  if v_last <= v_head.id then
    return;
  end if;
  select array_agg(n.id order by n.id)
  into v_ids
  from (
    select a.id
    from benteng.audit a
    where a.id > v_head.id
      and a.id <= v_last
    order by a.id
    limit 20000) n;
  insert into benteng.audit_order (seq, id)
  select v_head.seq + u.ordinality, u.id
  from unnest(v_ids) with ordinality u (id)
  order by u.ordinality;
  update benteng.audit_head h
  set seq = h.seq + coalesce(cardinality(v_ids), 0),
      id = case when cardinality(v_ids) = 20000 then v_ids[20000] else v_last end;
end $$;
