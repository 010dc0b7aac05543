"""A PostgreSQL installation as a person makes it: migrated, one login a service, benteng.toml by facet; real processes.

Every process is started by the command line, in a directory with its own benteng.toml, and told apart by its events.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
import psycopg

from benteng import lockfile
from benteng.clock import system_clock
from benteng.errors import StoreUnavailable
from benteng.gate import Gate, JobSpec
from benteng.keyring import generate, load_signing_key
from benteng.store.contract import Keeper, Producer
from benteng.store.open import open_auditor, open_consumer, open_keeper, open_operator, open_producer
from benteng.store.postgres import migrate, roles
from benteng.store.records import JobView, Receipt
from benteng.task import Registry
from tests.support.servers import Server

T = TypeVar("T")
Address = Callable[[str, str], str]
PATIENCE_SECONDS = 20.0
POLL_SECONDS = 0.1
STEPS = Path(__file__).parent / "apps" / "steps.py"
"""The application of most of these tests."""
FACETS = ("producer", "consumer", "keeper", "operator", "auditor")
COMMAND = (sys.executable, "-c", "import sys; from benteng.ops.cli import main; sys.exit(main())")


def registry_of(path: Path) -> Registry:
    """Return the registry of an application, as a producer that imports it has it."""
    name = f"site_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].app.registry


def by_tcp(root: Path, password: str | None, host: str, port: int, **more: str) -> Address:
    """Return addresses by TCP, where a password is asked for: it is in a file, and in no address."""
    file = root / "pgpass"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(f"*:*:*:*:{password}\n")
    query = urlencode({"host": host, "port": port, "passfile": str(file), **more})
    return lambda user, dbname: f"postgresql://{user}@/{dbname}?{query}"


class Process:
    """`benteng ...`, running: what it says on stderr, one JSON document a line."""

    def __init__(
        self, arguments: tuple[str, ...], home: Path, environ: Mapping[str, str], user: Mapping[str, Any] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            arguments,
            cwd=home,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            **(user or {}),
        )
        assert self.process.stderr is not None
        self.descriptor = self.process.stderr.fileno()
        os.set_blocking(self.descriptor, False)
        self._rest = b""
        self.said: list[dict[str, Any]] = []
        self.text = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def listen(self, seconds: float = 0.0) -> None:
        """Take in what it says, waiting for the first word at most so long."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self.descriptor, 1 << 16)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self.text += line.decode(errors="replace") + "\n"
            if line.startswith(b"{"):
                self.said.append(msgspec.json.decode(line))

    def wait(self, event: str, count: int = 1, seconds: float = PATIENCE_SECONDS, **fields: object) -> dict[str, Any]:
        """Wait until it has said this so many times; return the last of them."""
        until = time.monotonic() + seconds
        while len(found := self.all(event, **fields)) < count:
            if time.monotonic() > until or self._is_silent_for_ever():
                raise AssertionError(f"never said {event} {fields} {count} times: {self.text[-3000:]}")
            self.listen(0.2)
        return found[count - 1]

    def _is_silent_for_ever(self) -> bool:
        ended = self.process.poll() is not None
        return ended and not select.select([self.descriptor], [], [], 0)[0]

    def all(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """Return what it has said of a kind, as far as it has arrived."""
        self.listen()
        return [said for said in self.said if said["event"] == event and fields.items() <= said.items()]

    def stop(self) -> int:
        """Ask it to end; return the exit code."""
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            self.listen(0.05)
        self.listen()
        return self.process.wait(0.1)

    def close(self) -> None:
        """End it by force."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


class Site:
    """One ledger on a server, its logins and the processes of a test.

    address  where clients find the server: (user, dbname) -> address; a test that fails the way puts a proxy there
    """

    def __init__(
        self,
        root: Path,
        server: Server,
        registry: Registry,
        app: Path,
        *,
        pools: tuple[str, ...] = ("default",),
        address: Address | None = None,
        environment: str = "dev",
    ) -> None:
        self.root, self.server, self.registry, self.app = root, server, registry, app
        self.address: Address = address or server.dsn
        self.environment = environment
        self.policies = registry.policies()
        self._suffix = secrets.token_hex(4)
        self.dbname = server.create_database()
        self._stack = ExitStack()
        self.processes: list[Process] = []
        for name in ("home", "scratch"):
            (root / name).mkdir(mode=0o700)
        for name in ("effects", "go"):
            os.mkfifo(root / name)
        self._pipe = os.open(root / "effects", os.O_RDWR | os.O_NONBLOCK)
        self._effects = ""
        self._install(pools)
        self.open()
        generate(root / "home" / ".benteng", origin=self.producer.origin, now=system_clock())

    def _install(self, pools: tuple[str, ...]) -> None:
        dba = self.server.dsn(dbname=self.dbname)
        migrate.up(dba, self.environment)
        for facet in FACETS:
            for pool in pools if facet == "consumer" else ("",):
                roles.create_login(dba, roles.Login(self.login(facet, pool), facet, pool), self.server.password)
        with closing(open_operator(self.server.dsn(self.login("operator"), self.dbname))) as operator:
            operator.apply_types(lockfile.to_rows(self.policies), "test")
        shutil.copy(self.app, self.home)
        lockfile.write(self.home / "benteng.lock", self.policies)

    # --- addresses ----------------------------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        """Where the application and benteng.toml of the services are."""
        return self.root / "home"

    def login(self, facet: str, pool: str = "") -> str:
        """Return the name of a login: those of a server belong to all its databases."""
        return f"s_{facet}{f'_{pool}' if pool else ''}_{self._suffix}"

    def dsn(self, facet: str, pool: str = "") -> str:
        """Return the address for a facet, the way that clients go."""
        return self.address(self.login(facet, pool), self.dbname)

    def superuser(self) -> psycopg.Connection[Any]:
        """Connect beside every proxy, as nobody of the ledger may."""
        return self.server.connect(dbname=self.dbname)

    # --- the test's own facets ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the facets that the test itself speaks as."""
        self.producer: Producer = open_producer(self.dsn("producer"), environment=self.environment)
        self.gate = Gate(self.producer, self.registry, self.policies, self._key)

    def _key(self) -> Any:
        return load_signing_key(self.home / ".benteng" / "producer.key")

    def consumer(self, pool: str = "default") -> Any:
        """Open a consumer, closed with the site."""
        return self._kept(open_consumer(self.dsn("consumer", pool), pool, environment=self.environment))

    def keeper(self) -> Keeper:
        """Open a keeper, closed with the site."""
        return self._kept(open_keeper(self.dsn("keeper"), environment=self.environment))

    def operator(self) -> Any:
        """Open an operator, closed with the site."""
        return self._kept(open_operator(self.dsn("operator"), environment=self.environment))

    def auditor(self) -> Any:
        """Open an auditor, closed with the site."""
        return self._kept(open_auditor(self.dsn("auditor"), environment=self.environment))

    def _kept(self, store: Any) -> Any:
        return self._stack.enter_context(closing(store))

    def enqueue(self, job_type: str, **payload: object) -> str:
        """Let one job in and return its id."""
        return self.gate.enqueue(JobSpec(job_type, payload, actor="svc:test")).job_id

    def enqueue_many(self, job_type: str, payloads: list[dict[str, object]]) -> list[str]:
        """Let several jobs in by one commit."""
        answers = self.gate.enqueue_many([JobSpec(job_type, each, actor="svc:test") for each in payloads])
        receipts = [answer for answer in answers if isinstance(answer, Receipt)]
        assert len(receipts) == len(payloads), answers
        return [receipt.job_id for receipt in receipts]

    def show(self, job_id: str) -> JobView:
        """Return everything about a job, asked beside every proxy."""
        with closing(open_operator(self.server.dsn(self.login("operator"), self.dbname))) as operator:
            view = operator.show(job_id)
        assert view is not None
        return view

    # --- processes ----------------------------------------------------------------------------------------------------

    def worker(self, pool: str = "default", *options: str, **places: Any) -> Process:
        """Start `benteng worker` for a pool, and return at once."""
        dsns = {"consumer": self.dsn("consumer", pool)}
        return self._start(
            dsns, ("worker", f"{self.app.stem}:app", "--pool", pool, "--log", "json", *options), **places
        )

    def keep(self, **places: Any) -> Process:
        """Start `benteng keeper`."""
        return self._start({"keeper": self.dsn("keeper")}, ("keeper", "--log", "json"), **places)

    def _start(
        self,
        dsns: Mapping[str, str],
        arguments: tuple[str, ...],
        *,
        prefix: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command in a directory of its own with just the address that it needs."""
        home = self.root / f"host{len(self.processes)}"
        shutil.copytree(self.home, home, symlinks=True)
        self._configure(home, dsns)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("BENTENG_")}
        variables |= {"EFFECTS": str(self.root / "effects"), "TMPDIR": str(self.root / "scratch"), **(environ or {})}
        process = Process((*prefix, *COMMAND, *arguments), home, variables)
        self.processes.append(process)
        return process

    def _configure(self, home: Path, dsns: Mapping[str, str]) -> None:
        lines = [
            f'environment = "{self.environment}"',
            f"poll_seconds = {POLL_SECONDS}",
            "[dsn]",
            *(f'{facet} = "{dsn}"' for facet, dsn in dsns.items()),
            "[pool.default]",
            'env = ["EFFECTS"]',
            f'write = ["{self.root / "effects"}", "{self.root / "go"}"]',
            "drain_seconds = 2.0",
        ]
        file = home / "benteng.toml"
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o600)

    def effect(self, prefix: str, count: int = 1, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until handlers have told that many lines that begin so; return the last of them."""
        return self.until(lambda: (self._told(prefix) + [""] * count)[count - 1], seconds)

    def count(self, prefix: str) -> int:
        """How many lines that begin so have been told."""
        return len(self._told(prefix))

    def _told(self, prefix: str) -> list[str]:
        self._take_effects()
        return [line for line in self._effects.splitlines() if line.startswith(prefix)]

    def _take_effects(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._effects += os.read(self._pipe, 1 << 16).decode()

    def go(self) -> None:
        """Let every handler go on that waits or will wait for it."""
        self._stack.callback(os.close, os.open(self.root / "go", os.O_RDWR))

    # --- waiting ------------------------------------------------------------------------------------------------------

    def until(self, done: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
        """Ask until the answer is true, and return it; the store may be away meanwhile."""
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(StoreUnavailable, psycopg.OperationalError):
                if answer := done():
                    return answer
            if time.monotonic() > end:
                raise AssertionError(self._report())
            self._pause()

    def ended(self, job_id: str, seconds: float = PATIENCE_SECONDS) -> JobView:
        """Wait until a job is completed, cancelled or in quarantine."""
        ends = {"completed", "quarantined", "cancelled"}
        self.until(lambda: self.show(job_id).state in ends, seconds)
        return self.show(job_id)

    def _report(self) -> str:
        with self.superuser() as connection:
            errors = connection.execute(
                "select last_error from benteng.job where last_error <> '' union select error from benteng.quarantine"
            ).fetchall()
        return "\n".join(["it never came true", repr(errors), *(p.text[-2000:] for p in self._listened())])

    def _pause(self) -> None:
        """Wait a little, and make room in every pipe: a handler or worker that found one full would wait for us."""
        self._take_effects()
        streams = [each.descriptor for each in self.processes if each.process.poll() is None]
        select.select(streams, [], [], 0.1)
        for _ in self._listened():
            pass

    def _listened(self) -> Iterator[Process]:
        for process in self.processes:
            process.listen()
            yield process

    def close(self) -> None:
        """End the processes, close what was opened, and take database and logins away."""
        for process in self.processes:
            process.close()
        self.producer.close()
        self._stack.close()
        os.close(self._pipe)
        with contextlib.suppress(psycopg.Error):  # its server may be gone, which is what the test was about
            self.server.drop_database(self.dbname)
            with self.server.connect() as connection:
                found = connection.execute(
                    "select rolname from pg_roles where rolname like %s", [f"s\\_%{self._suffix}"]
                )
                for (name,) in found.fetchall():
                    connection.execute(f"drop role {name}".encode())
