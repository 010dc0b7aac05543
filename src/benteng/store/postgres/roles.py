"""Who may do what in a PostgreSQL ledger: a group for each facet, a login for each service, and verbs for groups alone.

One table, FACET_VERBS, read from the protocols of store/contract.py, so that a verb cannot be granted to a facet that
does not have it. The SQL, the denial matrix of the tests, the docs and `findings` are made from it. No role has a right
on a table.  Trust: names and pools arrive from the command line; they pass a pattern before they stand in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING

from benteng.errors import PolicyError, StoreUnavailable
from benteng.policy import TYPE_NAME
from benteng.store.contract import Auditor, Consumer, Keeper, Operator, Producer
from benteng.store.records import Facet

if TYPE_CHECKING:
    from psycopg import Connection

OWNER = "benteng_owner"
TABLES = "benteng"
VERBS = "benteng_v1"
HERE = Path(__file__).parent

PROTOCOLS: Mapping[str, type] = MappingProxyType(
    {
        Facet.PRODUCER: Producer,
        Facet.CONSUMER: Consumer,
        Facet.KEEPER: Keeper,
        Facet.OPERATOR: Operator,
        Facet.AUDITOR: Auditor,
    }
)
VERBLESS = ("sealer", "approver")
"""Facets whose verbs are not built yet. Their groups exist from the start: later come verbs, not roles."""

SHARED_VERBS = frozenset({"protocol"})
"""What every login may ask: the versions that the ledger speaks, and as whom it knows the caller."""


def verbs_of(protocol: type) -> frozenset[str]:
    """Return the verbs that a protocol declares itself; what every store has (origin, close) is no verb."""
    return frozenset(
        name for name, value in vars(protocol).items() if isinstance(value, FunctionType) and not name.startswith("_")
    )


FACET_VERBS: Mapping[str, frozenset[str]] = MappingProxyType(
    {str(facet): verbs_of(protocol) for facet, protocol in PROTOCOLS.items()}
    | {facet: frozenset[str]() for facet in VERBLESS}
)
"""The facet table: what each facet may call. A verb that is in none of them may be called by nobody."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a login may take: connections at once; seconds for a statement, a wait for a lock, an idle transaction."""

    connections: int
    statement_seconds: int
    lock_seconds: int = 5
    idle_seconds: int = 10


LIMITS: Mapping[str, Limits] = MappingProxyType(
    {
        "producer": Limits(connections=50, statement_seconds=10),
        "consumer": Limits(connections=50, statement_seconds=10),
        "keeper": Limits(connections=5, statement_seconds=30),
        "sealer": Limits(connections=5, statement_seconds=60),
        "operator": Limits(connections=20, statement_seconds=60),
        "approver": Limits(connections=10, statement_seconds=10),
        "auditor": Limits(connections=5, statement_seconds=60),
    }
)

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_POOL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ACTOR = re.compile(r"|\*|[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}", re.ASCII)
_SPEAK = b"select benteng.allow_speaking(%s, %s, %s, %s)"


@dataclass(frozen=True, slots=True)
class Login:
    """One service: the name it logs in with, its facet and, for a consumer, its pool.

    Raises PolicyError (R-name, R-facet, R-pool) for what cannot be.
    """

    name: str
    facet: str
    pool: str = ""

    def __post_init__(self) -> None:
        if (
            not _NAME.fullmatch(self.name)
            or self.name.startswith("pg_")
            or self.name in {OWNER, *map(group, FACET_VERBS)}
        ):
            _refuse("R-name", "name", "is no name for a login", "use a-z, 0-9 and _; not a group's name, not pg_...")
        if self.facet not in FACET_VERBS:
            _refuse("R-facet", "facet", "is no facet", f"use one of {', '.join(FACET_VERBS)}")
        if bool(self.pool) != (self.facet == Facet.CONSUMER):
            _refuse(
                "R-pool",
                "pool",
                "a consumer has exactly one pool, and nobody else has one",
                "see benteng roles create --help",
            )
        if self.pool and not _POOL.fullmatch(self.pool):
            _refuse("R-pool", "pool", "is no name of a pool", "use a-z, 0-9, . _ and -")


@dataclass(frozen=True, slots=True)
class Speech:
    """What a producer's login may enqueue: one type or any (*), for one actor, any (*), or jobs that name none ("").

    Raises PolicyError (R-speaks) for what cannot be.
    """

    actor: str
    type: str

    def __post_init__(self) -> None:
        if not _ACTOR.fullmatch(self.actor) or not (self.type == "*" or TYPE_NAME.fullmatch(self.type)):
            _refuse("R-speaks", "speaks", "is no actor and type", "write ACTOR:TYPE@MAJOR; * is any: svc:web:greet@1")

    @classmethod
    def parse(cls, text: str) -> Speech:
        """Return what `ACTOR:TYPE` says. The actor may have colons, a type has none."""
        actor, colon, name = text.rpartition(":")
        return cls(actor, name if colon else "")


def group(facet: str) -> str:
    """Return the role that holds the rights of a facet."""
    return f"benteng_{facet}"


def may_call(facet: str) -> frozenset[str]:
    """Return all that a login of this facet may call in the schema of the verbs."""
    return FACET_VERBS[facet] | SHARED_VERBS


def roles_sql() -> str:
    """Return the SQL that makes owner and groups: for a superuser, before the first migration."""
    names = [OWNER, *map(group, FACET_VERBS)]
    return _fill("roles.sql", roles=", ".join(f"'{name}'" for name in names))


def grants_sql() -> str:
    """Return the SQL that gives each group its verbs and takes back all else: for the owner, after each migration."""
    pairs = sorted((group(facet), verb) for facet in FACET_VERBS for verb in may_call(facet))
    return _fill("grants.sql", rights=",\n      ".join(f"('{role}', '{verb}')" for role, verb in pairs))


def login_sql(login: Login) -> str:
    """Return the SQL that makes one login. It has no password yet."""
    limits = LIMITS[login.facet]
    return _fill(
        "login.sql",
        name=login.name,
        name_text=f"'{login.name}'",
        group=group(login.facet),
        facet=login.facet,
        pool_text=f"'{login.pool}'" if login.pool else "null",
        of_pool=", one pool" if login.pool else "",
        connections=str(limits.connections),
        statement_seconds=str(limits.statement_seconds),
        lock_seconds=str(limits.lock_seconds),
        idle_seconds=str(limits.idle_seconds),
    )


def script(*logins: Login) -> str:
    """Return the whole SQL for review, without a connection: the same input gives the same bytes."""
    return "\n".join([roles_sql(), grants_sql(), *map(login_sql, logins)])


def install(dsn: str) -> None:
    """Make owner and groups, and give each group the verbs that are there. Raises StoreUnavailable."""
    with connect(dsn) as connection, connection.transaction():
        connection.execute(roles_sql().encode())
        connection.execute(grants_sql().encode())


def create_login(dsn: str, login: Login, password: str | None = None, speaks: Sequence[Speech] = ()) -> None:
    """Make one login as the superuser of `dsn`. Raises StoreUnavailable, PolicyError (R-exists, R-speaks).

    Without a password it can log in only where pg_hba.conf asks for none (peer, cert). The server never sees the
    password, only its SCRAM verifier, so that no log of it has one.
    """
    with connect(dsn) as connection, connection.transaction():
        if connection.execute("select from pg_roles where rolname = %s", [login.name]).fetchone() is not None:
            _refuse("R-exists", "name", "a role of this name exists", "choose another, or drop that one")
        connection.execute(login_sql(login).encode())
        if password is not None:
            _set_password(connection, login.name, password)
        _allow(connection, login.name, speaks, f"roles create {login.name}")


def allow(dsn: str, name: str, speaks: Sequence[Speech], reason: str) -> int:
    """Let a producer's login enqueue more, as a superuser or a member of the owner; return how much of it is new.

    Written to the audit. Raises StoreUnavailable, StoreError, PolicyError (R-speaks, S-reason).
    """
    with connect(dsn) as connection, connection.transaction():
        return _allow(connection, name, speaks, reason)


def _allow(connection: Connection, name: str, speaks: Sequence[Speech], reason: str) -> int:
    import psycopg

    from benteng.store.postgres import faults

    if not speaks:
        return 0
    try:
        connection.execute("set local role benteng_owner")
        said = [connection.execute(_SPEAK, [name, each.actor, each.type, reason]).fetchone() for each in speaks]
        connection.execute("reset role")
    except psycopg.Error as error:
        raise faults.translated(error, waits=True) from None
    return said.count((True,))


def _set_password(connection: Connection, name: str, password: str) -> None:
    from psycopg import sql

    verifier = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
    connection.execute(sql.SQL("alter role {} password {}").format(sql.Identifier(name), sql.Literal(verifier)))


def connect(dsn: str) -> Connection:
    """Connect as the person who administers the database. Raises StoreUnavailable, without a word of the address."""
    import psycopg

    try:
        return psycopg.connect(dsn, application_name="benteng-roles")
    except psycopg.Error as error:
        # The driver's words may repeat the address, and with it a password.
        raise StoreUnavailable(f"cannot connect to the database ({type(error).__name__})") from None


@cache
def _text(file: str) -> str:
    return (HERE / file).read_text(encoding="utf-8")


def _fill(file: str, **words: str) -> str:
    known = {"owner": OWNER, "tables": TABLES, "verbs": VERBS, "groups": ", ".join(map(group, FACET_VERBS)), **words}
    return re.sub(r"\{(\w+)\}", lambda match: known[match[1]], _text(file))


def _refuse(rule: str, field: str, reason: str, fix: str) -> None:
    raise PolicyError(rule, reason, field=field, fix=fix)
