"""`benteng worker`: run one pool. This process holds a credential, so it never imports the application.

What the code says about its types comes from a child without credential, and is locked and applied aloud in `dev`; in
`prod` only the reviewed lock file counts.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from benteng import lockfile
from benteng.config import Environment
from benteng.ops.cli.options import Teller, configuration, level_option, log_option, teller, write_lines
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import say
from benteng.policy import POOL_DEFAULT

if TYPE_CHECKING:
    from benteng.config import Config
    from benteng.policy import TypePolicy
    from benteng.worker.launch import WorkerSettings
    from benteng.worker.pool import Pool

INHERITED: Final = "fd:3"
"""The line to a warden that `benteng supervise` gave this process."""

BROKER: Final = "fd:5"
"""The line to an egress broker, likewise."""


@click.command
@click.argument("reference", metavar="[MODULE:ATTR]", default="")
@click.option("--pool", default=POOL_DEFAULT, show_default=True, help="Which pool's jobs to run.")
@click.option("--concurrency", type=click.IntRange(1, 1_000), help="Attempts at the same time; default: as configured.")
@click.option("--keeper/--no-keeper", default=True, show_default=True, help="Start a keeper with it.")
@click.option(
    "--give-up", "give_up_seconds", type=float, metavar="S", help="End with 75 when the store was away for S seconds."
)
@click.option(
    "--linger",
    "linger_seconds",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    metavar="S",
    help="When refused (exit code 78), stay for S seconds: for who would start it again at once.",
)
@click.option("--supervised", is_flag=True, hidden=True, help="Started by `benteng supervise`, which passes two lines.")
@log_option
@level_option
@click.pass_context
def command(
    ctx: click.Context,
    reference: str,
    pool: str,
    concurrency: int | None,
    log: str,
    log_level: str,
    give_up_seconds: float | None,
    linger_seconds: float,
    *,
    keeper: bool,
    supervised: bool,
) -> None:
    """Run the jobs of one pool until SIGTERM or SIGINT; running ones are then drained.

    MODULE:ATTR is the application, as jobs:app; default: from benteng.toml.
    """
    from benteng.worker.launch import run_worker

    config = configuration()
    app = reference or config.app
    elsewhere = INHERITED if supervised else config.pool(pool).cell
    locked = policies(config, app, here=not elsewhere)
    made = settings(
        config, app, locked, pool_of(config, pool, concurrency), keeper, give_up_seconds, teller(log, log_level)
    )
    broker = BROKER if supervised and config.pool(pool).egress else ""
    ready = partial(tell_ready, supervised=supervised)
    code = run_worker(replace(made, cell=elsewhere, broker=broker, ready=ready, rests=write_lines))
    if code == Exit.CONFIG and linger_seconds:
        linger(linger_seconds)
    ctx.exit(code)


def linger(seconds: float) -> None:
    """Wait so long, or for SIGTERM or SIGINT: each start that is refused is written into the log."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    say(f"refused: it stays for {seconds:g} s, or until it is ended, and does nothing")
    signal.sigtimedwait(ends, seconds)


def supervised() -> NoReturn:
    """Be the supervisor that `benteng supervise` starts: the line to its warden is descriptor 3, that to us is 4."""
    from benteng.ops.cli import main

    main(["worker", "--supervised", *sys.argv[2:]], prog_name="benteng")
    raise AssertionError("click ends the process")


def tell_ready(*, supervised: bool) -> None:
    """Say that jobs are being claimed: to our launcher, or to a service manager that wants to know."""
    from benteng.worker.launcher import SUPERVISOR_READY
    from benteng.worker.notify import notify, write_ready

    if supervised:
        write_ready(SUPERVISOR_READY)
    else:
        notify("READY=1", os.environ)


def policies(config: Config, reference: str, *, here: bool = True) -> dict[str, TypePolicy]:
    """Return the reviewed policies; in `dev` after locking and applying, aloud, what the code says.

    Where cells are another user's or elsewhere, this process does not have the code run by a child of its own either.
    """
    from benteng.opening import settle_policies
    from benteng.ops.cli.policy import of_code
    from benteng.ops.reference import check_reference

    check_reference(reference)
    if here and config.environment is Environment.DEV:
        return settle_policies(config, of_code(config, reference), say)
    locked = lockfile.read(config.lock)
    if not locked:
        raise Fault(Exit.CONFIG, "the lock file has no job type", fix="benteng policy lock, review it, policy apply")
    return locked


def pool_of(config: Config, name: str, concurrency: int | None) -> Pool:
    """Return a pool as configured. Raises PolicyError for what cannot be."""
    from benteng.worker.pool import Pool, Start

    found = config.pool(name)
    return Pool(
        name=name,
        concurrency=concurrency or found.concurrency,
        types=found.types,
        starts_per_minute=found.starts_per_minute,
        start=Start(found.start),
        env=found.env,
        secrets=found.secrets,
        uid=found.uid,
        gid=found.gid,
        read=found.read,
        write=found.write,
        exec=found.exec,
        egress=found.egress,
        egress_connects_per_job=found.egress_connects_per_job,
        broker_uid=found.broker_uid,
        broker_gid=found.broker_gid,
        waive=found.waive,
        drain_seconds=found.drain_seconds,
    )


def settings(
    config: Config,
    app: str,
    locked: dict[str, TypePolicy],
    pool: Pool,
    keeper: bool,  # noqa: FBT001 - one value of a flat list
    give_up_seconds: float | None,
    say: Teller,
) -> WorkerSettings:
    """Return everything that the worker is started with."""
    from benteng.keyring import TRUST_FILE
    from benteng.opening import dsn_of
    from benteng.ops.reference import paths_of
    from benteng.store.records import Facet
    from benteng.worker.launch import WorkerSettings

    trust = config.keys / TRUST_FILE
    return WorkerSettings(
        dsn=dsn_of(config, Facet.CONSUMER, pool.name),
        app=app,
        lock=locked,
        pool=pool,
        environment=config.environment.value,
        keeper=keeper,
        trust_path=trust if trust.exists() else None,
        artifact_dir=config.artifacts if config.artifacts.is_dir() else None,
        cwd=config.root,
        paths=tuple(Path(path) for path in paths_of(config.root)[1:]),
        poll_seconds=config.poll_seconds,
        give_up_seconds=give_up_seconds,
        say=say,
    )
