"""`benteng bench`: how fast this installation is, on a ledger of its own beside the user's, with every layer on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benteng.ops.bench.phases import Phase, Size
from benteng.ops.cli.options import configuration, json_option
from benteng.ops.exits import Exit
from benteng.ops.output import document, say, table, write
from benteng.policy import Tier

if TYPE_CHECKING:
    from benteng.ops.bench.report import Report

PHASES = [phase.value for phase in Phase]


@click.command
@click.argument("phases", nargs=-1, type=click.Choice(PHASES))
@click.option(
    "--tier", type=click.Choice([tier.value for tier in Tier]), default="low", show_default=True, help="Of the jobs."
)
@click.option(
    "--jobs", type=click.IntRange(10, 1_000_000), default=2_000, show_default=True, help="To enqueue, to drain."
)
@click.option(
    "--seconds", type=click.FloatRange(0.5, 3_600), default=5.0, show_default=True, help="Of latency, of mixed load."
)
@click.option(
    "--backlog", type=click.IntRange(10, 10_000_000), default=20_000, show_default=True, help="Jobs that wait."
)
@click.option("--concurrency", type=click.IntRange(1, 1_000), default=10, show_default=True, help="Of the worker.")
@click.option("--layers", is_flag=True, help="Measure what each layer of hardening costs a job.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write rate and latency over time, as SVG."
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    phases: Sequence[str],
    tier: str,
    jobs: int,
    seconds: float,
    backlog: int,
    concurrency: int,
    *,
    layers: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure enqueue, drain, latency, mixed load and backlog; or only the PHASES named.

    On a scratch ledger that is removed afterwards: with SQLite a file beside yours, with PostgreSQL a database of its
    own, made by BENTENG_DBA_DSN. Ends with 1 when the ledger's records do not bear out what was measured.
    """
    from benteng.ops.bench.chart import svg
    from benteng.ops.bench.play import play

    chosen = [phase for phase in Phase if phase in phases or not (phases or layers)]
    talk = say if sys.stderr.isatty() else _silent
    found = play(
        configuration(), Tier(tier), chosen, Size(jobs, seconds, backlog), concurrency, with_layers=layers, say=talk
    )
    if plot is not None:
        plot.write_text(svg(found))
    if as_json:
        document("bench", found.document())
    else:
        _show(found)
    for problem in found.problems:
        say(f"the records do not bear it out: {problem}")
    ctx.exit(int(Exit.FAILED if found.problems else Exit.OK))


def _show(found: Report) -> None:
    from benteng.ops.bench.report import COST_HEADINGS, HEADINGS

    write(" ".join([found.store, *(f"{name}={value}" for name, value in found.settings.items() if value)]))
    table(HEADINGS, found.table())
    table(COST_HEADINGS, found.cost_table())


def _silent(text: str) -> None:
    del text
