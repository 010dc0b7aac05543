"""`benteng depth`: how many active jobs an origin may have. One person sets it, and says why."""

from __future__ import annotations

import click

from benteng.ops.cli.options import json_option, operator, rules
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import document, say, table
from benteng.policy import DEPTH_DEFAULT


@click.command
@click.argument("origin", default="", metavar="[ORIGIN]")
@click.argument("jobs_max", type=int, required=False, metavar="[JOBS]")
@click.option("--reason", default="", help="Why; the audit log keeps it. Required to set a depth.")
@json_option
def command(*, origin: str, jobs_max: int | None, reason: str, as_json: bool) -> None:
    """Let ORIGIN have JOBS active jobs and no more, or list the origins that have another depth than most.

    An origin is a producer's login, with SQLite a key's or os:1000. What is beyond its depth is refused (S-depth,
    exit 75) until some of its jobs have ended; what is in there already stays.
    """
    from benteng.store.records import Depth

    if origin and (jobs_max is None or not reason.strip()):
        raise Fault(Exit.USAGE, "a depth needs a number of jobs and a reason", fix="add JOBS and --reason")
    with operator() as opened, rules():
        if origin and jobs_max is not None:
            opened.limit_depth(Depth(origin, jobs_max), reason.strip())
        depths = opened.depths()
    rows = [{"origin": each.origin, "jobs_max": each.jobs_max} for each in depths]
    if as_json:
        document("depths", {"depths": rows, "default": DEPTH_DEFAULT})
    else:
        table(["origin", "active jobs"], [[str(value) for value in row.values()] for row in rows])
        say(f"every other origin may have {DEPTH_DEFAULT}")
