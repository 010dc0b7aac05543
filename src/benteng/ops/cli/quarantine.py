"""`benteng quarantine`: what cannot go on, kept with its context. There is no "retry all"."""

from __future__ import annotations

from typing import Any

import click

from benteng.lifecycle import QuarantineReason, State
from benteng.ops.cli.jobs import PAGE_MAX, query, show_job, show_page, tell_each
from benteng.ops.cli.options import found, json_lines_option, json_option, needs_two, operator, reason_option, rules
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import document, write

CLASSES = [reason.value for reason in QuarantineReason if reason is not QuarantineReason.UNCERTAIN]


@click.group
def command() -> None:
    """Look at, classify, discard and resolve what cannot go on."""


@command.command("list")
@click.option(
    "--reason",
    "quarantine_reason",
    type=click.Choice([r.value for r in QuarantineReason]),
    help="Only for this reason.",
)
@click.option("--type", "type_name", default="", metavar="NAME@MAJOR", help="Only of this type.")
@click.option("--origin", default="", help="Only from this origin.")
@click.option("--actor", default="", help="Only on behalf of this actor.")
@click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=50, show_default=True, help="Lines of a page.")
@click.option("--after", default="", metavar="CURSOR", help="Where the page before ended.")
@json_option
@json_lines_option
def list_command(*, as_json: bool, as_lines: bool, **options: Any) -> None:
    """List quarantined jobs, newest first."""
    with operator() as opened:
        page = opened.find(query(states=(State.QUARANTINED.value,), **options))
    show_page("quarantine", page, as_json=as_json, as_lines=as_lines)


@command.command
@click.argument("job")
@json_option
def show(job: str, *, as_json: bool) -> None:
    """Show one quarantined JOB with its context. `benteng why JOB` says what can be done."""
    with operator() as opened:
        view = found(opened, job)
    if view.state is not State.QUARANTINED:
        raise Fault(Exit.NOT_FOUND, f"the job is {view.state}, not in quarantine", fix=f"benteng why {job}")
    show_job(view, as_json=as_json)


@command.command
@click.argument("job")
@click.argument("as_class", metavar="CLASS", type=click.Choice(CLASSES))
@click.option("--note", required=True, help="What was found; the audit log keeps it.")
@json_option
def classify(job: str, as_class: str, note: str, *, as_json: bool) -> None:
    """Say of which CLASS a quarantined JOB is, as a person sees it."""
    with operator() as opened, rules():
        found(opened, job)
        opened.classify(job, QuarantineReason(as_class), note)
    _told("classified", job, as_class, as_json=as_json)


@command.command
@click.argument("jobs", nargs=-1, required=True)
@click.option(
    "--free", is_flag=True, help="Free the operation of a job that had been started: it may then be done again."
)
@reason_option
@json_option
def discard(jobs: tuple[str, ...], reason: str, *, free: bool, as_json: bool) -> None:
    """Give up quarantined JOBS: a state, never a delete. An uncertain one must be resolved instead."""
    with operator() as opened, rules():
        done = {each.job_id: each.state for each in opened.discard(list(jobs), reason, free=free)}
    tell_each("discarded", jobs, done, "are not in quarantine", as_json=as_json)


@command.command
@click.argument("job")
@click.option("--happened", is_flag=True, help="Its effect is there.")
@click.option("--not-happened", is_flag=True, help="Its effect is not there.")
@reason_option
@json_option
def resolve(job: str, reason: str, *, happened: bool, not_happened: bool, as_json: bool) -> None:
    """Say whether the effect of an uncertain JOB happened: completed, or discarded with its operation freed.

    Look at the system that the job acts on first: nobody else can.
    """
    if happened is not_happened:  # two flags and no default: saying nothing must never free an operation
        raise Fault(Exit.USAGE, "say whether it happened", fix="give one of --happened and --not-happened")
    with operator() as opened, rules():
        needs_two(found(opened, job), "resolving")
        done = opened.resolve(job, happened=happened, reason=reason)
    _told("resolved", job, done.state.value, as_json=as_json)


def _told(noun: str, job: str, what: str, *, as_json: bool) -> None:
    if as_json:
        document(noun, {"job": job, "as": what})
    else:
        write(f"{job} {what}")
