-- Who keeps rows that nobody needs any more from being removed: sessions with an old snapshot or transaction
-- in this database, and prepared transactions. What they asked is not told: it may hold a value.
select
  format('session %%s of %%s (%%s, %%s)', a.pid, coalesce(a.usename, '?'), left(a.application_name, 64), a.state),
  extract(epoch from clock_timestamp() - a.xact_start)::float8
from pg_stat_activity a
where a.datname = current_database()
  and a.pid <> pg_backend_pid()
  and (a.backend_xmin is not null or a.backend_xid is not null or a.state like 'idle in transaction%%')
  and clock_timestamp() - a.xact_start > make_interval(secs => %(seconds)s::float8)
union all
select format('prepared transaction of %%s', p.owner), extract(epoch from clock_timestamp() - p.prepared)::float8
from pg_prepared_xacts p
where p.database = current_database()
  and clock_timestamp() - p.prepared > make_interval(secs => %(seconds)s::float8)
order by 2 desc
