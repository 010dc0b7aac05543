-- purge.sql: what may be forgotten.
--
-- Promise   only results past their retention and operations of jobs that ended past theirs; HIGH has none (null). Tallies
--           whose sum was told go after a week: no breaker looks back so far.
-- Order     results before operations: no result is kept longer than its operation (settle.py), and so an operation is
--           in operation_keep only once its result has gone, which no settlement has to pay for.

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
    and result is null
    and keep_until <= :now
    and ended is not null
  order by keep_until
  limit :limit);

-- name: tallies
delete from tally
where minute < :minute
  and aggregated = reported;
