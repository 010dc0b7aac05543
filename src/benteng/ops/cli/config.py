"""`benteng config`: what is in force, and where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from benteng.ops.cli.options import configuration, json_option
from benteng.ops.output import document, table
from benteng.redact import patterns

if TYPE_CHECKING:
    from benteng.config import Config, PoolSettings


@click.group
def command() -> None:
    """Show the effective configuration and where it comes from."""


@command.command
@click.option("--sources", is_flag=True, help="Say where each value comes from.")
@json_option
def show(*, sources: bool, as_json: bool) -> None:
    """Show each setting. Passwords in an address are masked."""
    config = configuration()
    values = settings(config)
    if as_json:
        origins = {"sources": {key: source_of(config, key) for key in values}} if sources else {}
        document("config", {"settings": values} | origins)
        return
    rows = [[key, text(value), *([source_of(config, key)] if sources else [])] for key, value in values.items()]
    table(["setting", "value", *(["source"] if sources else [])], rows)


def settings(config: Config) -> dict[str, object]:
    """Return the settings by name, fit to be shown."""
    from benteng.store.open import default_dsn

    dsns = {facet.value: patterns(dsn) for facet, dsn in config.dsns.items()}
    same = len(set(dsns.values())) == 1
    return {
        "environment": config.environment.value,
        "dsn": next(iter(dsns.values())) if same else dsns or default_dsn(),
        "app": config.app,
        "root": str(config.root),
        "lock": str(config.lock),
        "keys": str(config.keys),
        "artifacts": str(config.artifacts),
        "durability": config.durability.value,
        "poll_seconds": config.poll_seconds,
        "pool": {name: shown(pool) for name, pool in config.pools.items()},
    }


def shown(pool: PoolSettings) -> dict[str, object]:
    """Return the settings of a pool, its password masked."""
    return msgspec.to_builtins(msgspec.structs.replace(pool, dsn=patterns(pool.dsn)))


def source_of(config: Config, key: str) -> str:
    """Return where a setting comes from."""
    return config.sources.get(key, "default")


def text(value: object) -> str:
    """Return a setting for a table."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
