"""`benteng roles`: from the command line to what the database then says."""

from __future__ import annotations

import json

import psycopg
import pytest
from click.testing import CliRunner

from benteng.ops.cli import main
from benteng.store.postgres import migrate


@pytest.fixture
def dbname(postgres):
    """A database with tables and verbs."""
    dbname = postgres.create_database()
    migrate.up(postgres.dsn(dbname=dbname), "dev")
    yield dbname
    postgres.drop_database(dbname)


@pytest.fixture
def roles(postgres, dbname, monkeypatch):
    """Run the command as the person who administers that database."""
    monkeypatch.setenv("BENTENG_DBA_DSN", postgres.dsn(dbname=dbname))
    return lambda *words, **more: CliRunner().invoke(main, ["roles", *words], **more)


@pytest.fixture
def without_command_worker(postgres):
    """No role of the name that the tests make, before and after."""
    drop(postgres)
    yield
    drop(postgres)


def drop(postgres):
    """Remove the login that the tests make."""
    with postgres.connect() as connection:
        connection.execute("drop role if exists command_worker")


def test_print_needs_no_database(monkeypatch):
    """The SQL for review is the same each time, on stdout, without an address."""
    monkeypatch.delenv("BENTENG_DBA_DSN", raising=False)
    words = ["roles", "print", "--login", "w_patch:consumer:patch"]

    first, second = (CliRunner().invoke(main, words) for _ in range(2))

    assert (0, 0) == (first.exit_code, second.exit_code)
    assert first.stdout == second.stdout
    assert "create role w_patch login connection limit" in first.stdout
    assert "('benteng_consumer', 'claim')" in first.stdout


def test_what_was_printed_can_be_run(postgres, dbname, without_command_worker):
    """The text is whole: a superuser's psql makes a working login of it."""
    text = CliRunner().invoke(main, ["roles", "print", "--login", "command_worker:consumer:patch"]).stdout

    with postgres.connect(dbname=dbname) as connection:
        connection.execute(text.encode())
        if postgres.password:
            connection.execute(f"alter role command_worker password '{postgres.password}'".encode())

    with postgres.connect("command_worker", dbname) as connection:
        seen = connection.execute("select login, facet, pool from benteng_v1.protocol()").fetchone()
    assert ("command_worker", "consumer", "patch") == seen


def test_create_makes_a_login_with_a_password_from_stdin(postgres, dbname, roles, without_command_worker):
    """The password comes from stdin, the server gets its verifier, and nothing of it is said."""
    words = ["create", "command_worker", "--facet", "consumer", "--pool", "patch", "--password-stdin"]

    ended = roles(*words, input="canary\n")

    with postgres.connect(dbname=dbname) as connection:
        query = "select rolpassword from pg_authid where rolname = 'command_worker'"
        (stored,) = connection.execute(query).fetchone()
    assert 0 == ended.exit_code, ended.output
    assert stored.startswith("SCRAM-SHA-256$")
    assert "canary" not in ended.output


def test_create_without_a_name_makes_groups_and_grants(roles):
    """It may be repeated; afterwards verify has nothing to say."""
    ended = [roles("create"), roles("create")]

    assert [0, 0] == [each.exit_code for each in ended]
    assert 0 == roles("verify").exit_code, roles("verify").output


def test_a_login_that_exists_is_refused(postgres, roles, without_command_worker):
    """R-exists, and the role is as it was."""
    with postgres.connect() as connection:
        connection.execute("create role command_worker nologin")

    ended = roles("create", "command_worker", "--facet", "keeper")

    assert 78 == ended.exit_code
    assert "R-exists" in ended.stderr


def test_verify_ends_with_34_when_somebody_may_too_much(postgres, dbname, roles):
    """One document, the finding with its fix, exit 34."""
    roles("create")
    with postgres.connect(dbname=dbname) as connection:
        connection.execute("grant select on benteng.job to benteng_auditor")

    ended = roles("verify", "--json")

    assert 34 == ended.exit_code
    assert "R-table" in {finding["rule"] for finding in json.loads(ended.stdout)["findings"]}


def test_verify_ends_with_1_when_only_something_is_missing(postgres, dbname, roles):
    """A missing right is a trouble, no danger."""
    roles("create")
    with postgres.connect(dbname=dbname) as connection:
        connection.execute("revoke execute on function benteng_v1.reclaim from benteng_keeper")

    ended = roles("verify")

    assert 1 == ended.exit_code
    assert "R-missing: benteng_keeper may not call reclaim" in ended.stdout


def test_no_address_is_said(monkeypatch):
    """Without BENTENG_DBA_DSN the fix names it; with one that fails its password is in no output."""
    monkeypatch.delenv("BENTENG_DBA_DSN", raising=False)
    without = CliRunner().invoke(main, ["roles", "verify"])
    monkeypatch.setenv("BENTENG_DBA_DSN", "postgresql://boss:canary@127.0.0.1:1/x")
    failing = CliRunner().invoke(main, ["roles", "verify"])

    assert (78, 75) == (without.exit_code, failing.exit_code)
    assert "BENTENG_DBA_DSN" in without.stderr
    assert "canary" not in failing.output


def test_a_role_name_is_not_sql(postgres, roles):
    """What arrives on the command line does not reach the database unless it is a plain name."""
    ended = roles("create", "x; create role y superuser", "--facet", "keeper")

    with postgres.connect() as connection:
        assert connection.execute("select from pg_roles where rolname = 'y'").fetchone() is None
    assert 78 == ended.exit_code
    with pytest.raises(psycopg.OperationalError):
        postgres.connect("y")
