"""Open what a configuration names: the gate, the keys, and in `dev` the policies by themselves, aloud.

In `prod` nothing happens by itself: a type that is not in the reviewed lock file, or whose row in the ledger differs,
stops the start and names the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path

from benteng import lockfile
from benteng.config import Config, Environment, load
from benteng.errors import PolicyError
from benteng.gate import Gate
from benteng.keyring import SigningKey, load_signing_key
from benteng.policy import TypePolicy, differences, missing_for
from benteng.store.open import default_dsn, is_postgres, open_operator, open_producer
from benteng.store.records import Facet
from benteng.task import Registry

PRODUCER_KEY = "producer.key"
Say = Callable[[str], None]


def open_gate(registry: Registry, dsn: str, directory: Path | None, *, say: Say) -> Gate:
    """Open the gate of an application. Raises PolicyError, KeyringError, StoreError."""
    config = load(directory, dsn=dsn)
    policies = settle_policies(config, registry.policies(), say)
    producer = open_producer(dsn_of(config, Facet.PRODUCER), environment=config.environment.value)
    producer.admitting(()).begin()  # nobody waits: what a ledger makes ready for the first job, it makes meanwhile
    return Gate(producer, registry, policies, signer(config.keys), config.durability)


def dsn_of(config: Config, facet: Facet, pool: str = "") -> str:
    """Return the store's address for a facet: the configured one, else the embedded store of the user."""
    return config.dsn(facet, pool) or default_dsn()


def signer(keys: Path) -> Callable[[], SigningKey | None]:
    """Return what loads the producer's key when a job needs it; None when this host has none."""

    @cache
    def load_once() -> SigningKey | None:
        path = keys / PRODUCER_KEY
        return load_signing_key(path) if path.exists() else None

    return load_once


def settle_policies(config: Config, code: Mapping[str, TypePolicy], say: Say) -> dict[str, TypePolicy]:
    """Return the reviewed policies after checking that code, lock file and ledger agree on the types of the code.

    In `dev` a difference is locked and applied, and said; in `prod` it raises PolicyError naming it. A host without an
    operator's address cannot ask the ledger for all of them: there each enqueue and each worker's register compares.
    """
    if config.environment is Environment.DEV:
        return _settle_dev(config, code, say)
    locked = lockfile.read(config.lock)
    _refuse_difference(
        "the lock file", {name: locked[name] for name in code if name in locked}, code, "benteng policy lock"
    )
    _refuse_missing(code, roles=keeps_roles(config))
    if not has_operator(config):
        return locked
    with closing(open_operator(dsn_of(config, Facet.OPERATOR), environment=config.environment.value)) as operator:
        ledger = lockfile.from_rows(operator.types())
    _refuse_difference(
        "the ledger", {name: ledger[name] for name in code if name in ledger}, code, "benteng policy apply"
    )
    return locked


def _settle_dev(config: Config, code: Mapping[str, TypePolicy], say: Say) -> dict[str, TypePolicy]:
    locked = lockfile.read(config.lock)
    merged = locked | dict(code)
    changes = differences(locked, merged)
    if changes:
        lockfile.write(config.lock, merged)
        for line in changes:
            say(f"dev: locked {line}")
    if has_operator(config):
        apply_policies(config, merged, say)
    elif changes:
        say("dev: this host has no operator's address. Where there is one, run: benteng policy apply")
    return merged


def has_operator(config: Config) -> bool:
    """Return whether this host may speak as an operator: always with the embedded store."""
    return config.is_embedded or Facet.OPERATOR in config.dsns


def keeps_roles(config: Config) -> bool:
    """Return whether the ledger of this host keeps roles apart: PostgreSQL does, a file cannot."""
    named = [*config.dsns.values(), *(pool.dsn for pool in config.pools.values() if pool.dsn)]
    return bool(named) and all(map(is_postgres, named))


def apply_policies(config: Config, policies: Mapping[str, TypePolicy], say: Say) -> list[str]:
    """Write policies into the ledger's `job_type`; return what changed. Raises NeedsAction at HIGH in `prod`."""
    with closing(open_operator(dsn_of(config, Facet.OPERATOR), environment=config.environment.value)) as operator:
        ledger = {row.name: row.sha256 for row in operator.types()}
        rows = [row for row in lockfile.to_rows(policies) if ledger.get(row.name) != row.sha256]
        changed = operator.apply_types(rows, "applied from the lock file") if rows else []
    for name in changed:
        missing = ", ".join(row.floor for row in missing_for(policies[name].tier, roles=keeps_roles(config)))
        say(f"{config.environment}: applied {name}" + (f" (not enforced yet: {missing})" if missing else ""))
    return changed


def _refuse_difference(
    where: str, reviewed: Mapping[str, TypePolicy], code: Mapping[str, TypePolicy], fix: str
) -> None:
    lines = differences(reviewed, code)
    if lines:
        raise PolicyError("L-differs", f"{where} differs from the code: {lines[0]}", fix=f"run: {fix}")


def _refuse_missing(code: Mapping[str, TypePolicy], *, roles: bool) -> None:
    for name, policy in code.items():
        for row in missing_for(policy.tier, roles=roles):
            raise PolicyError(
                "F-pending",
                f"{name} is {policy.tier}, and there is no {row.floor}: {row.missing}",
                fix='use environment = "dev" to try it, or tier LOW',
            )
