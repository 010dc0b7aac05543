-- 008_depth.sql (expand): how many active jobs an origin had when they were counted.
--
-- Promise   who admits looks at one row instead of at both ends of the queue, and counts only when an origin may be full. So
--           the order of admission needs no index of its own, and the index of origins has no entry for what runs: a start
--           takes the old one's place nowhere.
-- Locks     access exclusive on `job`, for as long as the small index is built.

set role benteng_owner;

create table benteng.depth (
  origin text collate "C" not null,
  seq    bigint not null,                                    -- numbers of admission that were drawn by then
  jobs   bigint not null                                     -- active jobs then, at least
) with (fillfactor = 50);
create index depth_origin on benteng.depth (origin);
drop index benteng.job_seq;
drop index benteng.job_origin;
-- || '': no condition on the state alone implies it, so no claim is ever planned to go through this index.
create index job_origin on benteng.job (origin) where state || '' <> 'running';

reset role;
