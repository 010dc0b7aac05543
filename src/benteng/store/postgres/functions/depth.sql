-- full_origins: the origins that have too many active jobs.
--
-- Promise   counted anew only when it may be so (since an origin was counted it has gained no more jobs than numbers of admission
--           were drawn), and then not for 2 us a job: ten times what counting one takes. What is refused was counted not longer
--           ago than that: 0.2 s with 100,000 jobs. A count from the future is of another clock, and void.
-- Locks     depths with skip locked: who counts at the same time writes down as much. Nobody waits, so no key is unique: of
--           those who count an origin for the first time each may write a row, and each row is true.
create or replace function benteng.full_origins(p_origins text[], p_now timestamptz) returns text[]
language plpgsql
as $$
declare
  v_near   text[] := array(
    select u.origin
    from (select distinct u.origin from unnest(p_origins) u (origin)) u
    left join benteng.login l on l.name = u.origin
    where not exists (select from benteng.room(u.origin, coalesce(l.jobs_max, 100000))));
  v_full   text[] := '{}';
  v_origin text;
  v_max    bigint;
  v_seq    bigint;
  v_jobs   bigint;
begin
  foreach v_origin in array v_near loop
    if exists (
        select from benteng.depth d
        where d.origin = v_origin
          and d.counted_at <= p_now
          and d.counted_at + d.jobs * interval '2 microseconds' > p_now) then
      v_full := v_full || v_origin;
      continue;
    end if;
    v_max := benteng.depth_limit(v_origin);
    select a.last_value - 1 into v_seq from benteng.admission a;      -- a sequence that has drawn nothing yet says 1
    v_jobs := benteng.depth_of(v_origin, v_max);
    update benteng.depth d
    set seq = v_seq,
        jobs = v_jobs,
        counted_at = p_now
    where d.ctid = any (array(select x.ctid from benteng.depth x where x.origin = v_origin for update skip locked));
    if not found and not exists (select from benteng.depth d where d.origin = v_origin) then
      insert into benteng.depth (origin, seq, jobs, counted_at) values (v_origin, v_seq, v_jobs, p_now);
    end if;
    if v_jobs >= v_max then
      v_full := v_full || v_origin;
    end if;
  end loop;
  return v_full;
end $$;

-- room: counts by which an origin cannot have reached a number of jobs. A set, so that it is planned with the query around it.
create or replace function benteng.room(p_origin text, p_max bigint) returns setof benteng.depth
language sql stable
as $$
  select d.*
  from benteng.depth d
  where d.origin = p_origin
    and d.jobs + (select a.last_value from benteng.admission a) - d.seq < p_max
$$;

-- depth_limit: how many active jobs an origin may have. An origin whose login is gone has what everybody has.
create or replace function benteng.depth_limit(p_origin text) returns bigint
language sql stable
as $$
  select coalesce((select l.jobs_max from benteng.login l where l.name = p_origin), 100000)
$$;

-- depth_of: how many active jobs an origin has, up to the bound. Those that run are not in the index of those that wait, so
-- that a start need not write it again; its condition is written as the index has it (008_depth.sql).
create or replace function benteng.depth_of(p_origin text, p_max bigint) returns bigint
language sql stable
as $$
  select count(*)
  from (
    (select from benteng.job j where j.origin = p_origin and j.state || '' <> 'running' limit p_max)
    union all
    (select from benteng.job j where j.origin = p_origin and j.state = 'running' limit p_max)) n
$$;
