-- refuse, sum_up: record what did not enter, or was stale.
--
-- Promise   an audit record each, up to 20 for a minute, origin, type and rule; beyond it only the tally grows, one record says
--           so, and one record sums it up when the minute is over: a flood cannot fill the disk, and is still counted.
--           At most 50 types and rules of an origin are told apart in a minute; what it makes up beyond is counted as one.
-- Locks     tallies by key, last in the transaction.
create or replace function benteng.refuse(p_refusals benteng_v1.refusal[], p_now timestamptz) returns void
language plpgsql
as $$
#variable_conflict use_column
declare
  v_minute bigint := floor(extract(epoch from p_now) / 60);
begin
  if p_refusals is null or p_refusals = '{}' then
    return;
  end if;
  with asked as materialized (
    select
      r.*,
      case when exists (select from benteng.job_type t where t.name = r.type) then r.type else '?' end as kind_type,
      case when r.rule ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$' then r.rule else '?' end as kind_rule
    from unnest(p_refusals) with ordinality r
  ), ranked as materialized (
    select
      k.*, t.rule is not null as is_known,
      (select count(*) from benteng.tally x where x.minute = v_minute and x.origin = k.origin)
        + row_number() over (partition by k.origin, t.rule is not null order by k.first) as rank
    from (
      select a.origin, a.kind_type, a.kind_rule, min(a.ordinality) as first
      from asked a
      group by a.origin, a.kind_type, a.kind_rule) k
    left join benteng.tally t
      on t.minute = v_minute
      and (t.origin, t.type, t.rule) = (k.origin, k.kind_type, k.kind_rule)
  ), told_apart as materialized (
    select
      a.*,
      case when r.is_known or r.rank <= 50 then a.kind_type else '?' end as told_type,
      case when r.is_known or r.rank <= 50 then a.kind_rule else '?' end as told_rule
    from asked a
    join ranked r using (origin, kind_type, kind_rule)
  ), counted as (
    insert into benteng.tally as t (minute, origin, type, rule, count)
    select v_minute, a.origin, a.told_type, a.told_rule, count(*)
    from told_apart a
    group by a.origin, a.told_type, a.told_rule
    order by a.origin, a.told_type, a.told_rule
    on conflict (minute, origin, type, rule) do update
    set count = t.count + excluded.count
    returning t.origin, t.type, t.rule, t.count
  ), numbered as (
    select
      a.*,
      c.count - count(*) over w + row_number() over (w order by a.ordinality) as number
    from told_apart a
    join counted c on c.origin = a.origin and c.type = a.told_type and c.rule = a.told_rule
    window w as (partition by a.origin, a.told_type, a.told_rule)
  )
  insert into benteng.audit (
    at, event, job_id, type, fence, origin, actor, request_id, operation_key, payload_sha256, rule, reason, detail)
  select
    p_now,
    case n.rule when 'S-duplicate' then 'duplicate' when 'S-conflict' then 'conflict' else 'refused' end,
    case when n.number <= 20 then n.job_id end,
    case when n.number <= 20 then left(coalesce(n.type, ''), 256) else n.told_type end,
    case when n.number <= 20 then coalesce(n.fence, 0) else 0 end,
    n.origin,
    case when n.number <= 20 then left(coalesce(n.actor, ''), 256) else '' end,
    case when n.number <= 20 then left(coalesce(n.request_id, ''), 256) else '' end,
    case when n.number <= 20 and benteng.is_digest(n.operation_key) then decode(n.operation_key, 'hex') end,
    case when n.number <= 20 and benteng.is_digest(n.payload_sha256) then decode(n.payload_sha256, 'hex') end,
    case when n.number <= 20 then left(coalesce(n.rule, '?'), 256) else n.told_rule end,
    case when n.number <= 20 then left(coalesce(n.reason, ''), 512) else '' end,
    case when n.number <= 20 then left(coalesce(n.detail, ''), 512) else 'more in this minute are only counted' end
  from numbered n
  where n.number <= 21
  order by n.ordinality;
end $$;

create or replace function benteng.sum_up(p_now timestamptz) returns void
language plpgsql
as $$
begin
  with untold as (
    select t.minute, t.origin, t.type, t.rule, t.count - 20 - t.reported as more
    from benteng.tally t
    where t.count - 20 > t.reported
      and t.minute < floor(extract(epoch from p_now) / 60)
    order by t.minute, t.origin, t.type, t.rule
    limit 100
    for update skip locked
  ), told as (
    update benteng.tally t
    set reported = t.count - 20
    from untold u
    where (t.minute, t.origin, t.type, t.rule) = (u.minute, u.origin, u.type, u.rule)
  )
  insert into benteng.audit (at, event, type, origin, rule, detail)
  select
    p_now,
    case u.rule when 'S-duplicate' then 'duplicate' when 'S-conflict' then 'conflict' else 'refused' end,
    u.type, u.origin, u.rule, format('%s more in the minute that began at %s s', u.more, u.minute * 60)
  from untold u;
end $$;
