"""`benteng restore`: let a PostgreSQL ledger go on after a failover or a restore that may have lost something.

For the person who administers the database, as `benteng migrate`: the address comes from BENTENG_DBA_DSN alone.
"""

from __future__ import annotations

import os

import click

from benteng.ops.cli.options import json_option, reason_option
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import document, say

DSN = "BENTENG_DBA_DSN"


@click.command
@click.option("--fence-epoch", is_flag=True, required=True, help="Draw fences above any that was ever issued.")
@click.option(
    "--above", type=click.IntRange(min=0), default=0, metavar="FENCE", help="The highest fence known outside."
)
@reason_option
@json_option
def command(*, fence_epoch: bool, above: int, reason: str, as_json: bool) -> None:
    """Raise the fence epoch of a database that was promoted or restored; until then claims wait.

    What ran keeps its jobs for one more lease, and claims wait as long. BENTENG_DBA_DSN names the database as a
    superuser or as a member of benteng_owner.
    """
    from benteng.store.postgres.history import raise_fence_epoch

    del fence_epoch  # required: it is what is agreed to
    dsn = os.environ.get(DSN, "")
    if not dsn:
        raise Fault(Exit.CONFIG, "no database is named", fix=f"set {DSN} to the address of a superuser")
    fence = raise_fence_epoch(dsn, reason, above=above)
    if as_json:
        document("restore", {"fence_above": fence})
        return
    say(f"fences are above {fence} from now on; claims go on when the longest lease is over")
