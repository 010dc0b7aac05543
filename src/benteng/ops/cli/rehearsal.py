"""`benteng isolation try`: run a job type once under observation, and write the allow-list that a person reviews.

The handler runs for real. This process holds no credential of the store, and the application is imported in the
observed cell alone.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from benteng import lockfile
from benteng.config import Environment
from benteng.ops.cli.options import configuration, json_option, teller
from benteng.ops.exits import Exit, Fault
from benteng.ops.output import document, say, table, write
from benteng.outcome import Completed, Judged

if TYPE_CHECKING:
    from benteng.config import Config
    from benteng.outcome import Outcome
    from benteng.policy import TypePolicy
    from benteng.worker.launch import WorkerSettings
    from benteng.worker.nursery import Nest
    from benteng.worker.rehearsal import allow

PAYLOAD_BYTES_MAX = 256 * 1024
POSTGRES_PORT = 5432
SQLITE_ENDS = ("-wal", "-shm", "-journal")
"""What lies beside an embedded store while it is open."""


@click.command("try")
@click.argument("type_name", metavar="TYPE")
@click.option(
    "--payload",
    "payload_path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the payload, as JSON.",
)
@click.option("--pool", default="", metavar="POOL", help="Whose settings count; default: the type's own pool.")
@click.option("--app", "reference", default="", metavar="MODULE:ATTR", help="The application; default: as configured.")
@click.option("--yes", is_flag=True, help="Run it in prod too: what the handler does is done.")
@json_option
@click.pass_context
def try_command(
    ctx: click.Context,
    type_name: str,
    payload_path: Path,
    pool: str,
    reference: str,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Run TYPE once under observation and write what its pool would have to allow.

    THE HANDLER RUNS FOR REAL, without the walls of its tier: what it writes, starts and connects to happens. No job is
    made, and no store is opened. The store's files and keys stay out of its reach; who wants them is told.
    """
    from benteng.worker.rehearsal import allow, stage

    config = configuration()
    if config.environment is Environment.PROD and not yes:
        raise Fault(Exit.USAGE, "the handler would run for real, in prod", fix="say --yes if that is meant")
    policy = _policy(config, type_name, reference)
    settings = _settings(config, policy, pool or policy.pool, reference)
    nest = _nest(config, settings)
    say(f"{policy.name} runs for real now, once, without walls: what it does is done")
    seen = stage.rehearse(stage.Play(policy, _payload(payload_path), nest, os.environ, say))
    given = _given(config, settings, nest, policy, seen.scratch)
    found = allow.rows(seen.sights, given)
    _tell(policy, given, found, seen, as_json=as_json)
    ctx.exit(int(_exit(seen.outcome, found)))


def _policy(config: Config, type_name: str, reference: str) -> TypePolicy:
    """Return the policy of a type: in prod as it was reviewed, in dev as the code says."""
    from benteng.ops.cli.policy import of_code

    is_prod = config.environment is Environment.PROD
    policies = lockfile.read(config.lock) if is_prod else of_code(config, reference)
    named = [policy for name, policy in policies.items() if type_name in (name, name.rpartition("@")[0])]
    if len(named) != 1:
        raise Fault(Exit.NOT_FOUND, "no such job type, or more than one", fix=f"one of: {', '.join(sorted(policies))}")
    return named[0]


def _settings(config: Config, policy: TypePolicy, pool: str, reference: str) -> WorkerSettings:
    from benteng.ops.cli.worker import pool_of, settings

    app = reference or config.app
    return settings(config, app, {policy.name: policy}, pool_of(config, pool, None), False, None, teller("text"))


def _nest(config: Config, settings: WorkerSettings) -> Nest:
    """Return what the pool's zygote is started with, and as secrets all that a tried handler must not reach."""
    from benteng.worker.launch import nest_of

    nest = nest_of(settings, frozenset())
    beside = [path.with_name(path.name + end) for path in nest.secrets for end in SQLITE_ENDS]
    return dataclasses.replace(nest, secrets=(*nest.secrets, *beside, config.keys))


def _payload(path: Path) -> bytes:
    data = path.read_bytes()
    if len(data) > PAYLOAD_BYTES_MAX:
        raise Fault(Exit.USAGE, f"the payload has more than {PAYLOAD_BYTES_MAX} bytes")
    return data


def _given(config: Config, settings: WorkerSettings, nest: Nest, policy: TypePolicy, scratch: str) -> allow.Pool:
    """Return what the pool's cells may do now, and what nobody may have."""
    import msgspec

    from benteng.worker.cell import walls_of
    from benteng.worker.rehearsal import allow

    walls = walls_of(nest.configure(apart=False))
    shown: dict[str, Any] = msgspec.to_builtins(config.pool(settings.pool.name))
    lists = {name: tuple(map(str, value)) for name, value in shown.items() if type(value) in (list, tuple)}
    return allow.Pool(
        name=settings.pool.name,
        tier=policy.tier,
        read=walls.read,
        write=(*walls.write, scratch),
        listed=walls.listed,
        lists=lists,
        set=frozenset(os.environ),
        secrets=nest.secrets,
        store=_servers(settings.dsn),
    )


def _servers(dsn: str) -> frozenset[str]:
    """Return the store's server as its address names it, and by number."""
    from benteng.store.open import is_postgres

    parts = urlsplit(dsn)
    if not is_postgres(dsn) or not parts.hostname:
        return frozenset()
    port = parts.port or POSTGRES_PORT
    try:
        numbers = {str(each[4][0]) for each in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)}
    except OSError:
        numbers = set[str]()
    return frozenset(f"{host}:{port}" for host in (parts.hostname, *numbers, *(f"[{each}]" for each in numbers)))


def _tell(policy: TypePolicy, given: allow.Pool, found: list[allow.Row], seen: Any, *, as_json: bool) -> None:
    from benteng.worker.rehearsal import allow

    lines = allow.paste(found, given)
    outcome, why = type(seen.outcome).__name__.lower(), _why(seen.outcome)
    if as_json:
        wanted = [
            {"kind": row.kind.value, "what": row.what, "state": row.state.value, "why": row.why, "value": row.value}
            for row in found
        ]
        body = {"type": policy.name, "pool": given.name, "tier": policy.tier.value, "outcome": outcome}
        document("isolation-try", body | {"why": why, "wanted": wanted, "paste": lines, "cut": seen.cut})
        return
    shown = [row for row in found if row.state is not allow.State.GRANTED]
    table(("WHAT", "WHICH", "STATE", "WHY"), [(row.kind.value, row.what, row.state.value, row.why) for row in shown])
    say(f"{policy.name} {outcome}{': ' if why else ''}{why}")
    say(f"{len(found) - len(shown)} more things are granted to cells of pool {given.name} already; --json lists them")
    for line in lines:
        write(line)
    if not lines:
        say("nothing is to be added to the pool's settings")


def _why(outcome: Outcome) -> str:
    """Return in words why it did not complete."""
    if isinstance(outcome, Judged):
        return f"{outcome.verdict.reason} [{outcome.verdict.rule}]"
    return str(getattr(outcome, "error", "") or getattr(outcome, "why", ""))


def _exit(outcome: Outcome, found: list[allow.Row]) -> Exit:
    if any(row.grave for row in found):
        return Exit.BELOW
    return Exit.OK if isinstance(outcome, Completed) else Exit.NOT_COMPLETED
