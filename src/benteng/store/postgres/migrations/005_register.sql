-- 005_register.sql (expand): a worker says what holds its cells when it registers.
--
-- Promise   one `register`, with three more parameters that have defaults: clients that know only the seven before are still
--           understood. Two functions of that name would make their call ambiguous.
-- Locks     none that a verb waits for.

set role benteng_owner;

drop function if exists benteng_v1.register(text, text, text, text, bigint, text, text);

reset role;
