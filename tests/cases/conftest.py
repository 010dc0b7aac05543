"""What the cases share: a ledger on the bench, hands inside its file, and a site with a gate and a judge."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pytest

from benteng import keyring, lockfile
from benteng.evidence import ArtifactFact, ArtifactState
from benteng.gate import Gate, JobSpec
from benteng.job import Grant, Job
from benteng.policy import Effect, Tier
from benteng.task import Options, Registry, define
from benteng.testing.bench import Bench
from benteng.testing.invariants import check_ledger
from benteng.testing.ledger import HIGH, POOL, type_row
from benteng.testing.sqlite import SqliteLedger
from benteng.verdict import Refuse
from benteng.worker.judgement import Judge
from tests.guard_cases import DIGEST, patch, payload


@pytest.fixture
def ledger(tmp_path):
    """A fresh embedded ledger with a test clock."""
    ledger = SqliteLedger(tmp_path)
    yield ledger
    ledger.close()


@pytest.fixture
def bench(ledger):
    """The ledger with its facets open; the invariants are checked when the test is over."""
    bench = Bench(ledger)
    yield bench
    check_ledger(ledger, bench.journal)


@pytest.fixture
def broken(ledger):
    """The same for tests that break the ledger by hand: nothing is checked afterwards."""
    return Bench(ledger)


def edit(path, sql, *values):
    """Run SQL on a ledger's file as its owner could: no authorizer, no triggers, no checks."""
    with closing(sqlite3.connect(path, timeout=5)) as raw, raw:
        for (name,) in raw.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            raw.execute(f'drop trigger "{name}"')
        raw.execute("pragma ignore_check_constraints = on")
        return raw.execute(sql, values).fetchall()


@pytest.fixture
def by_hand(ledger):
    """Run SQL on the ledger's file, see `edit`."""
    return partial(edit, ledger.path)


@pytest.fixture
def prod(ledger):
    """A `prod` installation in which Actions have let this producer enqueue a HIGH type."""
    production = ledger.production()
    bench = Bench(production, types=())
    row, origin = type_row(HIGH), bench.producer.origin
    edit(
        production.path, "insert into job_type values (?, ?, 'high', ?, ?, 0)", HIGH.name, POOL, row.policy, row.sha256
    )
    edit(production.path, "insert into speaks values (?, '*', '*')", origin)
    return bench


@dataclass(frozen=True)
class Site:
    """One installation without processes: what a gate lets in, a claim hands out, and a supervisor makes of it.

    Its types are `low`, `medium` and `high`, with the contract of tests/guard_cases.py.
    """

    bench: Bench
    gate: Gate
    judge: Judge

    def enqueue(self, tier: str = "high", target: str = "web-7") -> Job:
        """Let one job in through the gate and return it as it is stored."""
        receipt = self.gate.enqueue(JobSpec(f"{tier}@1", payload(target), actor="svc:deployer"))
        return self.bench.view(receipt.job_id).job

    def claim(self) -> list[Grant]:
        """Claim whatever can start."""
        return self.bench.consumer.claim(9, list(self.gate.policies))

    def rule(self) -> str:
        """Claim one job and return the rule by which its supervisor stops it; "" when it would go to a cell."""
        (grant,) = self.claim()
        judged = self.judge.verdict(grant)
        if judged is None:
            return ""
        assert isinstance(judged.verdict, Refuse)
        return judged.verdict.rule


@pytest.fixture
def site(ledger, tmp_path):
    """An installation whose producer has a key that its host trusts, and whose artifact is approved."""
    bench = Bench(ledger, types=())
    registry = Registry()
    for tier in Tier:
        registry.add(define(patch, f"{tier}@1", Options(tier=tier, effect=Effect.REPEATABLE, **IDENTITY)))
    policies = registry.policies()
    bench.operator.apply_types(lockfile.to_rows(policies), "a reason")
    bench.operator.register_artifact(ArtifactFact("agent-1.2", DIGEST, ArtifactState.APPROVED), "a reason")
    trust = keyring.generate(tmp_path / "keys", origin=bench.producer.origin, now=ledger.clock())
    key = keyring.load_signing_key(tmp_path / "keys" / "producer.key")
    return Site(bench, Gate(bench.producer, registry, policies, lambda: key), Judge(policies, trust))


IDENTITY = {"operation": ("target", "artifact.sha256"), "resources": ("target",)}
"""What makes two patches the same operation, and what a patch locks."""
