"""`benteng roles`: who may do what in a PostgreSQL ledger. As SQL for review; made; compared with what is installed.

For the person who administers the database. The address of a superuser comes from BENTENG_DBA_DSN alone, and is no part
of the configuration: no service may ever find it there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from benteng.ops.cli.options import json_option, reason_option
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import document, say, write

if TYPE_CHECKING:
    from benteng.store.postgres.findings import Finding
    from benteng.store.postgres.roles import Login

DSN = "BENTENG_DBA_DSN"
PASSWORD_CHARS_MAX = 1024
speaks_option = click.option(
    "--speaks",
    multiple=True,
    metavar="ACTOR:TYPE",
    help="What a producer may enqueue, for whom: svc:web:greet@1; * is any; :greet@1 names no actor. May be repeated.",
)


@click.group
def command() -> None:
    """Print, make and verify the roles of a PostgreSQL ledger: one group a facet, one login a service.

    BENTENG_DBA_DSN names the database as a superuser; keep the password in ~/.pgpass or a service file.
    """


@command.command("print")
@click.option("--login", "logins", multiple=True, metavar="NAME:FACET[:POOL]", help="A login too. May be repeated.")
def print_(*, logins: Sequence[str]) -> None:
    """Print the SQL that makes the roles, for review. No connection; the same input gives the same text."""
    from benteng.store.postgres.roles import script

    click.echo(script(*map(_login, logins)), nl=False)


@command.command
@click.argument("name", default="")
@click.option("--facet", default="", help="What the login may do: producer, consumer, keeper, operator, auditor, ...")
@click.option("--pool", default="", help="The one pool of a consumer.")
@click.option("--password-stdin", is_flag=True, help="Read its password from stdin. Without: for peer or cert logins.")
@speaks_option
def create(*, name: str, facet: str, pool: str, password_stdin: bool, speaks: Sequence[str]) -> None:
    """Make owner and groups, and give each group its verbs; with NAME, make one login.

    May be repeated: what was granted beyond the table is taken back. A login that exists is never changed.
    """
    from benteng.store.postgres import roles

    login = roles.Login(name, facet, pool) if name else None
    if login is None:
        roles.install(_dsn())
        say("owner, groups and their verbs are as the table has them")
        return
    speeches = [*map(roles.Speech.parse, speaks)]
    roles.create_login(_dsn(), login, _password() if password_stdin else None, speeches)
    say(f"made {login.name}: {login.facet}{f' of pool {login.pool}' if login.pool else ''}")


@command.command
@click.argument("name")
@speaks_option
@reason_option
def allow(*, name: str, speaks: Sequence[str], reason: str) -> None:
    """Let the producer's login NAME enqueue more. In prod a login may enqueue nothing that nobody allowed."""
    from benteng.store.postgres import roles

    if not speaks:
        raise Fault(Exit.USAGE, "nothing is to be allowed", fix="say what: --speaks ACTOR:TYPE")
    new = roles.allow(_dsn(), name, [*map(roles.Speech.parse, speaks)], reason)
    say(f"{name} may enqueue {new} more")


@command.command
@json_option
@click.pass_context
def verify(ctx: click.Context, *, as_json: bool) -> None:
    """Compare the installed rights and functions with the table. Exit 34: somebody may do too much; 1: too little."""
    from benteng.store.postgres.findings import verify as examine

    found = examine(_dsn())
    code = exit_for(found)
    if as_json:
        document("roles", {"findings": [asdict(finding) for finding in found], "exit": int(code)})
    for finding in [] if as_json else found:
        write(f"{finding.rule}: {finding.subject} {finding.said}   > {finding.fix}")
    if not found:
        say("rights and functions are as shipped")
    ctx.exit(int(code))


def exit_for(found: Sequence[Finding]) -> Exit:
    """Return the exit code for findings: too much weighs more than too little."""
    if any(finding.excess for finding in found):
        return Exit.EXCESS
    return Exit.FAILED if found else Exit.OK


def _login(text: str) -> Login:
    from benteng.store.postgres.roles import Login

    name, _, rest = text.partition(":")
    facet, _, pool = rest.partition(":")
    return Login(name, facet, pool)


def _dsn() -> str:
    found = os.environ.get(DSN, "")
    if not found:
        raise Fault(Exit.CONFIG, "no database is named", fix=f"set {DSN} to the address of a superuser")
    return found


def _password() -> str:
    line = sys.stdin.readline(PASSWORD_CHARS_MAX).rstrip("\n")
    if not line:
        raise Fault(Exit.USAGE, "there is no password on stdin", fix="pipe it in, or leave --password-stdin out")
    return line
