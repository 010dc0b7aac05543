-- lead.sql: one active keeper.
--
-- Promise   the row is taken or renewed only by its holder, or when its lease ran out.

-- name: take
insert into leader (name, holder, lease_until)
values (:name, :holder, :lease_until)
on conflict (name) do update
set holder = excluded.holder, lease_until = excluded.lease_until
where leader.holder = excluded.holder
   or leader.lease_until <= :now
returning holder;
