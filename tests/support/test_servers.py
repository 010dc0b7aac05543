from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support import servers, watchdog
from tests.support.fixtures import need
from tests.support.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]
LONELY = """
import os, sys
from tests.support.servers import PostgresServer
server = PostgresServer.launch()
print(server.home, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def own():
    """A cluster that the tests of this file share; none of them stops it."""
    need(servers.why_no_cluster())
    with servers.PostgresServer.launch() as server:
        yield server


def rows(server, query, **where):
    """What a query returns, as superuser."""
    with server.connect(**where) as connection:
        return connection.execute(query).fetchall()


def make(server, dbname="postgres"):
    """A table with one row, by the superuser."""
    with server.connect(dbname=dbname) as connection:
        connection.execute("create table kept as select 1 as n")


def test_fresh_databases_are_built_once(postgres):
    """A module's database is a copy: what the builder did is there, what another copy did is not."""
    built = []

    def build(dbname):
        built.append(dbname)
        make(postgres, dbname)

    first = postgres.fresh("test_servers", build)
    rows(postgres, "update kept set n = 2 returning n", dbname=first)
    second = postgres.fresh("test_servers", build)

    assert 1 == len(built)
    assert [(1,)] == rows(postgres, "select n from kept", dbname=second)
    postgres.drop_database(first)
    postgres.drop_database(second)


def test_tcp_asks_for_the_password(own, monkeypatch):
    """Another user of this machine does not become superuser of the test server."""
    with psycopg.connect(own.tcp_dsn()) as connection:
        assert "127.0.0.1" == connection.info.host

    monkeypatch.setattr(own, "password", "guess")

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(own.tcp_dsn())


def test_the_home_is_closed_to_others(own):
    """Data and socket lie in a directory of the server's own user."""
    assert 0o700 == own.home.stat().st_mode & 0o777


def test_a_killed_postmaster_comes_back(cluster):
    """After kill -9 a durable cluster starts again on the same port with what was committed."""
    server = cluster(durable=True)
    make(server)
    address = server.dsn()

    server.kill()
    server.start()

    assert address == server.dsn()
    assert [(1,)] == rows(server, "select n from kept")
    assert [("on",)] == rows(server, "show fsync")


def test_a_synchronous_standby_takes_over(cluster):
    """What was committed is on the promoted replica, on a new timeline."""
    server = cluster()
    replica = server.standby(sync=True)
    make(server)

    server.kill()
    replica.promote()

    assert [(1,)] == rows(replica, "insert into kept values (2) returning 1")
    assert [(1,), (2,)] == rows(replica, "select n from kept order by n")
    assert [(2,)] == rows(replica, "select ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int")


def test_a_replica_that_is_not_promoted_is_read_only(own):
    """A standby refuses to write."""
    replica = own.standby(sync=False)

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        make(replica)


def test_the_server_stands_behind_a_proxy(own):
    """A proxy before the unix socket is a way for clients by TCP."""
    with Proxy(own.socket) as proxy:
        address = servers.address("postgres", "postgres", host=proxy.host, port=proxy.port)
        with psycopg.connect(address) as connection:
            assert (1,) == connection.execute("select 1").fetchone()


def test_close_leaves_nothing(cluster):
    """No process and no file of a closed server is left, nor of its standby."""
    server = cluster()
    homes = [server.home, server.standby(sync=False).home]

    server.close()

    assert [False, False] == [home.exists() for home in homes]
    assert [[], []] == [watchdog.processes(home / "data") for home in homes]


def test_a_killed_server_leaves_no_memory(cluster):
    """Not the segment either by which a postmaster guards its data: those of a system are counted."""
    server = cluster()
    identifier = (server.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
    before = segments()

    server.kill()
    server.close()

    assert identifier in before
    assert identifier not in segments()


def segments():
    """The System V segments of this machine."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_a_killed_session_leaves_nothing():
    """The watchdog ends the server of a test session that was killed, and removes its files."""
    need(servers.why_no_cluster())
    lonely = subprocess.Popen([sys.executable, "-c", LONELY], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    home = Path(lonely.communicate(timeout=60)[0].strip())

    for pid in [*watchdog.processes(home / "data"), *watchdogs(home)]:
        wait_for_end(pid)

    assert -9 == lonely.returncode
    assert "benteng-pg-" in home.name
    assert not home.exists()
    assert [] == watchdog.processes(home / "data")


def watchdogs(home):
    """The processes that watch over this home."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if entry.name.isdigit() and str(home).encode() in words:
            found.append(int(entry.name))
    return found


def wait_for_end(pid):
    """Return when the process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([handle], [], [], 30)[0], f"process {pid} does not end"
    os.close(handle)


def test_a_missing_server_fails_in_ci(monkeypatch):
    """In CI a test that cannot run is a failure."""
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="no server"):
        need("no server")


def test_a_missing_server_is_a_loud_skip_elsewhere(monkeypatch):
    """On a developer's machine the reason is in the summary."""
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="no server"):
        need("no server")


def test_the_variable_comes_first(monkeypatch):
    """A given server is used as it is, with its own superuser and password, and nothing is started."""
    monkeypatch.setenv(servers.VARIABLE, "postgresql://boss:s%40cret@db.example:6000/any")

    server = servers.shared()

    assert "s@cret" == server.password
    assert "postgresql://boss:s%40cret@/mine?host=db.example&port=6000" == server.dsn(dbname="mine")
    assert "postgresql://x:s%40cret@/mine?host=db.example&port=6000" == server.dsn("x", "mine")


@pytest.fixture
def older(tmp_path):
    """A directory with the binaries of another version, as far as anybody looks."""
    for tool in servers.TOOLS:
        (tmp_path / tool).touch()
    return tmp_path


def test_binaries_that_are_named_come_before_all_others(monkeypatch, older):
    """Tests run on the version that was asked for; a tool that it lacks is another one's."""
    monkeypatch.setenv(servers.BINARIES, str(older))

    assert older == servers._binaries()
    assert older == servers._lender(older, "initdb")
    assert older != servers._lender(older, "pg_basebackup")


def test_binaries_that_are_named_and_not_there_are_not_replaced(monkeypatch, tmp_path):
    """A test of version 14 that ran on 17 would count as passed."""
    monkeypatch.delenv(servers.VARIABLE, raising=False)
    monkeypatch.setenv(servers.BINARIES, str(tmp_path / "nowhere"))

    assert "nowhere has no initdb and postgres" in servers.why_none()


def test_binaries_behind_a_closed_door_are_copied(cluster, monkeypatch, tmp_path):
    """When root's virtual environment is closed to nobody, the server still comes up."""
    if os.geteuid() != 0:
        pytest.skip("only root starts the server as somebody else")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    real = servers._binaries()
    (closed / "pginstall").symlink_to(real.parent)
    monkeypatch.setattr(servers, "_find", lambda: closed / "pginstall" / "bin")

    server = cluster()

    assert server.home / "pginstall" / "bin" == server._bin
