"""Bring a database to the schema of this version: ordered files with checksums, then all functions, then the grants.

One transaction, one winner under concurrency, a short lock_timeout with retries, so that a migration never queues the
whole ledger behind itself. `sql()` is the same text without a connection. A file is named `NNN_noun.sql`; its first
line says `expand` (old and new code run with it) or `contract` (only when no old code runs any more).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psycopg

from benteng.errors import PolicyError, StoreDamaged, StoreUnavailable
from benteng.store.postgres import faults
from benteng.store.postgres.roles import grants_sql, roles_sql

HERE = Path(__file__).parent
TRIES = 5
LOCK_MILLISECONDS = 3_000
LOCK_KEY = 0x62746E67
ENVIRONMENTS = ("dev", "prod")
_NAME = re.compile(r"[0-9]{3}_[a-z_]+\.sql")
_FIRST = re.compile(r"-- (?P<file>\S+) \((expand|contract)\): ")

FUNCTIONS = (
    *(
        "install",
        "now",
        "me",
        "refused",
        "newest",
        "note",
        "history",
        "lookout",
        "pool_types",
        "ring",
        "facts",
        "lanes",
        "wake",
        "move_jobs",
        "complete",
        "refuse",
        "judge",
        "depth",
        "enter",
        "enter_one",
        "audit_row",
        "audit_page",
    ),
    *(
        "admit",
        "evidence",
        "status",
        "cancel",
        "register",
        "claim",
        "extend",
        "settle",
        "turn",
        "reclaim",
        "stage",
        "lead",
    ),
    *("purge", "control", "quarantine", "replay", "release", "types", "registry", "find", "show", "health", "speak"),
)
"""The files of functions, each after those whose functions it needs when it is made."""


@dataclass(frozen=True, slots=True)
class Step:
    """One file: what it is called, what it says, and the digest by which a later look recognises it."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Status:
    """How far a database is: step name -> `applied`, `pending` or `changed` (another file was applied)."""

    steps: dict[str, str]

    @property
    def is_current(self) -> bool:
        """Whether nothing is left to do."""
        return set(self.steps.values()) <= {"applied"}


@cache
def migrations() -> tuple[Step, ...]:
    """Return the migrations in order. Each is applied once; a change of an applied one is damage."""
    return tuple(_read(path) for path in sorted((HERE / "migrations").glob("*.sql")))


@cache
def functions() -> tuple[Step, ...]:
    """Return the files of functions. They replace themselves, so a changed one is applied again."""
    return tuple(_read(HERE / "functions" / f"{name}.sql") for name in FUNCTIONS)


def sql(environment: str = "prod") -> str:
    """Return the whole text for an empty database, for review or for psql. The same version gives the same bytes."""
    parts = [roles_sql(), _preamble()]
    for step in migrations():
        parts += [step.text, _noted(step)]
    parts.append("set role benteng_owner;\n")
    for step in functions():
        parts += [step.text, _noted(step)]
    return "begin;\n" + "\n".join([*parts, _install(environment), "reset role;", grants_sql(), "commit;\n"])


def status(dsn: str) -> Status:
    """Return how far the database is. Raises StoreUnavailable."""
    with _connect(dsn) as connection:
        known = _known(connection)
    return Status({step.name: _state(step, known) for step in (*migrations(), *functions())})


def up(dsn: str, environment: str = "prod") -> list[str]:
    """Bring the database to this version and return the steps that were applied. To be repeated at will.

    As a superuser, or as a member of benteng_owner when the roles are there. Raises StoreDamaged when an applied
    migration was changed, PolicyError for another environment, StoreUnavailable.
    """
    if environment not in ENVIRONMENTS:
        raise PolicyError("S-environment", f"environment must be one of {', '.join(ENVIRONMENTS)}")
    for left in range(TRIES - 1, -1, -1):
        try:
            with _connect(dsn) as connection, connection.transaction():
                return _up(connection, environment)
        except psycopg.errors.LockNotAvailable as error:
            if not left:
                raise StoreUnavailable("the ledger is in use and could not be locked. Try again later") from error
            time.sleep(secrets.randbelow(1_000) / 1_000)
        except psycopg.Error as error:
            raise faults.translated(error, waits=True) from error
    raise AssertionError("unreachable: the last try returns or raises")


def _up(connection: psycopg.Connection, environment: str) -> list[str]:
    _run(connection, f"set local lock_timeout = {LOCK_MILLISECONDS}; set local client_min_messages = warning")
    # The one place where an advisory lock serves: it orders administrators, it guards nothing.
    _run(connection, f"select pg_advisory_xact_lock({LOCK_KEY})")
    known = _known(connection)
    pending = [step for step in (*migrations(), *functions()) if _state(step, known) != "applied"]
    _refuse_changed(known)
    if not known:
        if not connection.execute("select from pg_roles where rolname = 'benteng_owner'").fetchone():
            _run(connection, roles_sql())
        _run(connection, _preamble())
    for step in pending:
        _apply(connection, step)
    _run(connection, f"set local role benteng_owner;\n{_install(environment)}\nreset role")
    _check_environment(connection, environment)
    _run(connection, grants_sql())
    return [step.name for step in pending]


def _apply(connection: psycopg.Connection, step: Step) -> None:
    if step in functions():
        _run(connection, "set role benteng_owner")
    _run(connection, step.text)
    _run(connection, "set role benteng_owner;\n" + _noted(step) + "reset role")


def _refuse_changed(known: dict[str, str]) -> None:
    changed = [step.name for step in migrations() if _state(step, known) == "changed"]
    if changed:
        raise StoreDamaged(
            f"migration {changed[0]} is not the file that was applied here. Use the version that made it"
        )
    newer = [name for name in known if name not in {step.name for step in (*migrations(), *functions())}]
    if newer:
        raise StoreDamaged(f"the database has {newer[0]}, which this version does not know. Use a newer benteng")


def _known(connection: psycopg.Connection) -> dict[str, str]:
    there = connection.execute("select to_regclass('benteng.migration') is not null").fetchone()
    if there is None or not there[0]:
        return {}
    return dict(connection.execute("select name, sha256 from benteng.migration").fetchall())


def _state(step: Step, known: dict[str, str]) -> str:
    if step.name not in known:
        return "pending"
    return "applied" if known[step.name] == step.sha256 else "changed"


@cache
def _preamble() -> str:
    return (HERE / "preamble.sql").read_text(encoding="utf-8")


def _noted(step: Step) -> str:
    return (
        "insert into benteng.migration (name, sha256)\n"
        f"values ('{step.name}', '{step.sha256}')\n"
        "on conflict (name) do update set sha256 = excluded.sha256, applied_at = clock_timestamp();\n"
    )


def _install(environment: str) -> str:
    return f"select benteng.install('{environment}');"


def _check_environment(connection: psycopg.Connection, environment: str) -> None:
    row = connection.execute("select environment from benteng.installation").fetchone()
    if row is None or row[0] != environment:
        raise PolicyError(
            "S-environment",
            f"this ledger was made for another environment than {environment!r}",
            fix="that is fixed when it is made: use another database, or the environment that it has",
        )


def _read(path: Path) -> Step:
    text = path.read_text(encoding="utf-8")
    if path.parent.name == "migrations":
        found = _FIRST.match(text)
        if not _NAME.fullmatch(path.name) or found is None or found["file"] != path.name:
            raise AssertionError(
                f"{path.name}: a migration is NNN_noun.sql and says expand or contract in its first line"
            )
    return Step(f"{path.parent.name}/{path.name}", text)


def _run(connection: psycopg.Connection, text: str) -> None:
    connection.execute(text.encode(), prepare=False)


def _connect(dsn: str) -> psycopg.Connection:
    try:
        return psycopg.connect(dsn, application_name="benteng-migrate")
    except psycopg.Error as error:
        # The driver's words may repeat the address, and with it a password.
        raise StoreUnavailable(f"cannot connect to the database ({type(error).__name__})") from None
