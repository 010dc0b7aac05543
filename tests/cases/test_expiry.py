"""A job's last moment is counted from its admission by the store's clock."""

from __future__ import annotations

from benteng import lockfile
from benteng.gate import Gate, JobSpec
from benteng.task import Options, Registry, define
from benteng.testing.bench import Bench


def greet(name: str) -> str:
    """Say hello."""
    return f"Halo, {name}"


def test_low_job_with_a_date_of_expiry_can_start(ledger):
    """A LOW type that expires after a minute starts within that minute."""
    bench = Bench(ledger, types=())
    registry = Registry()
    registry.add(define(greet, "greet@1", Options(limits={"expires_seconds": 60.0})))
    bench.operator.apply_types(lockfile.to_rows(registry.policies()), "a reason")
    gate = Gate(bench.producer, registry, registry.policies(), lambda: None)

    receipt = gate.enqueue(JobSpec("greet", {"name": "dunia"}))

    assert [receipt.job_id] == [grant.job.id for grant in bench.claim(1, ["greet@1"])]
