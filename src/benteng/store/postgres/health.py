"""What doctor reports about a PostgreSQL ledger: its durability class, and settings that weaken it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benteng.store.records import Health

WAITS_FOR_STANDBY = frozenset({"on", "remote_write", "remote_apply"})
COUNTS = ("jobs", "quarantined", "operations", "audit")


def health(row: Mapping[str, Any]) -> Health:
    """Return the report from what the ledger said of itself."""
    return Health(
        store="postgresql",
        version=row["version"],
        durability=durability(row),
        findings=tuple(findings(row)),
        counts={name: max(0, row[name]) for name in COUNTS},
    )


def durability(row: Mapping[str, Any]) -> str:
    """Return D0 (may lose what it acknowledged), D1 (one node's disk) or D2 (a synchronous replica has it too)."""
    if row["fsync"] != "on" or row["synchronous_commit"] == "off":
        return "D0"
    if row["standbys"] and row["synchronous_commit"] in {"on", "remote_apply"}:
        return "D2"
    return "D1"


def findings(row: Mapping[str, Any]) -> list[str]:
    """Return what weakens the ledger, in words."""
    said: list[str] = []
    if row["fsync"] != "on":
        said.append("fsync is off: a crash of the host loses acknowledged jobs. Set fsync = on")
    if row["synchronous_commit"] == "off":
        said.append("synchronous_commit is off: a crash loses acknowledged jobs. Set synchronous_commit = on")
    if row["full_page_writes"] != "on":
        said.append("full_page_writes is off: a crash can damage the ledger. Set full_page_writes = on")
    if row["environment"] == "dev":
        said.append("a dev installation: every origin speaks for every actor on every target")
    return said
