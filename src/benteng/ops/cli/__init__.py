"""The command `benteng`. Subcommands load when they are used; help comes from the table below, so that it stays fast.

Every error that benteng raises on purpose ends here as one clear line and its exit code, never as a traceback:
`BENTENG_DEBUG=1` shows that.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any, NoReturn

import click

COMMANDS: dict[str, str] = {
    "demo": "Watch one hardened queue at work. Nothing else is needed.",
    "bench": "Measure what this installation does in a second.",
    "init": "Write benteng.toml, an example jobs.py and keys.",
    "doctor": "Examine this installation.",
    "worker": "Run the jobs of one pool.",
    "supervise": "Run pools, each process as its own user.",
    "cell": "Hold the cells of a pool whose supervisor is elsewhere.",
    "keeper": "Run what time does: leases, due jobs, retention.",
    "enqueue": "Send one job through the gate.",
    "jobs": "List, show, cancel and watch jobs.",
    "why": "Say why a job is where it is, and what to do.",
    "quarantine": "Look at, classify, discard and resolve what cannot go on.",
    "replay": "Judge a quarantined job again and bring it back.",
    "kill": "Close, list and open the switches: no job starts under a closed one.",
    "depth": "Set and list how many active jobs an origin may have.",
    "artifact": "Make the artifacts known that jobs may refer to.",
    "audit": "Read, verify and export the audit log.",
    "policy": "Lock, apply, show and compare the policies of the job types.",
    "isolation": "Show and test what holds a cell on this host.",
    "migrate": "Make and upgrade the tables and verbs of a PostgreSQL ledger.",
    "restore": "Let a PostgreSQL ledger go on after a failover or a restore.",
    "roles": "Print, make and verify the roles of a PostgreSQL ledger.",
    "config": "Show the effective configuration and where it comes from.",
    "version": "Show versions.",
}
"""What the overview says of each subcommand, which is `command` in the module of its name below this package."""

FORM = "benteng.form"
"""Key in click's shared `ctx.meta`: the `output.Form` that the command was asked for."""


class Overview(click.Group):
    """A group that knows its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table: the order in which a newcomer meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command's module and return its command; None for an unknown name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"benteng.ops.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table alone."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a near name for a mistyped one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            ctx.fail(f"no command {args[0]!r}" + (f": did you mean {near[0]}?" if near else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and turn what is raised into one line and an exit code."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError:  # the reader of stdout went away: click ends quietly
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the end of the line: nothing may show a traceback
            _end(ctx, error)


@click.group(cls=Overview, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """benteng: a hardened job queue for jobs whose one wrong execution is expensive.

    stdout is data, stderr is talk. Exit codes: docs/reference/exit-codes.md.
    """


def _end(ctx: click.Context, error: BaseException) -> NoReturn:
    from benteng.ops.exits import exit_of
    from benteng.ops.output import Form, report

    if os.environ.get("BENTENG_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    code = exit_of(error)
    report(error, code, ctx.meta.get(FORM, Form.TEXT))
    ctx.exit(int(code))
