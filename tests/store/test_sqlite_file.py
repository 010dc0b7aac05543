from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from benteng.clock import system_clock
from benteng.errors import PolicyError, StoreDamaged, StoreError
from benteng.store.open import open_auditor, open_operator, open_producer
from benteng.store.records import Facet
from benteng.store.sqlite import connection, file
from benteng.store.sqlite.connection import PAGES_KIB, Place
from benteng.store.sqlite.producer import SqliteProducer
from benteng.testing.bench import Bench


@pytest.fixture
def path(tmp_path):
    """Where the ledger will be."""
    return tmp_path / "ledger.db"


@pytest.fixture
def dsn(path):
    """Its address."""
    return f"sqlite:///{path}"


@pytest.fixture
def umask():
    """A umask that takes nothing away, and one that takes the owner's own right."""
    before = os.umask(0)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("bits", [0o000, 0o277])
def test_files_are_the_owners_alone_whatever_the_umask(ledger, umask, bits):
    """Database, -wal and -shm have mode 0600."""
    umask(bits)
    Bench(ledger).admitted()

    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in ledger.directory.glob("ledger.db*")}
    assert {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600} == modes


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602])
def test_file_that_others_can_touch_is_refused(dsn, path, mode):
    """Whoever else could read or write the ledger makes it refuse, with the fix, before anything of it is read."""
    open_operator(dsn).close()
    path.chmod(mode)

    with pytest.raises(StoreError, match="chmod 600"):
        open_operator(dsn)


def test_side_file_that_others_can_touch_is_refused(dsn, path):
    """The write-ahead log holds payloads, too."""
    with closing(open_operator(dsn)):
        Path(f"{path}-wal").chmod(0o644)

        with pytest.raises(StoreError, match="-wal can be read"):
            open_auditor(dsn)


def test_symbolic_link_is_refused(dsn, path, tmp_path):
    """A link could be pointed elsewhere; also one that points nowhere yet."""
    path.symlink_to(tmp_path / "elsewhere.db")

    with pytest.raises(StoreError, match="symbolic link"):
        open_producer(dsn)
    assert not (tmp_path / "elsewhere.db").exists()


def test_second_name_is_refused(dsn, path, tmp_path):
    """Two names of one database make two write-ahead logs, and those corrupt it."""
    open_operator(dsn).close()
    os.link(path, tmp_path / "second.db")

    with pytest.raises(StoreError, match="hard link"):
        open_operator(dsn)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: only root can give a file away")
def test_file_of_another_user_is_refused(dsn, path):
    """Its owner could change it under us."""
    open_operator(dsn).close()
    os.chown(path, 12345, 12345)

    with pytest.raises(StoreError, match="belongs to uid 12345"):
        open_operator(dsn)


def test_foreign_database_is_refused_and_left_as_it_is(dsn, path):
    """A database of another program is not turned into a ledger, nor into WAL mode."""
    with closing(sqlite3.connect(path)) as foreign, foreign:
        foreign.execute("create table theirs (x)")
    path.chmod(0o600)
    before = path.read_bytes()

    with pytest.raises(StoreDamaged, match="another program"):
        open_producer(dsn)
    assert before == path.read_bytes()


def test_file_that_is_no_database_is_damage(dsn, path):
    """Garbage is not opened, and not overwritten."""
    path.write_bytes(b"not a database at all, but long enough to be taken for one" * 20)
    path.chmod(0o600)

    with pytest.raises(StoreDamaged):
        open_producer(dsn)
    assert path.read_bytes().startswith(b"not a database")


def test_newer_schema_is_refused(dsn, path):
    """A ledger of a newer benteng is not touched by an older one."""
    open_operator(dsn).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute(f"pragma user_version = {connection.SCHEMA_VERSION + 1}")

    with pytest.raises(StoreError, match="schema version"):
        open_producer(dsn)


@pytest.mark.parametrize("made, opened", [("prod", "dev"), ("dev", "prod")])
def test_environment_is_fixed_when_the_ledger_is_made(dsn, made, opened):
    """A `prod` ledger never becomes a `dev` one by being opened so, nor the other way round."""
    open_operator(dsn, environment=made).close()

    with pytest.raises(PolicyError, match="S-environment"):
        open_operator(dsn, environment=opened)


def test_unknown_environment_is_refused(dsn, path):
    """Nothing is made for an environment that does not exist."""
    with pytest.raises(PolicyError, match="S-environment"):
        open_operator(dsn, environment="test")
    assert not path.exists()


def test_prod_begins_without_the_dev_defaults(dsn):
    """Nobody may speak for anybody in a fresh `prod` ledger; `dev` says loudly that everybody may."""
    with closing(open_operator(dsn, environment="prod")) as operator:
        assert () == operator.health().findings


def test_dev_defaults_are_found(ledger):
    """What makes `dev` easy is listed by doctor."""
    findings = ledger.operator().health().findings

    assert [True, True] == [finding.startswith("dev default") for finding in findings]


def test_durability_is_what_the_connection_really_has(ledger):
    """D1 is said only while each commit is synced."""
    operator = ledger.operator()
    assert "D1" == operator.health().durability

    operator._connection.set_authorizer(None)
    operator._connection.execute("pragma synchronous = normal")

    assert "D0" == operator.health().durability


def test_old_library_is_refused():
    """STRICT tables need 3.37; the error names both versions."""
    connection.check_library((3, 37, 0))

    with pytest.raises(StoreError, match=r"3\.37\.0 or newer is needed, this Python has 3\.36\.9"):
        connection.check_library((3, 36, 9))


def _open_at_once(path, barrier, answers):
    barrier.wait()
    try:
        with closing(SqliteProducer(Place(Path(path), "dev", system_clock))) as store, store.reading() as tx:
            answers.put(tx.audit_key.hex())
    except StoreError as error:
        answers.put(repr(error))


def test_processes_that_open_a_new_ledger_at_once_make_one(tmp_path):
    """Of several processes exactly one makes the schema, and all get the same ledger."""
    context = get_context("spawn")
    answers = context.Queue()
    barrier = context.Barrier(4)
    processes = [
        context.Process(target=_open_at_once, args=(str(tmp_path / "new.db"), barrier, answers)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    found = {answers.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()

    assert 1 == len(found), found
    assert 64 == len(found.pop())


def test_create_never_follows_or_overwrites(tmp_path):
    """An existing file, of whatever kind, is left alone and then judged by `check`."""
    existing = tmp_path / "x"
    existing.write_text("mine")

    assert not file.create(existing)
    assert "mine" == existing.read_text()


def test_authorizer_stands_on_every_connection(ledger):
    """Each facet is opened with its own rights, none without."""
    for facet in Facet:
        store = ledger.consumer() if facet is Facet.CONSUMER else getattr(ledger, facet)()
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            store._connection.execute("attach ':memory:' as other")


def test_connection_keeps_little_of_a_large_file(ledger):
    """A worker has several connections to a file that grows: each keeps so many of its pages in memory, and no more."""
    keeper = ledger.keeper()._connection
    keeper.set_authorizer(None)

    assert [(-PAGES_KIB,)] == keeper.execute("pragma cache_size").fetchall()
