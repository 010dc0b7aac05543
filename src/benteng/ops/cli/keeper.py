"""`benteng keeper`: what time does, in the foreground. It holds a credential and imports no user code."""

from __future__ import annotations

import click

from benteng.ops.cli.options import configuration, log_option, teller


@click.command
@log_option
@click.pass_context
def command(ctx: click.Context, log: str) -> None:
    """Take back what lost its lease, make due jobs ready, wake blocked ones, keep retention; until SIGTERM or SIGINT.

    Several may run: one leads.
    """
    from benteng.keeper.loop import KeeperSettings, run_keeper
    from benteng.opening import dsn_of
    from benteng.store.records import Facet

    config = configuration()
    ctx.exit(run_keeper(KeeperSettings(dsn_of(config, Facet.KEEPER), config.environment.value), teller(log)))
