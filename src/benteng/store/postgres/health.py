"""What doctor reports about a PostgreSQL ledger: its durability class, what weakens it, and whose fences it draws.

Two looks: what the ledger says of itself to an operator, and what only the person who administers the database may see
(rights, function bodies, sessions). Nothing is changed by either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benteng.errors import StoreUnavailable
from benteng.store.durability import Durability
from benteng.store.records import Health, Severity, Symptom

if TYPE_CHECKING:
    from psycopg import Connection

Row = Mapping[str, Any]

COUNTS = ("jobs", "quarantined", "operations", "audit")
VERSION_MIN = 140_000
PINNED_SECONDS_MAX = 60
SLOT_BYTES_MAX = 1 << 30
_PINNED, _SLOTS = (Path(__file__).parent / "findings" / name for name in ("pinned.sql", "slots.sql"))


def health(row: Row) -> Health:
    """Return the report from what the ledger said of itself."""
    return Health(
        store="postgresql",
        version=row["version"],
        durability=durability(row),
        counts={name: max(0, row[name]) for name in COUNTS},
        symptoms=tuple(symptoms(row)),
        now=row["now"],
    )


def durability(row: Row) -> Durability:
    """Return D0 (may lose what it acknowledged), D1 (one node's disk) or D2 (a synchronous replica has it too).

    Every login may read what this depends on; `synchronous_commit` is that of the session which asks.
    """
    if row["fsync"] != "on" or row["synchronous_commit"] == "off":
        return Durability.D0
    if row["standbys"].strip() and row["synchronous_commit"] in {"on", "remote_apply"}:
        return Durability.D2
    return Durability.D1


def symptoms(row: Row) -> Iterator[Symptom]:
    """Yield what is to be said about the ledger."""
    yield Symptom("protocol", Severity.OK, f"the ledger speaks protocol {row['oldest']} to {row['newest']}")
    yield from (symptom for holds, symptom in SYMPTOMS if holds(row))
    yield _history(row)


SYMPTOMS: tuple[tuple[Callable[[Row], bool], Symptom], ...] = (
    (
        lambda row: row["version_number"] < VERSION_MIN,
        Symptom("store", Severity.ERROR, "the server is older than PostgreSQL 14", "upgrade it"),
    ),
    (
        lambda row: row["fsync"] != "on",
        Symptom("durability", Severity.GRAVE, "fsync is off: a crash of the host loses jobs", "set fsync = on"),
    ),
    (
        lambda row: row["synchronous_commit"] == "off",
        Symptom(
            "durability",
            Severity.GRAVE,
            "synchronous_commit is off: a crash loses acknowledged jobs",
            "set synchronous_commit = on",
        ),
    ),
    (
        lambda row: row["full_page_writes"] != "on",
        Symptom(
            "durability",
            Severity.GRAVE,
            "full_page_writes is off: a crash can damage the ledger",
            "set full_page_writes = on",
        ),
    ),
    (
        lambda row: bool(row["standbys"].strip()) and row["synchronous_commit"] in {"local", "remote_write"},
        Symptom(
            "durability",
            Severity.WARNING,
            "a standby is named, but synchronous_commit does not wait for its disk: class D1",
            "set synchronous_commit = on",
        ),
    ),
    (
        lambda row: row["environment"] == "dev",
        Symptom(
            "defaults",
            Severity.GRAVE,
            "a dev installation: every origin speaks for every actor on every target",
            "dev only; for prod make another database: benteng migrate up --environment prod",
        ),
    ),
    (
        lambda row: row["environment"] != "dev" and row["open_speaks"],
        Symptom(
            "defaults",
            Severity.ERROR,
            "every origin may enqueue every type for every actor (speaks *, *, *)",
            "delete that row as benteng_owner, and allow each login what it needs: benteng roles allow",
        ),
    ),
    (
        lambda row: row["environment"] != "dev" and row["open_access"],
        Symptom(
            "defaults",
            Severity.ERROR,
            "every actor may run every type on every target (access *, *, *)",
            "delete that row as benteng_owner",
        ),
    ),
    (
        lambda row: row["speakers"] == 0,
        Symptom(
            "defaults",
            Severity.WARNING,
            "no login may enqueue anything yet",
            "as the DBA: benteng roles allow LOGIN --speaks ACTOR:TYPE",
        ),
    ),
)
"""What may be wrong with a ledger, each with the condition under which it is."""


def _history(row: Row) -> Symptom:
    if row["in_recovery"]:
        return Symptom("history", Severity.ERROR, "this is a standby: nothing can be written", "use the primary")
    if not row["same_system"] or row["timeline"] != row["known_timeline"]:
        text = "the database was promoted or restored: claims wait until the fence epoch is raised"
        return Symptom("history", Severity.ERROR, text, "as the DBA: benteng restore --fence-epoch")
    if row["wait_seconds"] > 0:
        text = f"the database was restored: claims wait {row['wait_seconds']:.0f} s more for lost leases to end"
        return Symptom("history", Severity.WARNING, text, "wait")
    return Symptom("history", Severity.OK, f"timeline {row['timeline']}, fence epoch {row['epoch']}")


# ---------------------------------------------------------------------------------- what only the administrator sees


def examine(dsn: str) -> list[Symptom]:
    """Return what a superuser sees: rights and function bodies as installed, and who keeps old rows or WAL for himself.

    Raises StoreUnavailable when the database cannot be asked.
    """
    import psycopg

    from benteng.store.postgres import findings, roles

    try:
        with roles.connect(dsn) as connection:
            connection.read_only = True
            return [*_rights(findings.examine(connection)), *_pinned(connection), *_slots(connection)]
    except psycopg.errors.InsufficientPrivilege:
        raise StoreUnavailable("BENTENG_DBA_DSN: this login may not look. Use a superuser's address") from None


def _rights(found: list[Any]) -> Iterator[Symptom]:
    for each in found:
        severity = Severity.GRAVE if each.excess else Severity.WARNING
        yield Symptom("roles", severity, f"{each.rule}: {each.subject} {each.said}", each.fix)
    if not found:
        yield Symptom("roles", Severity.OK, "rights and functions are as shipped, each login has one facet")


def _pinned(connection: Connection) -> Iterator[Symptom]:
    query = _PINNED.read_text(encoding="utf-8").encode()
    found = connection.execute(query, {"seconds": PINNED_SECONDS_MAX}).fetchall()
    for who, seconds in found:
        text = f"{who} has pinned old rows for {seconds:.0f} s: tables grow, claims slow down, the log stands still"
        yield Symptom("horizon", Severity.WARNING, text, "end it: select pg_terminate_backend(pid); see its owner")
    if not found:
        yield Symptom("horizon", Severity.OK, f"nobody pins old rows for longer than {PINNED_SECONDS_MAX} s")


def _slots(connection: Connection) -> Iterator[Symptom]:
    found = connection.execute(_SLOTS.read_text(encoding="utf-8").encode()).fetchall()
    for name, active, kept in found:
        yield _slot(f"replication slot {name}", kept, active=active)
    if not found:
        yield Symptom("slots", Severity.OK, "no replication slot keeps anything")


def _slot(slot: str, kept: int, *, active: bool) -> Symptom:
    said = f"keeps {kept / (1 << 20):.0f} MiB of WAL"
    if not active:
        fix = "start its standby again, or: select pg_drop_replication_slot(name)"
        return Symptom("slots", Severity.WARNING, f"{slot} is used by nobody and {said}, until the disk is full", fix)
    if kept > SLOT_BYTES_MAX:
        return Symptom("slots", Severity.WARNING, f"{slot} is far behind and {said}", "see its standby")
    return Symptom("slots", Severity.OK, f"{slot} is in use and {said}")
