"""Examine an installation: what it is, what is not as it should be, and what to do about it.

Each check looks at one thing and cannot stop the others: one that fails is itself an error found. In `prod` what only
warns in `dev` is an error where a promise depends on it. Nothing is changed, and the user's code is asked in a child.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from math import ceil

from benteng import lockfile, secret
from benteng.audit import AuditRecord
from benteng.clock import SECOND, Instant, microseconds, system_clock
from benteng.config import FILE_NAME, Config, Environment
from benteng.errors import BentengError, PolicyError
from benteng.keyring import INSTALLATION_KEY_FILE, TRUST_FILE, load_installation_key, load_signing_key, load_trust
from benteng.opening import PRODUCER_KEY, dsn_of, keeps_roles
from benteng.ops.describe import policies_of
from benteng.ops.exits import Exit
from benteng.ops.log import last
from benteng.ops.reference import paths_of
from benteng.ops.runs import Runs, observed
from benteng.ops.why import records
from benteng.policy import DAY_SECONDS, Limits, TypePolicy, differences, missing_for
from benteng.redact import patterns
from benteng.store.contract import Store
from benteng.store.durability import Durability
from benteng.store.open import examine as examine_as_administrator
from benteng.store.open import is_postgres, open_auditor, open_consumer, open_keeper, open_operator, open_producer
from benteng.store.records import Facet, Health, Severity, Symptom

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 37, 0)
KEY_DAYS_LEFT_MIN = 30
RUN_SHARE_MAX = 0.8
"""A run that needs more than this share of its deadline will miss it one day."""
RECORDS_MAX = 20_000
SKEW_SECONDS_MAX = 1.0
SKEW_SECONDS_ERROR = 30.0
LEASE_RUNS_MIN = 2.0
"""How many runs of 99 of 100 jobs a lease spans: a worker may then miss heartbeats during a whole one."""
DBA_DSN = "BENTENG_DBA_DSN"


class Level(StrEnum):
    """How bad a finding is. note: worth knowing, changes nothing."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do."""

    check: str
    level: Level
    text: str
    fix: str = ""


class Patient:
    """What is examined: a configuration, and what it leads to. Each part is read once, when a check asks for it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.prod = config.environment is Environment.PROD

    @cached_property
    def locked(self) -> dict[str, TypePolicy]:
        """The reviewed policies of this host."""
        return lockfile.read(self.config.lock)

    @cached_property
    def code(self) -> dict[str, TypePolicy]:
        """What the code says, asked in a child."""
        variables = sorted({name for pool in self.config.pools.values() for name in pool.env})
        return policies_of(self.config.app, paths_of(self.config.root), variables)

    def has(self, facet: Facet) -> bool:
        """Whether this host may open a facet: each of the embedded ledger, only what is named of another.

        An administrator's shell without an address has none: doctor makes no file there.
        """
        return facet in self.config.dsns or (self.config.is_embedded and DBA_DSN not in os.environ)

    def grave(self) -> Level:
        """Return how bad something is that only `dev` may go on with."""
        return Level.ERROR if self.prod else Level.WARNING

    def found(self, symptom: Symptom) -> Finding:
        """Return what a store says of itself as a finding of this environment."""
        grave = symptom.severity is Severity.GRAVE
        level = self.grave() if grave else Level(symptom.severity.value)
        return Finding(symptom.check, level, symptom.text, symptom.fix)


Check = Callable[[Patient], Iterable[Finding]]


def examine(config: Config) -> list[Finding]:
    """Run every check."""
    patient = Patient(config)
    return [finding for name, check in CHECKS.items() for finding in _run(name, check, patient)]


def exit_for(findings: Iterable[Finding]) -> Exit:
    """Return the exit code: 1 for an error, 3 for warnings only."""
    levels = {finding.level for finding in findings}
    if Level.ERROR in levels:
        return Exit.FAILED
    return Exit.WARNINGS if Level.WARNING in levels else Exit.OK


def _run(name: str, check: Check, patient: Patient) -> Iterator[Finding]:
    try:
        yield from check(patient)
    except BentengError as error:
        yield Finding(name, Level.ERROR, patterns(str(error)))
    except Exception as error:  # noqa: BLE001 - a check that fails must not hide the others
        yield Finding(name, Level.ERROR, f"the check itself failed ({type(error).__name__})", "report it")


# ----------------------------------------------------------------------------------------------------------- the checks


def _versions(_patient: Patient) -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    level = Level.OK if sys.version_info[:2] >= PYTHON_MIN else Level.ERROR
    yield Finding("python", level, f"Python {python}", "" if level is Level.OK else "use Python 3.11 or newer")
    level = Level.OK if sqlite3.sqlite_version_info >= SQLITE_MIN else Level.ERROR
    yield Finding("sqlite", level, f"SQLite {sqlite3.sqlite_version}", "" if level is Level.OK else "use 3.37 or newer")


def _environment(patient: Patient) -> Iterator[Finding]:
    if patient.prod:
        yield Finding("environment", Level.OK, "prod: what is not safe is refused")
    else:
        text = "dev: policies lock and apply themselves, one person suffices, missing isolation is only said"
        yield Finding("environment", Level.NOTE, text, 'set environment = "prod" before it matters')
    if os.geteuid() == 0:
        fix = "run workers as an ordinary user"
        yield Finding("user", patient.grave(), "running as root: a cell's user can read whatever root can", fix)
    if patterns(os.environ.get("BENTENG_DSN", "")) != os.environ.get("BENTENG_DSN", ""):
        fix = "put it into benteng.toml, mode 0600"
        yield Finding("secrets", Level.WARNING, "the store's password stands in the environment", fix)


def _keys(patient: Patient) -> Iterator[Finding]:
    keys = patient.config.keys
    signed = sorted(name for name, policy in patient.locked.items() if policy.signed)
    if not (keys / TRUST_FILE).exists():
        level = Level.ERROR if signed else Level.NOTE
        text = f"no keys in {keys}" + (f", and {signed[0]} must be signed" if signed else ": jobs are not signed")
        yield Finding("keys", level, text, "benteng init --keys")
        return
    load_installation_key(keys / INSTALLATION_KEY_FILE)
    key = load_signing_key(keys / PRODUCER_KEY)
    trusted = load_trust(keys / TRUST_FILE).find(key.key_id)
    if trusted is None or trusted.revoked:
        said = "is revoked" if trusted else f"is not in {TRUST_FILE}"
        yield Finding("keys", Level.ERROR, f"the producer's key {key.key_id} {said}", "make a new one")
        return
    days = (trusted.not_after - system_clock()) / SECOND / DAY_SECONDS
    level = Level.OK if days >= KEY_DAYS_LEFT_MIN else Level.WARNING if days > 0 else Level.ERROR
    yield Finding("keys", level, f"the producer's key {key.key_id} is valid for {days:.0f} days")


def _lock(patient: Patient) -> Iterator[Finding]:
    if not patient.config.app:
        yield Finding("code", Level.WARNING, "no application is named", 'set app = "module:attribute" in benteng.toml')
        return
    lines = differences(patient.locked, patient.code)
    if not lines:
        yield Finding("lock", Level.OK, f"{patient.config.lock.name} has {len(patient.locked)} types, as the code has")
    for line in lines:
        yield Finding("lock", patient.grave(), f"lock file -> code: {line}", "benteng policy lock, and review it")


def _pending(patient: Patient) -> Iterator[Finding]:
    tiers = sorted({policy.tier for policy in patient.locked.values()}, key=lambda tier: tier.rank)
    for tier in tiers:
        for row in missing_for(tier, roles=keeps_roles(patient.config)):
            text = f"{tier}: there is no {row.floor}: {row.missing}"
            yield Finding("floors", patient.grave(), text, "dev only, until there is")


def _secrets(patient: Patient) -> Iterator[Finding]:
    """Read each secret as a worker would. Variables and credentials of a worker's unit are seen only there."""
    wanted = {(policy.pool, name) for policy in patient.locked.values() for name in policy.secrets}
    for pool, name in sorted(wanted):
        source = patient.config.pool(pool).secrets.get(name)
        try:
            secret.read(name, source, os.environ)
        except PolicyError as error:
            elsewhere = source is not None and source.path(os.environ) is None
            level = Level.NOTE if elsewhere else patient.grave()
            yield Finding("secrets", level, f"pool {pool}: {error.reason}" + (" here" if elsewhere else ""), error.fix)
        else:
            yield Finding("secrets", Level.OK, f"pool {pool}: secret {name} can be read")
    for pool, settings in patient.config.pools.items():
        for name in sorted(settings.secrets.keys() - {name for other, name in wanted if other == pool}):
            yield Finding("secrets", Level.NOTE, f"pool {pool}: no type names the secret {name}", "take it out")


def _store(patient: Patient) -> Iterator[Finding]:
    config = patient.config
    if not patient.has(Facet.OPERATOR):
        yield Finding("store", Level.NOTE, "this host has no operator's address: the ledger itself is seen elsewhere")
        return
    dsn = dsn_of(config, Facet.OPERATOR)
    with closing(open_operator(dsn, environment=config.environment.value)) as operator:
        before = system_clock()
        health = operator.health()
        after = system_clock()
        rows, controls = operator.types(), operator.controls()
    where = f" at {health.path}" if health.path else ""
    yield Finding("store", Level.OK, f"{health.store} {health.version}{where}, durability {health.durability}")
    yield from _health(patient, health)
    if health.now:
        yield clock_skew(before, health.now, after)
    for switch in controls:
        text = f"{switch.scope} {switch.name} is switched to {switch.mode}: {switch.reason}"
        yield Finding("controls", Level.NOTE, text, "benteng kill --open, when the danger is over")
    for line in differences(lockfile.from_rows(rows), patient.locked):
        yield Finding("ledger", patient.grave(), f"ledger -> lock file: {line}", "benteng policy apply")


def _health(patient: Patient, health: Health) -> Iterator[Finding]:
    yield from _durability(patient, health.durability)
    for text in health.findings:
        yield Finding("store", patient.grave(), text)
    yield from map(patient.found, health.symptoms)
    counts = ", ".join(f"{count} {name}" for name, count in health.counts.items() if count)
    yield Finding("jobs", Level.OK, counts or "no jobs")


def _durability(patient: Patient, has: Durability) -> Iterator[Finding]:
    wanted = patient.config.durability
    if has < wanted:
        text = f"the ledger is of class {has}, and this host demands {wanted}: every enqueue will be refused"
        yield Finding("durability", Level.ERROR, text, "make the ledger durable, or demand less in benteng.toml")
    elif has is Durability.D0:
        yield Finding("durability", patient.grave(), "a crash of the host loses jobs", "use a store of class D1 or D2")


def clock_skew(before: Instant, theirs: Instant, after: Instant) -> Finding:
    """Compare the ledger's clock with this host's, which read `before` and `after` the ledger read its own.

    What is said is the least skew that explains the three: a slow answer is no skew.
    """
    skew = max(theirs - after, before - theirs, 0) / SECOND
    trip = (after - before) / SECOND
    level = Level.ERROR if skew > SKEW_SECONDS_ERROR else Level.WARNING if skew > SKEW_SECONDS_MAX else Level.OK
    text = f"the clocks of host and ledger differ by {skew:.1f} s at least (answer within {trip:.3f} s)"
    return Finding(
        "clock", level, text, "" if level is Level.OK else "run NTP on both: only the ledger's clock decides"
    )


def _logins(patient: Patient) -> Iterator[Finding]:
    """Open each address as what it is configured for: a login of another facet, pool or environment is refused."""
    config = patient.config
    for name, dsn, opened in _addresses(config):
        if not is_postgres(dsn):
            continue
        try:
            with closing(opened()) as ledger:
                yield Finding("logins", Level.OK, f"{name} logs in as {ledger.origin}")
        except BentengError as error:
            yield Finding("logins", Level.ERROR, f"{name}: {patterns(str(error))}", f"see dsn in {FILE_NAME}")


def _demand(patient: Patient) -> Iterator[Finding]:
    """A producer's host asks on its own connection: a login may have weaker settings than the server."""
    config = patient.config
    if Facet.OPERATOR not in config.dsns and (dsn := config.dsns.get(Facet.PRODUCER, "")):
        with closing(open_producer(dsn, environment=config.environment.value)) as producer:
            yield from _durability(patient, producer.durability)


def _addresses(config: Config) -> Iterator[tuple[str, str, Callable[[], Store]]]:
    openers = {
        Facet.PRODUCER: open_producer,
        Facet.KEEPER: open_keeper,
        Facet.OPERATOR: open_operator,
        Facet.AUDITOR: open_auditor,
    }
    environment = config.environment.value
    for facet, opener in openers.items():
        if dsn := config.dsns.get(facet, ""):
            yield facet.value, dsn, partial(opener, dsn, environment=environment)
    for pool, settings in config.pools.items():
        if dsn := settings.dsn or config.dsns.get(Facet.CONSUMER, ""):
            yield f"consumer of pool {pool}", dsn, partial(open_consumer, dsn, pool, environment=environment)


def _administrator(patient: Patient) -> Iterator[Finding]:
    dsn = os.environ.get(DBA_DSN, "")
    if dsn:
        yield from map(patient.found, examine_as_administrator(dsn))
    elif any(map(is_postgres, patient.config.dsns.values())):
        text = "not examined: rights, function bodies, sessions that keep old rows from being removed"
        yield Finding("roles", Level.NOTE, text, f"where the database is administered: {DBA_DSN}=... benteng doctor")


def _cells(patient: Patient) -> Iterator[Finding]:
    from benteng.worker.sandbox import basic

    layers = basic.probe()
    missing = [name for name in basic.TRIALS if name not in layers]
    yield Finding("cells", Level.OK, f"a cell's layers hold here: {', '.join(layers) or 'none'}")
    for name in missing:
        yield Finding(
            "cells", patient.grave(), f"a cell's layer does not hold here: {name}", "use another kernel or host"
        )


def _pools(patient: Patient) -> Iterator[Finding]:
    """What a pool of this host leaves alone: it is meant, or it is why jobs wait."""
    for name, pool in patient.config.pools.items():
        given = {each for each, policy in patient.locked.items() if policy.pool == name}
        for strange in sorted(set(pool.types) - given):
            text = f"pool {name} accepts {strange}, which the lock file does not give to it: its worker will not start"
            yield Finding("pools", Level.ERROR, text, f"see pool.{name}.types in {FILE_NAME}")
        left = sorted(given - set(pool.types)) if pool.types else []
        if left:
            yield Finding("pools", Level.NOTE, f"pool {name} leaves to other hosts: {', '.join(left)}")
        if pool.starts_per_minute:
            text = f"each worker of pool {name} starts at most {pool.starts_per_minute} jobs a minute"
            yield Finding("pools", Level.NOTE, text)


def _runs(patient: Patient) -> Iterator[Finding]:
    if not patient.has(Facet.AUDITOR):
        yield Finding("runs", Level.NOTE, "this host has no auditor's address: runs and leases are seen elsewhere")
        return
    for name, runs in sorted(observed(_last_records(patient.config)).items()):
        if name in patient.locked:
            yield from run_findings(name, runs, patient.locked[name].limits)


def run_findings(name: str, runs: Runs, limits: Limits) -> Iterator[Finding]:
    """Compare the runs of a type with its deadline and its lease."""
    if runs.longest > limits.run_seconds_max * RUN_SHARE_MAX:
        text = f"{name} ran {runs.longest:.1f} s of at most {limits.run_seconds_max:.0f} s"
        yield Finding("runs", Level.WARNING, text, "raise run_seconds_max, or do less in one job")
    if runs.lost:
        text = f"{name}: {len(runs.lost)} leases of {limits.lease_seconds:.0f} s ended without a word from their worker"
        fix = "workers died or stood still: raise lease_seconds only if they did not"
        yield Finding("leases", Level.WARNING, text, fix)
    if limits.lease_seconds < LEASE_RUNS_MIN * runs.p99:
        # A worker extends its leases every third of them, so a short one is no fault as long as none of them is lost.
        level = Level.WARNING if runs.lost else Level.NOTE
        text = f"{name}: a lease of {limits.lease_seconds:.0f} s, and 99 of 100 runs end within {runs.p99:.1f} s"
        yield Finding("leases", level, text, f"lease_seconds = {ceil(LEASE_RUNS_MIN * runs.p99)} spans two such runs")


def _last_records(config: Config) -> list[AuditRecord]:
    """Return the records of the last day, at most RECORDS_MAX of them."""
    since = system_clock() - microseconds(DAY_SECONDS)
    with closing(open_auditor(dsn_of(config, Facet.AUDITOR), environment=config.environment.value)) as auditor:
        found = [record for page in last(auditor, RECORDS_MAX) for record in records(page)]
    return [record for record in found if record.at_us >= since]


CHECKS: dict[str, Check] = {
    "versions": _versions,
    "environment": _environment,
    "keys": _keys,
    "lock": _lock,
    "floors": _pending,
    "secrets": _secrets,
    "store": _store,
    "logins": _logins,
    "demand": _demand,
    "roles": _administrator,
    "cells": _cells,
    "pools": _pools,
    "runs": _runs,
}
"""The checks by name, in the order of the report."""
