"""`benteng why JOB`."""

from __future__ import annotations

from dataclasses import asdict

import click

from benteng.ops.cli.options import configuration, found, json_option, operator
from benteng.ops.output import document, write


@click.command
@click.argument("job")
@json_option
def command(job: str, *, as_json: bool) -> None:
    """Say why JOB is where it is, and what can be done, with the exact commands."""
    from benteng.ops.why import explain

    with operator() as opened:
        view = found(opened, job)
        answer = explain(view, [row.name for row in opened.types()], configuration().pool(view.pool))
    if as_json:
        document("why", {"job": view.job.id, "type": view.job.type, "state": view.state} | asdict(answer))
        return
    write(f"{view.job.type} {view.job.id} is {view.state}: {answer.headline}")
    for fact in answer.facts:
        write(f"  - {fact}")
    for step in answer.steps:
        write(f"  > {step.command}   ({step.does})")
