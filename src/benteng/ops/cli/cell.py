"""`benteng cell`: zygote and cells of a pool, for a supervisor that is another user or in another container.

It reads no configuration and knows no store: the supervisor that connects says what to import.
"""

from __future__ import annotations

import os
import pwd
from functools import partial
from pathlib import Path

import click

from benteng.errors import PolicyError
from benteng.ops.cli.options import log_option, teller


@click.command
@click.option(
    "--listen", required=True, metavar="unix:/PATH", help="The socket to make; fd:N for one that is inherited."
)
@click.option(
    "--supervisor", "supervisors", required=True, multiple=True, help="A user, by name or number, that may connect."
)
@click.option("--group", default="", help="A group whose members reach the socket; default: only this user does.")
@click.option("--scratch", type=click.Path(file_okay=False, path_type=Path), help="Where jobs have their directories.")
@log_option
def command(listen: str, supervisors: tuple[str, ...], group: str, scratch: Path | None, log: str) -> None:
    """Wait for the supervisor of a pool and hold its cells, until SIGTERM or SIGINT; one supervisor at a time.

    Zygote and cells have this process's user, which must not be root, and nothing of its environment but what the
    pool lists. When the supervisor hangs up, all of them are ended.
    """
    from benteng.worker.listener import Door, serve
    from benteng.worker.notify import notify

    door = Door(listen, frozenset(map(_uid, supervisors)), group, scratch)
    serve(door, teller(log), partial(notify, "READY=1", os.environ))


def _uid(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise PolicyError("W-peer", "there is no such user", field="supervisor", fix="name one by its number") from None
