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
from functools import cached_property

from benteng import lockfile
from benteng.audit import AuditRecord, Event
from benteng.clock import SECOND, microseconds, system_clock
from benteng.config import Config, Environment
from benteng.errors import BentengError
from benteng.keyring import INSTALLATION_KEY_FILE, TRUST_FILE, load_installation_key, load_signing_key, load_trust
from benteng.opening import PRODUCER_KEY, dsn_of
from benteng.ops.describe import policies_of
from benteng.ops.exits import Exit
from benteng.ops.log import last
from benteng.ops.reference import paths_of
from benteng.ops.why import records
from benteng.policy import DAY_SECONDS, TypePolicy, differences, pending_for
from benteng.redact import patterns
from benteng.store.records import Facet

PYTHON_MIN = (3, 11)
SQLITE_MIN = (3, 37, 0)
KEY_DAYS_LEFT_MIN = 30
RUN_SHARE_MAX = 0.8
"""A run that needs more than this share of its deadline will miss it one day."""
RECORDS_MAX = 20_000


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

    def grave(self) -> Level:
        """Return how bad something is that only `dev` may go on with."""
        return Level.ERROR if self.prod else Level.WARNING


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
        for row in pending_for(tier):
            text = f"{tier}: this version does not have {row.floor}: {row.missing}"
            yield Finding("floors", patient.grave(), text, "dev only, until it has")


def _store(patient: Patient) -> Iterator[Finding]:
    from benteng.store.open import open_operator

    config = patient.config
    with closing(open_operator(dsn_of(config, Facet.OPERATOR), environment=config.environment.value)) as operator:
        health, rows, controls = operator.health(), operator.types(), operator.controls()
    where = f" at {health.path}" if health.path else ""
    yield Finding("store", Level.OK, f"{health.store} {health.version}{where}, durability {health.durability}")
    if health.durability == "D0":
        yield Finding("durability", patient.grave(), "a crash of the host loses jobs", "use a store of class D1 or D2")
    for text in health.findings:
        yield Finding("store", patient.grave(), text)
    counts = ", ".join(f"{count} {name}" for name, count in health.counts.items() if count)
    yield Finding("jobs", Level.OK, counts or "no jobs")
    for switch in controls:
        text = f"{switch.scope} {switch.name} is switched to {switch.mode}: {switch.reason}"
        yield Finding("controls", Level.NOTE, text, "benteng kill --open, when the danger is over")
    for line in differences(lockfile.from_rows(rows), patient.locked):
        yield Finding("ledger", patient.grave(), f"ledger -> lock file: {line}", "benteng policy apply")


def _cells(patient: Patient) -> Iterator[Finding]:
    from benteng.worker.sandbox import basic

    layers = basic.probe()
    missing = [name for name in basic.TRIALS if name not in layers]
    yield Finding("cells", Level.OK, f"a cell's layers hold here: {', '.join(layers) or 'none'}")
    for name in missing:
        yield Finding(
            "cells", patient.grave(), f"a cell's layer does not hold here: {name}", "use another kernel or host"
        )


def _runs(patient: Patient) -> Iterator[Finding]:
    runs, lost = observed(_last_records(patient.config))
    for name, seconds in sorted(runs.items()):
        policy = patient.locked.get(name)
        if policy is not None and seconds > policy.limits.run_seconds_max * RUN_SHARE_MAX:
            text = f"{name} ran {seconds:.1f} s of at most {policy.limits.run_seconds_max:.0f} s"
            yield Finding("runs", Level.WARNING, text, "raise run_seconds_max, or do less in one job")
    for name, count in sorted(lost.items()):
        lease = patient.locked[name].limits.lease_seconds if name in patient.locked else 0.0
        text = f"{name}: {count} leases of {lease:.0f} s ended without a word from their worker"
        yield Finding(
            "leases", Level.WARNING, text, "workers died or stood still: raise lease_seconds only if they did not"
        )


def observed(found: Iterable[AuditRecord]) -> tuple[dict[str, float], dict[str, int]]:
    """Return the longest run in seconds, and the number of leases that ended silently, by job type."""
    started: dict[tuple[str, int], int] = {}
    runs: dict[str, float] = {}
    lost: dict[str, int] = {}
    for record in found:
        if record.event is Event.CLAIMED:
            started[record.job_id, record.fence] = record.at_us
        elif record.event is Event.COMPLETED and (record.job_id, record.fence) in started:
            seconds = (record.at_us - started[record.job_id, record.fence]) / SECOND
            runs[record.type] = max(seconds, runs.get(record.type, 0.0))
        elif record.event is Event.RECLAIMED:
            lost[record.type] = lost.get(record.type, 0) + 1
    return runs, lost


def _last_records(config: Config) -> list[AuditRecord]:
    """Return the records of the last day, at most RECORDS_MAX of them."""
    from benteng.store.open import open_auditor

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
    "store": _store,
    "cells": _cells,
    "runs": _runs,
}
"""The checks by name, in the order of the report."""
