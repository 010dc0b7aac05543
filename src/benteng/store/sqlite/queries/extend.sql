-- extend.sql: renew a lease, which is also the lease of the job's resources.
--
-- Promise   only an attempt that is proven and not yet past its lease is renewed; no row means lost.
-- Locks     inside the verb's immediate transaction; touches no resource row.

-- name: proven
select seq, type, cancel_asked
from job
where id = :id
  and state = 'running'
  and fence = :fence
  and token = :token
  and pool = :pool
  and lease_until > :now;

-- name: renew
update job
set lease_until = :lease_until, progress = case when :progress = '' then progress else :progress end
where seq = :seq
  and state = 'running'
  and lease_until > :now;
