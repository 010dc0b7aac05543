-- register.sql: a worker's sign of life.
--
-- Promise   facts of host and process, kept for people; no decision is made from them.

-- name: seen
insert into worker (worker, pool, host, boot_id, pid, version, types, registered_at, seen_at)
values (:worker, :pool, :host, :boot_id, :pid, :version, :types, :now, :now)
on conflict (worker) do update
set pool = excluded.pool, host = excluded.host, boot_id = excluded.boot_id, pid = excluded.pid,
    version = excluded.version, types = excluded.types, seen_at = excluded.seen_at
where worker.pool = excluded.pool
returning registered_at = seen_at as is_new;
