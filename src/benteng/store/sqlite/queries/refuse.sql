-- refuse.sql: count what was refused, so that the breaker can see it and a flood cannot fill the disk.
--
-- Promise   one row for a minute, origin, type and rule; beyond the limit only the count grows.
-- Locks     inside the verb's immediate transaction.

-- name: count
insert into tally (minute, origin, type, rule, count, aggregated)
values (:minute, :origin, :type, :rule, 1, 0)
on conflict (minute, origin, type, rule) do update
set aggregated = aggregated + (count >= :limit), count = count + 1
returning count, aggregated;

-- name: kinds
select count(*) as kinds, coalesce(max(type = :type and rule = :rule), 0) as is_known
from tally
where minute = :minute
  and origin = :origin;

-- name: untold
select minute, origin, type, rule, aggregated - reported as more
from tally indexed by tally_open
where aggregated > reported
  and minute < :minute
order by minute
limit :limit;

-- name: told
update tally
set reported = aggregated
where minute = :minute
  and origin = :origin
  and type = :type
  and rule = :rule;
