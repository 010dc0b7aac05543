"""`benteng roles create --speaks` and `benteng roles allow`: who may enqueue what in a production ledger."""

from __future__ import annotations

import secrets

import pytest
from click.testing import CliRunner

from benteng.errors import PolicyError
from benteng.ops.cli import main
from benteng.store.postgres import migrate
from benteng.store.postgres.roles import Speech

WEB = f"web_{secrets.token_hex(4)}"


@pytest.fixture
def dba(postgres, monkeypatch):
    """Run `benteng roles` on a fresh prod ledger; `ask` asks its tables."""
    dbname = postgres.create_database()
    migrate.up(postgres.dsn(dbname=dbname), "prod")
    monkeypatch.setenv("BENTENG_DBA_DSN", postgres.dsn(dbname=dbname))
    with postgres.connect(dbname=dbname) as connection:
        yield Dba(connection)
        connection.execute(f"drop role if exists {WEB}".encode())
    postgres.drop_database(dbname)


class Dba:
    """The command line of an administrator, and what it did."""

    def __init__(self, connection):
        self.connection = connection

    def run(self, *words):
        """Run one command."""
        return CliRunner().invoke(main, ["roles", *words])

    def create(self, *words, facet="producer"):
        """Make the login that these tests are about."""
        return self.run("create", WEB, "--facet", facet, *words)

    @property
    def speaks(self):
        """What logins may enqueue."""
        return self.connection.execute("select origin, actor, type from benteng.speaks order by 2, 3").fetchall()

    @property
    def records(self):
        """What the audit says of it."""
        query = "select event, actor, type, reason, detail from benteng.audit order by id"
        return self.connection.execute(query).fetchall()


def test_a_login_is_made_with_what_it_may_enqueue(dba):
    """Each --speaks is a row and an audit record, in the transaction that makes the login."""
    ended = dba.create("--speaks", "svc:web:greet@1", "--speaks", ":greet@1", "--speaks", "user:ana:*")

    assert 0 == ended.exit_code, ended.output
    assert [(WEB, "", "greet@1"), (WEB, "svc:web", "greet@1"), (WEB, "user:ana", "*")] == dba.speaks
    assert [
        ("policy_applied", "svc:web", "greet@1", f"roles create {WEB}", f"may be enqueued by {WEB}"),
        ("policy_applied", "", "greet@1", f"roles create {WEB}", f"may be enqueued by {WEB}"),
        ("policy_applied", "user:ana", "*", f"roles create {WEB}", f"may be enqueued by {WEB}"),
    ] == dba.records


def test_what_is_allowed_already_is_not_recorded_again(dba):
    """Repeating a command is harmless, and the audit has what changed."""
    dba.create("--speaks", "*:greet@1")
    words = ("allow", WEB, "--speaks", "*:greet@1", "--speaks", "*:mail@2", "--reason", "the shop sends mail")

    first, second = dba.run(*words), dba.run(*words)

    assert (f"{WEB} may enqueue 1 more\n", f"{WEB} may enqueue 0 more\n") == (first.stderr, second.stderr)
    assert ["greet@1", "mail@2"] == [name for _, _, name in dba.speaks]
    assert 2 == len(dba.records)


@pytest.mark.parametrize("facet,more", [("keeper", ()), ("consumer", ("--pool", "p"))])
def test_nobody_but_a_producer_enqueues(dba, facet, more):
    """R-speaks, and the login is not made either."""
    ended = dba.create("--speaks", "*:*", *more, facet=facet)

    assert 78 == ended.exit_code
    assert "R-speaks" in ended.stderr
    assert [] == dba.speaks
    assert (0,) == dba.connection.execute("select count(*) from pg_roles where rolname = %s", [WEB]).fetchone()


def test_a_login_that_nobody_made_gets_nothing(dba):
    """A row for a name that is no login would be the right of whoever makes that login."""
    ended = dba.run("allow", WEB, "--speaks", "*:*", "--reason", "why not")

    assert 78 == ended.exit_code
    assert [] == dba.speaks


@pytest.mark.parametrize(
    "text", ["greet@1", "svc:web", "svc:web:greet", "svc web:greet@1", "svc:web:*@1", "'; drop:*", ""]
)
def test_what_is_no_actor_and_type_is_refused(text):
    """A mistyped right would be one that nobody meant."""
    with pytest.raises(PolicyError, match="R-speaks"):
        Speech.parse(text)


def test_allow_wants_to_know_what_and_why(dba):
    """Without --speaks or --reason nothing is done."""
    assert 2 == dba.run("allow", WEB, "--reason", "x").exit_code
    assert 2 == dba.run("allow", WEB, "--speaks", "*:*").exit_code


def test_no_login_of_the_ledger_can_allow(dba):
    """The function is the owner's alone."""
    dba.create("--speaks", "*:greet@1")

    found = dba.connection.execute(
        "select has_function_privilege(%s, 'benteng.allow_speaking(text, text, text, text)', 'execute')", [WEB]
    ).fetchone()

    assert (False,) == found
