"""`benteng init`: the files of a first application. Never overwrites one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benteng.clock import system_clock
from benteng.ops.cli.options import json_option
from benteng.ops.output import document, say, write

if TYPE_CHECKING:
    from benteng.config import Config
    from benteng.ops.deploy.site import Site

CONFIG = """\
# benteng: see `benteng config show --sources`. Unknown keys are errors.
environment = "dev"      # "prod" refuses what is not safe; dev does it, aloud
app = "jobs:app"         # module:attribute of the application

[pool.default]
concurrency = 4          # attempts at the same time
"""

JOBS = '''\
"""The job types of this application."""

from benteng import Benteng

app = Benteng()


@app.job
def greet(name: str) -> str:
    """Harmless when doubled, so it is LOW, and its signature is its contract."""
    return f"Halo, {name}"
'''

IGNORE = """\
# Private keys: never in a repository.
*
"""


@click.group(invoke_without_command=True)
@click.option("--keys", "only_keys", is_flag=True, help="Make only the keys.")
@json_option
@click.pass_context
def command(ctx: click.Context, *, only_keys: bool, as_json: bool) -> None:
    """Write benteng.toml (dev), an example jobs.py, and keys in .benteng/, where they are missing.

    A file that exists is left as it is, and said.
    """
    if ctx.invoked_subcommand is not None:
        return
    here = Path.cwd()
    written: list[str] = []
    kept: list[str] = []
    if not only_keys:
        for name, text in (("benteng.toml", CONFIG), ("jobs.py", JOBS)):
            (written if _create(here / name, text) else kept).append(name)
    _keys(written, kept)
    if as_json:
        document("init", {"written": written, "kept": kept})
        return
    for name in written:
        write(f"wrote {name}")
    for name in kept:
        say(f"{name} exists: left as it is")
    if not only_keys:
        say("next: benteng enqueue greet name=dunia && benteng worker")


@command.command("systemd")
@click.option("--pool", required=True, help="The pool to deploy.")
@click.option("--out", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Write files there.")
@click.option("--database", default="localhost", show_default=True, help="The store's addresses, for IPAddressAllow.")
def systemd(pool: str, out: Path | None, database: str) -> None:
    """Print, or write, units of systemd for a pool: supervisor, cells behind a socket, keeper, and their users."""
    from benteng.ops.deploy.systemd import units

    _give(units(_site(pool), database), out)


@command.command("docker")
@click.option("--pool", required=True, help="The pool to deploy.")
@click.option("--out", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Write files there.")
def docker(pool: str, out: Path | None) -> None:
    """Print, or write, a Dockerfile and a compose file for a pool: supervisor and cells in two containers."""
    from benteng.ops.deploy.docker import files

    _give(files(_site(pool)), out)


def _site(pool: str) -> Site:
    from benteng.config import load
    from benteng.ops.deploy.site import site_of

    return site_of(load(), pool, Path(sys.prefix))


def _give(files: dict[str, str], out: Path | None) -> None:
    for name, text in files.items():
        if out is None:
            write(f"# ---- {name}\n{text}")
        elif _create(out / name, text):
            write(f"wrote {out / name}")
        else:
            say(f"{name} exists: left as it is")


def _create(path: Path, text: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        return False
    path.chmod(0o644)  # whatever the umask: a configuration that others may write is refused
    return True


def _keys(written: list[str], kept: list[str]) -> None:
    from benteng.config import load
    from benteng.keyring import TRUST_FILE

    config = load()
    name = os.path.relpath(config.keys)
    if (config.keys / TRUST_FILE).exists():
        kept.append(name)
        return
    _generate(config)
    _create(config.keys / ".gitignore", IGNORE)
    written.append(name)


def _generate(config: Config) -> None:
    from benteng.keyring import generate

    generate(config.keys, origin=f"os:{os.getuid()}", now=system_clock())
