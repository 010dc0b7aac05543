"""`benteng audit`: read, verify and export the log. Bodies were redacted before they were stored."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

import click

from benteng.audit import AuditRecord, Findings, verify_page
from benteng.merkle import Frontier
from benteng.ops.cli.options import auditor, json_lines_option, json_option
from benteng.ops.exits import Exit, Fault
from benteng.ops.log import PAGE, last, pages
from benteng.ops.output import document, json_line, say, table, write
from benteng.ops.views import record as record_view
from benteng.ops.views import sentence
from benteng.ops.why import decode

if TYPE_CHECKING:
    from benteng.store.contract import Auditor
    from benteng.store.records import AuditRow

FOLLOW_PAUSE_SECONDS = 0.5
PROBLEMS_SHOWN_MAX = 20
HEADINGS = ["seq", "at", "event", "job", "what"]


@click.group
def command() -> None:
    """Read, verify and export the audit log."""


@command.command
@click.option("-n", "count", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many records.")
@click.option("--follow", is_flag=True, help="Go on with new records until interrupted.")
@json_option
@json_lines_option
def tail(*, count: int, follow: bool, as_json: bool, as_lines: bool) -> None:
    """Write the last records, oldest first."""
    with auditor() as opened:
        rows = [row for page in last(opened, count) for row in page]
        _show(rows, as_json=as_json, as_lines=as_lines)
        if follow:
            _follow(opened, rows[-1].seq if rows else 0, as_lines=as_lines)


@command.command
@click.argument("job", default="")
@click.option(
    "--worker", default="", metavar="NAME", help="Only what this worker did; a host names all that ran there."
)
@json_option
@json_lines_option
def show(job: str, worker: str, *, as_json: bool, as_lines: bool) -> None:
    """Write every record of one JOB, of one worker, or of both."""
    if not job and not worker:
        raise Fault(Exit.USAGE, "nothing was asked for", fix="name a JOB, or a worker with --worker")
    with auditor() as opened:
        rows = [row for page in pages(opened) for row in page if _is_of(decode(row), job, worker)]
    if not rows:
        fix = "benteng jobs list shows which jobs there are, benteng audit tail --json which workers"
        raise Fault(Exit.NOT_FOUND, "the log has no such record", fix=fix)
    _show(rows, as_json=as_json, as_lines=as_lines)


def _is_of(record: AuditRecord | None, job: str, worker: str) -> bool:
    """Whether a record is of a job and a worker, as far as they are named: host/boot/pid/start, from the left."""
    if record is None or job not in {"", record.job_id}:
        return False
    return not worker or f"{record.worker}/".startswith(f"{worker.rstrip('/')}/")


@command.command
@json_option
@click.pass_context
def verify(ctx: click.Context, *, as_json: bool) -> None:
    """Check every record against its leaf, and the numbers; write the root of the tree (RFC 6962).

    It proves that the log is whole in itself. That it is the log that was written, a checkpoint kept elsewhere proves.
    """
    with auditor() as opened:
        found = verified(opened)
    if as_json:
        document("audit-verification", _verification(found))
    else:
        _write_verification(found)
    if found.problems:
        ctx.exit(int(Exit.BROKEN))


@command.command
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Begin behind this record.")
def export(after: int) -> None:
    """Write every record with leaf, salt and body, one JSON document a line: what another verifier needs."""
    with auditor() as opened:
        for page in pages(opened, after):
            for row in page:
                json_line("audit-row", _exported(row))


def verified(opened: Auditor) -> Findings:
    """Verify the whole log, page by page."""
    whole = Findings((), 0, (), 1, Frontier())
    for page in pages(opened):
        found = verify_page(page, whole.next_seq, whole.frontier)
        whole = Findings(
            (*whole.problems, *found.problems),
            whole.verified + found.verified,
            (*whole.erased, *found.erased),
            found.next_seq,
            found.frontier,
        )
    return whole


def _verification(found: Findings) -> dict[str, object]:
    return {
        "whole": not found.problems,
        "size": found.frontier.size,
        "root": found.frontier.root().hex(),
        "verified": found.verified,
        "erased": len(found.erased),
        "problems": [{"seq": problem.seq, "rule": problem.rule} for problem in found.problems],
    }


def _write_verification(found: Findings) -> None:
    from benteng.audit import RULES

    for problem in found.problems[:PROBLEMS_SHOWN_MAX]:
        write(f"record {problem.seq}: {RULES[problem.rule]} [{problem.rule}]")
    if len(found.problems) > PROBLEMS_SHOWN_MAX:
        say(f"and {len(found.problems) - PROBLEMS_SHOWN_MAX} more problems")
    said = "BROKEN" if found.problems else "whole"
    write(f"{said}: {found.verified} records verified, {len(found.erased)} erased, tree size {found.frontier.size}")
    write(f"root {found.frontier.root().hex()}")


def _show(rows: list[AuditRow], *, as_json: bool, as_lines: bool) -> None:
    if as_lines:
        for row in rows:
            json_line("audit-record", record_view(row))
    elif as_json:
        document("audit", {"records": [record_view(row) for row in rows]})
    else:
        table(HEADINGS, map(sentence, rows))


def _follow(opened: Auditor, after: int, *, as_lines: bool) -> None:
    while True:
        for row in opened.audit_page(after, PAGE):
            after = row.seq
            if as_lines:
                json_line("audit-record", record_view(row))
            else:
                write("  ".join(sentence(row)))
        time.sleep(FOLLOW_PAUSE_SECONDS)


def _exported(row: AuditRow) -> dict[str, object]:
    return {
        "seq": row.seq,
        "leaf": base64.b64encode(row.leaf).decode(),
        "salt": base64.b64encode(row.salt).decode() if row.salt is not None else None,
        "body": base64.b64encode(row.body).decode() if row.body is not None else None,
    }
