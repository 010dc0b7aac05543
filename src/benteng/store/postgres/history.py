"""What a person does after a failover or a restore of the database that may have lost something: raise the fence epoch.

Claims wait until then. Where every commit had waited for the promoted standby, the ledger does it by itself
(functions/history.sql).
"""

from __future__ import annotations

import psycopg

from benteng.store.postgres import faults
from benteng.store.postgres.roles import connect


def raise_fence_epoch(dsn: str, reason: str, *, above: int = 0) -> int:
    """Let every later fence be above any that was ever issued, and return the number that they are above.

    As a superuser, or as a member of benteng_owner. `above`: a fence that is known from outside, when the server's
    clock may be wrong. Raises PolicyError without a reason, StoreUnavailable, StoreError.
    """
    with connect(dsn) as connection, connection.transaction():
        try:
            connection.execute("set local role benteng_owner")
            row = connection.execute("select benteng.restore(%s, %s)", [reason, above]).fetchone()
        except psycopg.Error as error:
            raise faults.translated(error, waits=True) from None
    return 0 if row is None else int(row[0])
