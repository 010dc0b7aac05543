"""`benteng policy`: what the code says, what was reviewed, and what the ledger enforces.

The code is asked in a child process without credential; this one never imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from benteng import lockfile
from benteng.ops.cli.options import configuration, json_option, operator, rules
from benteng.ops.exits import Exit
from benteng.ops.output import document, say, table, write
from benteng.policy import TypePolicy, differences, missing_for

if TYPE_CHECKING:
    from benteng.config import Config

app_option = click.option(
    "--app", "reference", default="", metavar="MODULE:ATTR", help="The application; default: from benteng.toml."
)


@click.group
def command() -> None:
    """Lock, apply, show and compare the policies of the job types."""


@command.command
@app_option
@json_option
def lock(reference: str, *, as_json: bool) -> None:
    """Write the lock file from the code, and say what changed. Review the difference before it is applied.

    Types that the code does not have any more are taken out.
    """
    config = configuration()
    code = of_code(config, reference)
    changes = differences(lockfile.read(config.lock), code)
    if changes or not config.lock.exists():
        lockfile.write(config.lock, code)
    _tell("policy-lock", changes, f"{config.lock.name} says what the code says", as_json=as_json)


@command.command
@json_option
def apply(*, as_json: bool) -> None:
    """Put the lock file's policies into the ledger. Types of tier HIGH need an Action outside dev."""
    from benteng.opening import apply_policies

    config = configuration()
    with rules():
        changed = apply_policies(config, lockfile.read(config.lock), say)
    _tell("policy-apply", changed, "the ledger says what the lock file says", as_json=as_json)


@command.command
@json_option
def show(*, as_json: bool) -> None:
    """Show the reviewed policies."""
    import msgspec

    from benteng.opening import keeps_roles

    locked = lockfile.read(configuration().lock)
    if as_json:
        document("policy", {"types": {name: msgspec.to_builtins(policy) for name, policy in locked.items()}})
        return
    roles = keeps_roles(configuration())
    rows = [_row(policy, roles=roles) for policy in locked.values()]
    table(["type", "tier", "effect", "pool", "operation", "resources", "not enforced yet"], rows)
    if not locked:
        say("the lock file has no job type: benteng policy lock")


@command.command
@app_option
@json_option
@click.pass_context
def diff(ctx: click.Context, reference: str, *, as_json: bool) -> None:
    """Show how code, lock file and ledger differ. Exit 32 when they do."""
    if _compare(configuration(), reference, as_json=as_json):
        ctx.exit(int(Exit.DIFFERS))


@command.command
@app_option
@json_option
@click.pass_context
def check(ctx: click.Context, reference: str, *, as_json: bool) -> None:
    """Check that the lock file is what the code says: for CI, needs no store. Exit 32 when it is not."""
    config = configuration()
    lines = differences(lockfile.read(config.lock), of_code(config, reference))
    _tell("policy-check", lines, f"{config.lock.name} says what the code says", as_json=as_json)
    if lines:
        ctx.exit(int(Exit.DIFFERS))


def of_code(config: Config, reference: str) -> dict[str, TypePolicy]:
    """Return what the code says, asked in a child."""
    from benteng.ops.describe import policies_of
    from benteng.ops.reference import paths_of

    return policies_of(reference or config.app, paths_of(config.root), variables_of(config))


def variables_of(config: Config) -> list[str]:
    """Return the names of the variables that any pool's handlers may see."""
    return sorted({name for pool in config.pools.values() for name in pool.env})


def of_ledger() -> dict[str, TypePolicy]:
    """Return what the ledger enforces."""
    with operator() as opened:
        return lockfile.from_rows(opened.types())


def _compare(config: Config, reference: str, *, as_json: bool) -> bool:
    locked = lockfile.read(config.lock)
    found: Mapping[str, list[str]] = {
        "lock file -> code": differences(locked, of_code(config, reference)),
        "ledger -> lock file": differences(of_ledger(), locked),
    }
    if as_json:
        document("policy-diff", {"differences": found})
    else:
        for where, lines in found.items():
            for line in lines:
                write(f"{where}: {line}")
    if not any(found.values()):
        say("code, lock file and ledger say the same")
    return any(found.values())


def _tell(noun: str, lines: list[str], otherwise: str, *, as_json: bool) -> None:
    if as_json:
        document(noun, {"changes": lines})
        return
    for line in lines:
        write(line)
    if not lines:
        say(otherwise)


def _row(policy: TypePolicy, *, roles: bool) -> list[str]:
    missing = ", ".join(row.floor for row in missing_for(policy.tier, roles=roles))
    resources = ", ".join(key.path for key in policy.resources)
    return [policy.name, policy.tier, policy.effect, policy.pool, ", ".join(policy.operation), resources, missing]
