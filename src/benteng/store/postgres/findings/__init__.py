"""What is wrong with the rights of an installed ledger, in words: the installation against the table of roles.py.

Each rule is one query beside this file, or the comparison of function bodies with the files of this package. Nothing is
changed. Run as a superuser: an ordinary login does not see all that it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from benteng.errors import StoreUnavailable
from benteng.store.postgres import roles

if TYPE_CHECKING:
    from psycopg import Connection

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do about a finding. `excess`: somebody can do too much; else something is refused that should work."""

    file: str
    fix: str
    excess: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be: rule, whom or what it is about, what is said, what to do."""

    rule: str
    subject: str
    said: str
    fix: str
    excess: bool


_GRANTS = "run benteng roles create, or the SQL of benteng roles print, and take the rest back with revoke"

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "R-owner": Rule("owner", "revoke the membership or the attribute; alter ... owner to benteng_owner"),
        "R-group": Rule("group", "alter role ... nologin, and revoke what it is a member of"),
        "R-superuser": Rule("superuser", "make a login that has only its facet: benteng roles create"),
        "R-facets": Rule("facets", "one login, one facet: revoke the other role, or make two logins"),
        "R-limits": Rule(
            "limits", "alter role ... connection limit n; alter role ... set ...: see benteng roles print"
        ),
        "R-table": Rule("tables", "revoke it: nobody needs a table, the verbs do"),
        "R-schema": Rule("schemas", _GRANTS),
        "R-function": Rule("functions", "run benteng migrate up again, then benteng roles create"),
        "R-default": Rule("defaults", _GRANTS),
        "R-trigger": Rule("triggers", "find out who did it and why; alter table ... enable trigger ..."),
        "R-missing": Rule("missing", "run benteng roles create", excess=False),
    }
)
BODY = "R-body"
_BODY_FIX = "find out who changed it; benteng migrate up puts the shipped one back"
_FUNCTION = re.compile(
    r"^create (?:or replace )?function\s+(?P<name>\w+\.\w+)\s*\(.*?^as\s+(?P<mark>\$\w*\$)(?P<body>.*?)(?P=mark)",
    re.DOTALL | re.MULTILINE,
)


def verify(dsn: str) -> list[Finding]:
    """Return what is wrong, in the order of RULES. Raises StoreUnavailable when the database cannot be asked."""
    import psycopg

    try:
        with roles.connect(dsn) as connection:
            connection.read_only = True
            return examine(connection)
    except psycopg.errors.InsufficientPrivilege:
        raise StoreUnavailable("this login may not look: use a superuser's address") from None


def examine(connection: Connection) -> list[Finding]:
    """As `verify`, on an open connection, in the transaction that it is in."""
    if not _is_installed(connection):
        return [Finding("R-missing", roles.TABLES, "is not installed", "run benteng migrate up", excess=False)]
    return [*_ask_all(connection), *_bodies(connection)]


def shipped() -> dict[str, set[str]]:
    """Return the bodies of the functions in this package's files by name; those in functions/ replace older ones."""
    found: dict[str, set[str]] = {}
    for folder in ("migrations", "functions"):
        here: dict[str, set[str]] = {}
        for path in sorted((roles.HERE / folder).glob("*.sql")):
            for name, body in bodies_in(path.read_text(encoding="utf-8")):
                here.setdefault(name, set()).add(body)
        found |= here
    return found


def bodies_in(text: str) -> Iterable[tuple[str, str]]:
    """Return name and body of each function that a .sql file creates."""
    return [(match["name"], match["body"]) for match in _FUNCTION.finditer(text)]


def _is_installed(connection: Connection) -> bool:
    return connection.execute("select to_regclass('benteng.login') is not null").fetchone() == (True,)


def _ask_all(connection: Connection) -> list[Finding]:
    return [
        Finding(name, str(subject), str(said), rule.fix, rule.excess)
        for name, rule in RULES.items()
        for subject, said in _ask(connection, rule.file)
    ]


def _ask(connection: Connection, file: str) -> list[tuple[object, ...]]:
    query = (HERE / f"{file}.sql").read_text(encoding="utf-8").encode()
    return connection.execute(query, _facts()).fetchall()


def _facts() -> dict[str, object]:
    return {
        "owner": roles.OWNER,
        "tables": roles.TABLES,
        "verbs": roles.VERBS,
        "groups": [roles.group(facet) for facet in roles.FACET_VERBS],
        "rights": [
            f"{roles.group(facet)} {verb}" for facet in roles.FACET_VERBS for verb in sorted(roles.may_call(facet))
        ],
    }


def _bodies(connection: Connection) -> list[Finding]:
    ours = shipped()
    installed = [(str(name), str(body)) for name, body in _ask(connection, "bodies")]
    found = [
        Finding(BODY, name, _said_of(name, ours), _BODY_FIX, excess=True)
        for name, body in installed
        if body not in ours.get(name, ())
    ]
    lost = sorted(ours.keys() - {name for name, _ in installed})
    return found + [
        Finding("R-missing", name, "does not exist", "run benteng migrate up", excess=False) for name in lost
    ]


def _said_of(name: str, ours: Mapping[str, set[str]]) -> str:
    return "is not as it was shipped" if name in ours else "is none of ours"
