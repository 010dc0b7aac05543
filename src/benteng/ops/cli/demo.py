"""`benteng demo`."""

from __future__ import annotations

from pathlib import Path

import click

from benteng.ops.cli.options import json_option


@click.command
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep what the demo made in this directory."
)
@json_option
@click.pass_context
def command(ctx: click.Context, *, keep: Path | None, as_json: bool) -> None:
    """Watch one hardened queue at work: refusals, kills, recovery, retries, quarantine, audit.

    Nothing else is needed. Ends with 0 only if everything happened as it must.
    """
    from benteng.ops.demo import run

    ctx.exit(run(as_json=as_json, keep=keep))
