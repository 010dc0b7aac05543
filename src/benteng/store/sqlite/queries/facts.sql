-- facts.sql: find out whether anybody else has committed.
--
-- Promise   another number than before whenever another connection has changed the file since. Not for own changes.
-- Locks     asked inside the verb's transaction: nobody changes anything until it ends.

-- name: version
pragma data_version;
