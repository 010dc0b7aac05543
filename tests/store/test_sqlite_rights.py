from __future__ import annotations

import re
import sqlite3

import pytest

from benteng.errors import FacetError
from benteng.store.records import Facet
from benteng.store.sqlite.rights import DELETE, INSERT, READ, RIGHTS, UPDATE
from benteng.store.sqlite.statements import QUERIES, schema, statements

TABLES = {
    name: re.findall(r"^  (\w+) ", body, re.MULTILINE)[0]
    for name, body in re.findall(r"create table (\w+) \([^\n]*\n(.*?)^\) strict", schema(), re.MULTILINE | re.DOTALL)
}
"""Every table, and its first column."""

STATEMENTS = {
    READ: "select {column} from {table}",
    INSERT: "insert into {table} default values",
    UPDATE: "update {table} set {column} = {column}",
    DELETE: "delete from {table} where 1",
}
USED_BY = {
    "admit": {Facet.PRODUCER, Facet.CONSUMER},
    "claim": {Facet.CONSUMER},
    "extend": {Facet.CONSUMER},
    "settle": {Facet.CONSUMER},
    "register": {Facet.CONSUMER},
    "evidence": {Facet.PRODUCER, Facet.CONSUMER, Facet.OPERATOR},
    "facts": {Facet.PRODUCER, Facet.CONSUMER},
    "status": {Facet.PRODUCER},
    "cancel": {Facet.PRODUCER, Facet.OPERATOR},
    "reclaim": {Facet.KEEPER},
    "stage": {Facet.KEEPER},
    "lead": {Facet.KEEPER},
    "purge": {Facet.KEEPER},
    "resource": {Facet.CONSUMER},
    "leave": {Facet.CONSUMER},
    "refuse": {Facet.PRODUCER, Facet.CONSUMER, Facet.KEEPER},
    "find": {Facet.OPERATOR},
    "show": {Facet.OPERATOR},
    "quarantine": {Facet.OPERATOR},
    "registry": {Facet.OPERATOR},
    "health": {Facet.OPERATOR},
}
"""Which facets run the statements of which file."""


def opened(ledger, facet):
    """The raw connection of a facet, with its authorizer."""
    store = ledger.consumer() if facet is Facet.CONSUMER else getattr(ledger, facet)()
    return store._connection


def test_every_table_is_known():
    """A new table starts forbidden, and this test sees it."""
    assert 16 == len(TABLES)
    assert set(TABLES) >= {table for rights in RIGHTS.values() for table in rights}


@pytest.mark.parametrize("facet", Facet)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("action", STATEMENTS)
def test_facet_may_do_what_its_row_says_and_nothing_else(ledger, facet, table, action):
    """Each facet, each table, each action: allowed if and only if RIGHTS says so."""
    connection = opened(ledger, facet)
    needed = {action} | ({READ} if action == UPDATE else set())
    sql = "explain " + STATEMENTS[action].format(table=table, column=TABLES[table])

    def attempt():
        try:
            connection.execute(sql)
        except sqlite3.DatabaseError as error:
            return "not authorized" not in str(error) and "prohibited" not in str(error)
        return True

    assert (needed <= RIGHTS[facet].get(table, frozenset())) is attempt()


@pytest.mark.parametrize("facet", Facet)
@pytest.mark.parametrize(
    "sql",
    [
        "create table x (y)",
        "drop table audit",
        "alter table audit add column x",
        "drop trigger audit_is_kept",
        "create trigger t after insert on audit begin select 1; end",
        "create index i on audit (leaf)",
        "attach ':memory:' as other",
        "detach main",
        "pragma synchronous = off",
        "pragma journal_mode = delete",
        "pragma writable_schema = on",
        "pragma user_version",
        "reindex",
        "analyze",
        "select load_extension('x')",
        "select readfile('x')",
        "select randomblob(9)",
        "select sql from sqlite_master",
        "update sqlite_master set sql = ''",
        "vacuum into '/tmp/copy.db'",
    ],
)
def test_nothing_but_the_verbs_statements_is_allowed(ledger, facet, sql):
    """Whatever no verb needs is denied to every facet."""
    with pytest.raises(
        sqlite3.DatabaseError,
        match=r"not authorized|prohibited|no such function|may not be modified|authorization denied",
    ):
        opened(ledger, facet).execute(sql)


def test_no_row_of_the_table_gives_too_much():
    """What the rights must never be, said apart from the table that says what they are."""
    may = {(facet, table, act) for facet, rights in RIGHTS.items() for table, acts in rights.items() for act in acts}
    changes = {right for right in may if right[2] != READ}

    assert not {right for right in changes if right[0] is Facet.AUDITOR}
    assert not {right for right in changes if right[1] == "audit" and right[2] != INSERT}
    assert not {right for right in may if right[1] in {"resource", "installation"} and right[2] == DELETE}
    assert not {right for right in changes if right[1] == "speaks"}
    assert {Facet.KEEPER} == {facet for facet, table, act in may if table == "operation" and act == DELETE}
    for table in ("job_type", "artifact", "access"):
        assert {Facet.OPERATOR} == {facet for facet, name, _ in changes if name == table}
    assert {Facet.KEEPER, Facet.OPERATOR} == {facet for facet, name, _ in changes if name == "control"}


def test_token_is_hidden_from_all_but_the_consumer(ledger):
    """The secret of a lease reads as null for everybody else."""
    seen = {}
    for facet in set(Facet) - {Facet.AUDITOR}:
        program = opened(ledger, facet).execute("explain select token from job").fetchall()
        seen[facet] = "null" if any(opcode == "Null" for _, opcode, *_ in program) else "token"

    assert "token" == seen[Facet.CONSUMER]
    assert {"null"} == {seen[facet] for facet in (Facet.PRODUCER, Facet.KEEPER, Facet.OPERATOR)}


@pytest.mark.parametrize("file", sorted(path.stem for path in QUERIES.glob("*.sql")))
def test_every_statement_can_be_prepared_by_its_facets(ledger, file):
    """No statement names a table or column that is not there, or that its facet may not touch."""
    for facet in USED_BY.get(file, set()):
        connection = opened(ledger, facet)
        for sql in statements(file).values():
            bare = re.sub(r"--.*", "", sql)
            named = dict.fromkeys(re.findall(r":([a-z_0-9]+)", bare))
            connection.execute(f"explain {sql}", named or [None] * bare.count("?"))

    assert statements(file)


def test_denied_verb_is_an_error_of_the_facet(ledger):
    """Code that runs a statement of another facet's is told so, and nothing has happened."""
    auditor = ledger.auditor()

    with pytest.raises(FacetError), auditor.writing() as tx:
        tx.run("update audit set body = null where seq = :seq", {"seq": 1})


@pytest.mark.parametrize(
    "sql, why",
    [
        ("update audit set body = null", "never changed"),
        ("delete from audit", "never deleted"),
        ("insert or replace into audit (seq, leaf) values (1, x'00')", "never deleted"),
        ("delete from resource", "never deleted"),
        ("update installation set fence = fence - 1", "never go back"),
        ("update installation set seq = seq - 1", "never go back"),
        ("update installation set environment = 'prod'", "never go back"),
        ("delete from installation", "never deleted"),
    ],
)
def test_triggers_keep_what_must_stay(ledger, sql, why):
    """Also without the authorizer the log, the fences and the environment do not change."""
    consumer = ledger.consumer()
    connection = consumer._connection
    connection.set_authorizer(None)
    connection.execute("insert into audit (leaf) values (x'01')")
    connection.execute("insert into resource (key) values ('host:a')")

    with pytest.raises(sqlite3.IntegrityError, match=why):
        connection.execute(sql)
