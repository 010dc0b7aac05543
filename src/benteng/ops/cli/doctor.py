"""`benteng doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from benteng.ops.cli.options import configuration, json_option
from benteng.ops.output import document, write

if TYPE_CHECKING:
    from benteng.ops.doctor import Finding

MARKS = {"ok": "ok  ", "note": "note", "warning": "WARN", "error": "ERR "}


@click.command
@json_option
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Examine this installation, and say what to do. Exit 1 for an error, 3 for warnings only."""
    from benteng.ops.doctor import examine, exit_for

    findings = examine(configuration())
    code = exit_for(findings)
    if as_json:
        document("doctor", {"findings": [asdict(finding) for finding in findings], "exit": int(code)})
    else:
        for finding in findings:
            write(_line(finding))
    ctx.exit(int(code))


def _line(finding: Finding) -> str:
    fix = f"   > {finding.fix}" if finding.fix else ""
    return f"{MARKS[finding.level]} {finding.check:11} {finding.text}{fix}"
