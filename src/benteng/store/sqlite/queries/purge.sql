-- purge.sql: what may be forgotten.
--
-- Promise   only results past their retention and completed operations past theirs; HIGH has none (null). Tallies
--           whose sum was told go after a week: no breaker looks back so far.

-- name: results
update operation
set result = null, result_until = null
where seq in (
  select seq from operation
  where result is not null
    and result_until <= :now
  order by result_until
  limit :limit);

-- name: operations
delete from operation
where seq in (
  select seq from operation
  where keep_until is not null
    and keep_until <= :now
    and state = 'completed'
  order by keep_until
  limit :limit);

-- name: tallies
delete from tally
where minute < :minute
  and aggregated = reported;
