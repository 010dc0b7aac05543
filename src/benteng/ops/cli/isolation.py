"""`benteng isolation`: what this host can really do to hold a cell."""

from __future__ import annotations

from collections.abc import Mapping

import click

from benteng.ops.cli.options import configuration, json_option
from benteng.ops.cli.rehearsal import try_command
from benteng.ops.exits import Exit
from benteng.ops.output import document, say, table
from benteng.policy import POOL_DEFAULT, Tier


@click.group
def command() -> None:
    """Show and test what holds a cell on this host; no user code runs, but for `try`."""


@command.command("report")
@click.option("--pool", default=POOL_DEFAULT, show_default=True, help="Whose settings count.")
@click.option(
    "--tier",
    type=click.Choice([tier.value for tier in Tier]),
    default=Tier.HIGH.value,
    show_default=True,
    help="Whose requirements count.",
)
@json_option
@click.pass_context
def report_command(ctx: click.Context, pool: str, tier: str, *, as_json: bool) -> None:
    """Try each layer for real, and compare with what a tier requires. Exit 35 when something required is missing."""
    from benteng.ops.cli.worker import pool_of
    from benteng.worker import isolation
    from benteng.worker.sandbox.layers import LAYERS

    settings = pool_of(configuration(), pool, None)
    found = isolation.report(settings, Tier(tier), isolation.held(settings, contained=True))
    rows = {
        name: {"need": str(row.need(found.tier)), "in_force": name in found.in_force, "does": row.does}
        for name, row in LAYERS.items()
    }
    if as_json:
        said = {"missing": list(found.missing), "waive": sorted(settings.waive)}
        document("isolation", {"pool": pool, "tier": tier, "layers": rows} | said)
    else:
        table(("LAYER", "NEED", "HERE", "WHAT IT DOES"), [_row(name, row) for name, row in rows.items()])
    _judge(ctx, found.missing, f"{tier} jobs of pool {pool}")


@command.command("test")
@json_option
@click.pass_context
def test_command(ctx: click.Context, *, as_json: bool) -> None:
    """Try to get out of a MEDIUM and a HIGH cell, with what works without one. Exit 35 when something gets out."""
    from benteng.worker.sandbox import trial

    results = trial.run()
    if as_json:
        document("isolation-test", {"attempts": {each.name: each.ended for each in results}})
    else:
        table(("ATTEMPT", "MEDIUM", "HIGH"), [(each.name, *each.ended.values()) for each in results])
    _judge(ctx, tuple(each.name for each in results if not each.held), "a cell")


command.add_command(try_command)


def _row(name: str, row: Mapping[str, object]) -> tuple[str, str, str, str]:
    here = "-" if row["need"] == "-" else "yes" if row["in_force"] else "no"
    return name, str(row["need"]), here, str(row["does"])


def _judge(ctx: click.Context, missing: tuple[str, ...], what: str) -> None:
    if missing:
        say(f"{what}: not held by {', '.join(missing)}. See docs/reference/isolation.md")
        ctx.exit(int(Exit.BELOW))
    say(f"{what}: held")
