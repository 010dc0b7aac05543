from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from benteng.errors import PolicyError, StoreDamaged, StoreUnavailable
from benteng.lifecycle import QuarantineReason
from benteng.ops.cli import main
from benteng.store.postgres import migrate

HERE = Path(migrate.__file__).parent
CATALOG = """
select 'column', table_schema || '.' || table_name || '.' || column_name, data_type || coalesce(column_default, '')
from information_schema.columns where table_schema like 'benteng%'
union all
select 'constraint', conrelid::regclass::text || '.' || conname, pg_get_constraintdef(oid)
from pg_constraint where connamespace::regnamespace::text like 'benteng%'
union all
select 'index', indexname, indexdef from pg_indexes where schemaname like 'benteng%'
union all
select 'function', p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)) || coalesce(p.proacl::text, '')
from pg_proc p where p.pronamespace::regnamespace::text like 'benteng%'
union all
select 'relation', c.oid::regclass::text, c.relkind::text || coalesce(c.relacl::text, '') || c.relowner::regrole::text
from pg_class c where c.relnamespace::regnamespace::text like 'benteng%' and c.relkind <> 'i'
order by 1, 2, 3
"""


@pytest.fixture
def name(postgres):
    """An empty database."""
    name = postgres.create_database()
    yield name
    postgres.drop_database(name)


@pytest.fixture
def empty(postgres, name):
    """The address of that database, as the superuser."""
    return postgres.dsn(dbname=name)


@pytest.fixture
def session(postgres, name):
    """A session of the superuser in it."""
    with postgres.connect(dbname=name) as connection:
        yield connection


def test_up_twice_is_up_once(empty):
    """The second time nothing is pending and nothing is applied."""
    first = migrate.up(empty, "dev")

    assert "migrations/001_ledger.sql" == first[0]
    assert [] == migrate.up(empty, "dev")
    assert migrate.status(empty).is_current


def test_status_of_an_empty_database_is_all_pending(empty):
    """Where nothing is, every step is named as pending."""
    found = migrate.status(empty)

    assert {"pending"} == set(found.steps.values())
    assert not found.is_current


def test_one_wins_under_concurrency(empty):
    """Of several hosts that migrate at once one does the work, and no one fails."""
    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(lambda _: migrate.up(empty, "prod"), range(4)))

    assert 1 == len([each for each in applied if each])
    assert migrate.status(empty).is_current


def test_sql_makes_the_same_as_up(postgres, empty, session):
    """The text for psql and the command make one schema: tables, constraints, indexes, functions, owners, rights."""
    migrate.up(empty, "prod")
    other = postgres.create_database()
    with postgres.connect(dbname=other) as there:
        there.execute(migrate.sql("prod").encode())
        made = there.execute(CATALOG.encode()).fetchall()

    assert session.execute(CATALOG.encode()).fetchall() == made
    assert [] == migrate.up(postgres.dsn(dbname=other), "prod")
    postgres.drop_database(other)


def test_sql_is_the_same_each_time():
    """Deterministic text, without a connection, and without an address."""
    assert migrate.sql("prod") == migrate.sql("prod")
    assert migrate.sql("prod") != migrate.sql("dev")


def test_changed_migration_is_damage(empty, session):
    """A migration that was applied is never another one later."""
    migrate.up(empty, "dev")
    session.execute("update benteng.migration set sha256 = 'x' where name like 'migrations/%'")

    assert "changed" in migrate.status(empty).steps.values()
    with pytest.raises(StoreDamaged):
        migrate.up(empty, "dev")


def test_changed_function_is_applied_again(empty, session):
    """Functions replace themselves: a new version's text is applied over the old one's."""
    migrate.up(empty, "dev")
    session.execute("update benteng.migration set sha256 = 'x' where name = 'functions/claim.sql'")

    assert ["functions/claim.sql"] == migrate.up(empty, "dev")


def test_newer_database_is_left_alone(empty, session):
    """A database with a step that this version does not know is not touched."""
    migrate.up(empty, "dev")
    session.execute("insert into benteng.migration (name, sha256) values ('migrations/999_future.sql', 'x')")

    with pytest.raises(StoreDamaged, match="999_future"):
        migrate.up(empty, "dev")


def test_environment_is_fixed(empty):
    """A ledger that was made for dev does not become one for prod."""
    migrate.up(empty, "dev")

    with pytest.raises(PolicyError, match="S-environment"):
        migrate.up(empty, "prod")


def test_failed_step_leaves_nothing(empty, session, monkeypatch):
    """All steps are one transaction: when one fails the database is as before."""
    broken = (*migrate.migrations(), migrate.Step("migrations/002_broken.sql", "select 1 / 0;"))
    monkeypatch.setattr(migrate, "migrations", lambda: broken)

    with pytest.raises(Exception, match="refused"):
        migrate.up(empty, "dev")

    assert session.execute("select to_regnamespace('benteng')").fetchone() == (None,)


def test_used_table_delays_but_does_not_hang(empty, session, monkeypatch):
    """A lock that is not given in time is tried again, and in the end an error: the ledger never queues behind it."""
    migrate.up(empty, "dev")
    step = migrate.Step("migrations/002_more.sql", "lock table benteng.job in access exclusive mode;")
    steps = (*migrate.migrations(), step)
    monkeypatch.setattr(migrate, "migrations", lambda: steps)
    monkeypatch.setattr(migrate, "LOCK_MILLISECONDS", 50)
    monkeypatch.setattr(migrate, "TRIES", 2)
    session.execute("begin")
    session.execute("lock table benteng.job in row share mode")

    with pytest.raises(StoreUnavailable):
        migrate.up(empty, "dev")

    session.execute("rollback")
    assert ["migrations/002_more.sql"] == migrate.up(empty, "dev")


def test_reasons_are_those_of_the_life_cycle():
    """The check of what is set apart says what lifecycle.py says."""
    text = (HERE / "migrations" / "001_ledger.sql").read_text()
    listed = {frozenset(re.findall(r"'(\w+)'", found)) for found in re.findall(r"check \(\w+ in \(([^)]*)\)", text)}

    assert frozenset(map(str, QuarantineReason)) in listed


def test_every_function_file_is_applied():
    """No file of a verb is forgotten in the list."""
    assert sorted(path.stem for path in (HERE / "functions").glob("*.sql")) == sorted(migrate.FUNCTIONS)


def test_migrations_are_named_in_order():
    """001, 002, ... without a gap, each with its kind in its first line."""
    names = [step.name for step in migrate.migrations()]

    assert [f"{number:03}" for number in range(1, len(names) + 1)] == [name.split("/")[1][:3] for name in names]


def test_command_from_nothing_to_current(empty, monkeypatch):
    """`benteng migrate`: sql without a database; status, up, status with one."""
    run = CliRunner().invoke
    monkeypatch.delenv("BENTENG_DBA_DSN", raising=False)
    assert 78 == run(main, ["migrate", "up"]).exit_code
    assert migrate.sql("prod") == run(main, ["migrate", "sql", "--environment", "prod"]).stdout
    monkeypatch.setenv("BENTENG_DBA_DSN", empty)

    codes = [run(main, ["migrate", *words]).exit_code for words in (["status"], ["up"], ["status"])]

    assert [32, 0, 0] == codes
