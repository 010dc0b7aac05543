-- 012_depths.sql (expand): how many active jobs an origin may have, and when it was counted.
--
-- Promise   what was there has the depth that everybody had. A count tells when it was made, so that an origin which is full is
--           counted now and then, and not in each call.
-- Locks     access exclusive on two small tables, for a moment.

set role benteng_owner;

alter table benteng.login add column jobs_max bigint not null default 100000 check (jobs_max between 1 and 10000000);
alter table benteng.depth add column counted_at timestamptz not null default '-infinity';
drop function if exists benteng.full_origins(text[]);
drop function if exists benteng.depth_of(text);

reset role;
