"""`benteng jobs`: list, show, cancel, release, watch. Never a payload."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from benteng.clock import boot_seconds
from benteng.lifecycle import TERMINAL, QuarantineReason, State
from benteng.ops.cli.options import (
    found,
    json_lines_option,
    json_option,
    needs_two,
    operator,
    reason_option,
    rules,
)
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import age, document, json_line, say, table, write
from benteng.ops.views import job as job_view
from benteng.ops.views import line as line_view

if TYPE_CHECKING:
    from benteng.store.contract import Operator
    from benteng.store.records import JobLine, JobView, Page, Query

PAGE_MAX = 1_000
WATCH_PAUSE_SECONDS = 0.25


@click.group
def command() -> None:
    """List, show, cancel, release and watch jobs."""


@command.command("list")
@click.option(
    "--state", "states", multiple=True, type=click.Choice([s.value for s in State]), help="Only in it. Repeatable."
)
@click.option("--type", "type_name", default="", metavar="NAME@MAJOR", help="Only of this type.")
@click.option("--actor", default="", help="Only on behalf of this actor.")
@click.option("--origin", default="", help="Only from this origin.")
@click.option("--request-id", default="", help="Only with this correlation id.")
@click.option("--resource", default="", metavar="KIND:VALUE", help="Only those that ever named this resource.")
@click.option(
    "--quarantine-reason", type=click.Choice([r.value for r in QuarantineReason]), help="Only quarantined as this."
)
@click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=50, show_default=True, help="Lines of a page.")
@click.option("--after", default="", metavar="CURSOR", help="Where the page before ended.")
@json_option
@json_lines_option
def list_command(*, as_json: bool, as_lines: bool, **options: Any) -> None:
    """List jobs, newest first, a page at a time."""
    with operator() as opened:
        page = opened.find(query(**options))
    show_page("jobs", page, as_json=as_json, as_lines=as_lines)


def query(
    *,
    states: tuple[str, ...] = (),
    type_name: str = "",
    actor: str = "",
    origin: str = "",
    request_id: str = "",
    resource: str = "",
    quarantine_reason: str | None = None,
    after: str = "",
    limit: int = 50,
) -> Query:
    """Return the store's query for the options of a list."""
    from benteng.store.records import Query

    return Query(
        states=tuple(State(name) for name in states),
        type=type_name,
        origin=origin,
        actor=actor,
        request_id=request_id,
        resource=resource,
        reason=QuarantineReason(quarantine_reason) if quarantine_reason else None,
        after=after,
        limit=limit,
    )


def show_page(noun: str, page: Page, *, as_json: bool, as_lines: bool) -> None:
    """Write one page of jobs, and where the next one begins."""
    if as_lines:
        for line in page.lines:
            json_line("job", line_view(line))
    elif as_json:
        document(noun, {"jobs": [line_view(line) for line in page.lines], "next": page.next})
    else:
        table(["job", "type", "state", "try", "admitted", "actor", "error"], map(_row, page.lines))
    if page.next and not as_json:
        say(f"more: --after {page.next}")


def _row(line: JobLine) -> list[str]:
    from benteng.clock import system_clock

    state = f"{line.state}:{line.reason}" if line.reason else line.state.value
    ago = f"{age(line.admitted_at, system_clock())} ago"
    return [line.job_id, line.type, state, str(line.attempts), ago, line.actor, line.error]


@command.command
@click.argument("job")
@json_option
def show(job: str, *, as_json: bool) -> None:
    """Show everything about one JOB but its payload."""
    with operator() as opened:
        view = found(opened, job)
    show_job(view, as_json=as_json)


def show_job(view: JobView, *, as_json: bool) -> None:
    """Write one job."""
    facts = job_view(view)
    if as_json:
        document("job", facts)
        return
    for name, value in facts.items():
        if value not in ("", [], {}, None):
            write(f"{name:16} {value}")


@command.command
@click.argument("jobs", nargs=-1, required=True)
@reason_option
@json_option
def cancel(jobs: tuple[str, ...], reason: str, *, as_json: bool) -> None:
    """Cancel JOBS. A running one is asked to stop, and its worker answers."""
    with operator() as opened:
        done = {each.job_id: each.state for each in opened.cancel(list(jobs), reason)}
    asked = " (a running one is asked)" if State.RUNNING in done.values() else ""
    tell_each("cancelled", jobs, done, "are unknown or have ended", as_json=as_json, note=asked)


def tell_each(
    noun: str, jobs: Sequence[str], done: Mapping[str, State], else_they: str, *, as_json: bool, note: str = ""
) -> None:
    """Say what became of each job. Raises Fault when some of those asked for were left out."""
    if as_json:
        document(noun, {"jobs": [{"job": name, "state": state.value} for name, state in done.items()]})
    else:
        table(["job", f"state{note}"], [[name, state.value] for name, state in done.items()])
    left = [name for name in jobs if name not in done]
    if left:
        raise Fault(Exit.NOT_FOUND, f"{len(left)} of {len(jobs)} jobs {else_they}", fix="benteng why JOB")


@command.command
@click.argument("jobs", nargs=-1, required=True)
@reason_option
@json_option
def release(jobs: tuple[str, ...], reason: str, *, as_json: bool) -> None:
    """Agree that held JOBS go on. They are judged again before they start."""
    with operator() as opened, rules():
        for job in jobs:
            needs_two(found(opened, job), "releasing")
        done = {each.job_id: each.state for each in opened.release(list(jobs), reason)}
    tell_each("released", jobs, done, "are not held", as_json=as_json)


@command.command
@click.argument("job")
@click.option(
    "--timeout", "timeout_seconds", type=float, default=0.0, metavar="S", help="Give up after S seconds; 0: never."
)
@json_lines_option
def watch(job: str, timeout_seconds: float, *, as_lines: bool) -> None:
    """Write each change of JOB until it has ended or is in quarantine."""
    end = boot_seconds() + timeout_seconds if timeout_seconds else float("inf")
    with operator() as opened:
        _watch(opened, job, end, as_lines=as_lines)


def _watch(opened: Operator, job: str, end: float, *, as_lines: bool) -> None:
    seen: tuple[State, int] | None = None
    while True:
        view = found(opened, job)
        if (view.state, view.attempts) != seen:
            seen = (view.state, view.attempts)
            _tell(view, as_lines=as_lines)
        if view.state in TERMINAL or view.state is State.QUARANTINED:
            return
        if boot_seconds() >= end:
            raise Fault(Exit.NOT_COMPLETED, f"the job is still {view.state}", fix=f"benteng why {job}")
        time.sleep(WATCH_PAUSE_SECONDS)


def _tell(view: JobView, *, as_lines: bool) -> None:
    if as_lines:
        json_line("job", job_view(view))
    else:
        why = f" ({view.reason})" if view.reason else ""
        write(f"{view.state}{why} attempt {view.attempts} fence {view.fence} {view.error}".rstrip())
