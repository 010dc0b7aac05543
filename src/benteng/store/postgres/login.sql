-- login.sql: one service, one login, one facet{of_pool}.
--
-- Promise   a new login with the rights of its group and none of its own; how many of it may be connected is limited.
--           The timeouts guard against mistakes, not against the login: whoever holds it may change its settings.
-- Run as    a superuser, after the first migration. It fails when the login exists: what that is was never examined.
create role {name} login connection limit {connections} in role {group};
alter role {name} set search_path = pg_catalog, pg_temp;
alter role {name} set statement_timeout = '{statement_seconds}s';
alter role {name} set lock_timeout = '{lock_seconds}s';
alter role {name} set idle_in_transaction_session_timeout = '{idle_seconds}s';
insert into {tables}.login (name, facet, pool)
values ({name_text}, '{facet}', {pool_text});
