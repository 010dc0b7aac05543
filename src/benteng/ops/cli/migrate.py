"""`benteng migrate`: bring a PostgreSQL database to the schema of this version, or print the SQL that would.

For the person who administers the database, as `benteng roles`: the address comes from BENTENG_DBA_DSN alone.
"""

from __future__ import annotations

import os

import click

from benteng.ops.cli.options import configuration, json_option
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import document, say, table

DSN = "BENTENG_DBA_DSN"
environment_option = click.option(
    "--environment",
    type=click.Choice(["dev", "prod"]),
    default=None,
    help="What the ledger is made for, once and for ever; default: from the configuration.",
)


@click.group
def command() -> None:
    """Make and upgrade the tables and verbs of a PostgreSQL ledger.

    BENTENG_DBA_DSN names the database as a superuser, or as a member of benteng_owner once the roles are there.
    """


@command.command
@environment_option
@json_option
def up(*, environment: str | None, as_json: bool) -> None:
    """Apply what is pending. May be repeated, and at once from several hosts: one does the work."""
    from benteng.store.postgres import migrate

    applied = migrate.up(_dsn(), environment or configuration().environment.value)
    if as_json:
        document("migrate-up", {"applied": applied})
        return
    for name in applied:
        say(f"applied {name}")
    if not applied:
        say("nothing is pending")


@command.command
@json_option
@click.pass_context
def status(ctx: click.Context, *, as_json: bool) -> None:
    """Say how far the database is. Exit 32 when it is not of this version."""
    from benteng.store.postgres import migrate

    found = migrate.status(_dsn())
    if as_json:
        document("migrate-status", {"steps": found.steps, "current": found.is_current})
    else:
        table(["step", "state"], found.steps.items())
    ctx.exit(int(Exit.OK if found.is_current else Exit.DIFFERS))


@command.command
@environment_option
def sql(*, environment: str | None) -> None:
    """Print the SQL for an empty database, for review or psql. No connection; the same version, the same text."""
    from benteng.store.postgres import migrate

    click.echo(migrate.sql(environment or configuration().environment.value), nl=False)


def _dsn() -> str:
    found = os.environ.get(DSN, "")
    if not found:
        raise Fault(Exit.CONFIG, "no database is named", fix=f"set {DSN} to the address of a superuser")
    return found
