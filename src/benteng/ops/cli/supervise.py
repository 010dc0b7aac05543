"""`benteng supervise`: read the settings, check them, and become the launcher, which has read nothing.

Root starts it, so it is short: it opens no store, imports nothing of the application, and is replaced by a program that
gets numbers and names through a pipe.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from benteng.config import VARIABLES
from benteng.errors import PolicyError
from benteng.ops.cli.options import configuration

if TYPE_CHECKING:
    from benteng.config import Config, PoolSettings

HANDED_ON = tuple(name for name in VARIABLES if name != "BENTENG_DSN")
NEEDS = ("uid", "gid", "supervisor_uid", "supervisor_gid")
BROKER_NEEDS = ("broker_uid", "broker_gid")


@click.command
@click.option(
    "--pool", "pools", multiple=True, help="A pool to run; may be repeated. Default: all that are configured."
)
def command(pools: tuple[str, ...]) -> None:
    """Run pools until SIGTERM or SIGINT, as root: each supervisor and each pool's cells become a user of their own.

    It restarts what ends, drains at the first signal and ends at once at the second. What opens the store must be in
    files that only the supervisor's user can read: a credential in the environment is refused.
    """
    from benteng.worker.program import program

    config = configuration()
    plans = plans_of(config, pools or tuple(config.pools), os.environ)
    with os.fdopen(os.memfd_create("plans"), "w+b") as stream:
        stream.write(json.dumps(plans).encode())
        stream.seek(0)
        os.dup2(stream.fileno(), 0)
    arguments = program("benteng.worker.launcher:main")
    environment = chosen(os.environ, "NOTIFY_SOCKET")
    os.execve(arguments[0], arguments, environment)  # noqa: S606 - our own interpreter, a fixed program


def chosen(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return what a process of ours may see of an environment: what all have, and these."""
    return {name: environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ", *names) if name in environ}


def plans_of(config: Config, names: Sequence[str], environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what the launcher is told. Raises PolicyError for what cannot be, before anything is started."""
    if os.geteuid() != 0:
        fix = "start it as root, or run `benteng worker` for each pool"
        raise PolicyError("W-supervise", "only root can become each pool's users", fix=fix)
    refuse_credentials(environ)
    found = {name: config.pool(name) for name in names}
    for name, pool in found.items():
        _check_pool(config, name, pool)
    _check_users(found)
    return [_plan(config, name, pool, environ) for name, pool in found.items()]


def refuse_credentials(environ: Mapping[str, str]) -> None:
    """Raise PolicyError when a variable opens a store: every process that is started could have had it."""
    for name, value in environ.items():
        if name in {"BENTENG_DSN", "PGPASSWORD"} or _has_password(value):
            fix = "set dsn in benteng.toml, and keep the password in a file of the supervisor's user (?passfile=)"
            raise PolicyError("W-credential", f"the variable {name} opens a store", fix=fix)


def _has_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return False


def _check_pool(config: Config, name: str, pool: PoolSettings) -> None:
    if name not in config.pools:
        raise PolicyError("W-pool", f"there is no pool {name}", fix=f"known: {', '.join(sorted(config.pools))}")
    if pool.cell:
        fix = "start its supervisor with `benteng worker`"
        raise PolicyError("W-supervise", f"pool {name} has its cells elsewhere", field="cell", fix=fix)
    needs = (*NEEDS, *BROKER_NEEDS) if pool.egress else NEEDS
    missing = [each for each in needs if not getattr(pool, each)]
    if missing:
        fix = f"set {' and '.join(missing)} of [pool.{name}] to users without login, none of them root"
        raise PolicyError("W-supervise", f"pool {name} has no users of its own", field=missing[0], fix=fix)


def _check_users(pools: Mapping[str, PoolSettings]) -> None:
    """Cells share a user with nobody: what has it could be read and ended by every job."""
    uids = [each for pool in pools.values() for each in (pool.uid, pool.supervisor_uid, pool.broker_uid)]
    for name, pool in pools.items():
        if uids.count(pool.uid) > 1:
            text = f"the uid of the cells of pool {name} is used for something else too"
            raise PolicyError("W-supervise", text, field="uid", fix="give each pool's cells a uid of their own")


def _plan(config: Config, name: str, pool: PoolSettings, environ: Mapping[str, str]) -> dict[str, Any]:
    from benteng.ops.cli.worker import pool_of

    cells = pool_of(config, name, None).environment(environ)
    broker = {"broker": {"uid": pool.broker_uid, "gid": pool.broker_gid}} if pool.egress else {}
    return broker | {
        "name": name,
        "supervisor": {"uid": pool.supervisor_uid, "gid": pool.supervisor_gid},
        "cells": {"uid": pool.uid, "gid": pool.gid},
        "supervisor_environment": _surroundings(pool, environ),
        "cell_environment": cells,
        "cwd": str(config.root),
        "drain_seconds": pool.drain_seconds,
    }


def _surroundings(pool: PoolSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the supervisor's environment: its own HOME, and what points to its configuration."""
    return chosen(environ, *HANDED_ON) | {"HOME": _home(pool.supervisor_uid or 0)}


def _home(uid: int) -> str:
    try:
        return str(Path(pwd.getpwuid(uid).pw_dir))
    except KeyError:
        return "/nonexistent"
