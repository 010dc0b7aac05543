-- now, instant, moment: time as the ledger knows it, and as it crosses the seam (microseconds since 1970).
--
-- Promise   the server's clock alone decides, read once in each verb, after its last wait.
create or replace function benteng.now() returns timestamptz
language sql volatile
as $$ select clock_timestamp() $$;

create or replace function benteng.instant(p_at timestamptz) returns bigint
language sql stable
as $$ select (extract(epoch from p_at) * 1000000)::bigint $$;

create or replace function benteng.moment(p_at bigint) returns timestamptz
language sql stable
as $$ select timestamptz 'epoch' + p_at * interval '1 microsecond' $$;
