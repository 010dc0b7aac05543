-- installation.sql: the one row that makes a file a ledger.
--
-- Promise   `begin` reads and `finish` writes what every verb needs: the clock that never goes back and the fence.
-- Locks     `begin` and `finish` run inside the verb's transaction. `create` and the dev defaults run once.

-- name: begin
select id, environment, fence, seq, epoch, now, audit_key
from installation;

-- name: finish
update installation
set now = :now, fence = :fence, seq = :seq
where one = 1;

-- name: environment
select environment
from installation;

-- name: create
insert into installation (one, id, created_at, environment, fence, seq, epoch, now, audit_key)
values (1, :id, :now, :environment, 0, 0, 1, :now, :audit_key);

-- name: dev_speaks
insert into speaks (origin, actor, type)
values (:origin, '*', '*');

-- name: dev_access
insert into access (actor, type, target)
values ('*', '*', '*');
