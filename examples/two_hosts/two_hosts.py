"""Two worker hosts, one ledger: one is cut off while it patches, the other takes over, nobody patches twice at once.

    BENTENG_DBA_DSN=postgresql://postgres@/postgres?host=/run/postgresql \
        python examples/two_hosts/two_hosts.py --port 5432

As root, on Linux. The server must accept password logins from 10.83.0.0/16 on its TCP port. Everything else is made
here by commands that anybody could type: a database, its roles with one login a service, two hosts, a worker on each.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode, urlsplit, urlunsplit

from network import Host, Network, why_not

T = TypeVar("T")
HERE = Path(__file__).parent
BENTENG = (sys.executable, "-c", "import sys; from benteng.ops.cli import main; sys.exit(main())")
PATIENCE_SECONDS = 90.0
WORK_TENTHS = 80
SETTINGS = """\
environment = "dev"
app = "jobs:app"
poll_seconds = 0.2

[dsn]
{facet} = "{dsn}"

[pool.patch]
concurrency = 2
env = ["JOURNAL"]
write = ["{journal}"]
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the handlers' journal; `at` in seconds since the machine was booted."""

    at: float
    what: str
    host: str
    fence: int
    pid: int


@dataclass(slots=True)
class Story:
    """What happened. Times are seconds since boot.

    namespaces     of the two workers' networks
    first, second  the fences of the two attempts
    last_word      when the first attempt was last heard of;  taken_over: when the second one began
    refused        what the first host said when its late settlement was refused
    back_seconds   from healing to the first host's next job
    state          of the job in the end
    """

    namespaces: tuple[str, str] = ("", "")
    first: int = 0
    second: int = 0
    cut_at: float = 0.0
    last_word: float = 0.0
    taken_over: float = 0.0
    refused: str = ""
    back_seconds: float = 0.0
    state: str = ""
    ends: list[int] = field(default_factory=list[int])


class Ledger:
    """A new database with its roles, and a directory for each service with its own benteng.toml."""

    def __init__(self, dba: str, root: Path, port: int) -> None:
        self.root, self.port = root, port
        self.name = f"two_hosts_{secrets.token_hex(4)}"
        self.journal = root / "journal"
        self.journal.touch()
        self.journal.chmod(0o666)
        self._password = secrets.token_urlsafe(16)
        self._passfile = root / "pgpass"
        self._passfile.touch(mode=0o600)
        self._passfile.write_text(f"*:*:*:*:{self._password}\n")
        self._dba = dba
        self._sql("postgres", f"create database {self.name}")
        self._logins = {
            "producer": f"{self.name}_app",
            "operator": f"{self.name}_ops",
            "consumer": f"{self.name}_patch",
            "keeper": f"{self.name}_keeper",
        }
        self._install()

    def _install(self) -> None:
        environ = {"BENTENG_DBA_DSN": self._as_dba(self.name)}
        benteng("migrate", "up", "--environment", "dev", cwd=self.root, **environ)
        for facet, login in self._logins.items():
            pool = ("--pool", "patch") if facet == "consumer" else ()
            options = ("--facet", facet, *pool, "--password-stdin")
            benteng("roles", "create", login, *options, cwd=self.root, said=self._password, **environ)
        operator = self.service("operator", "127.0.0.1")
        benteng("policy", "lock", cwd=operator)
        benteng("policy", "apply", cwd=operator)
        self._lock = operator / "benteng.lock"

    def service(self, facet: str, server: str) -> Path:
        """Make the directory of one service, which knows the address of its own facet alone."""
        home = self.root / f"{facet}-{secrets.token_hex(2)}"
        home.mkdir()
        shutil.copy(HERE / "jobs.py", home)
        if facet != "operator":
            shutil.copy(self._lock, home)
        query = urlencode({"host": server, "port": self.port, "passfile": str(self._passfile)})
        dsn = f"postgresql://{self._logins[facet]}@/{self.name}?{query}"
        file = home / "benteng.toml"
        file.write_text(SETTINGS.format(facet=facet, dsn=dsn, journal=self.journal))
        file.chmod(0o600)
        return home

    def lines(self) -> list[Line]:
        """Return the handlers' journal."""
        words = [line.split() for line in self.journal.read_text().splitlines()]
        return [Line(float(at), what, host, int(fence), int(pid)) for at, what, host, fence, pid in words]

    def state(self, target: str) -> str:
        """Return where the job for a target is, as the database has it."""
        query = (
            "select coalesce(j.state, o.ended, '') from benteng.operation o left join benteng.job j on j.id = o.job_id"
            " where split_part(o.resources[1], ':', 2) = %s"
        )
        (row,) = self._sql(self.name, query, [target])
        return str(row[0])

    def remove(self) -> None:
        """Drop the database and the logins."""
        self._sql("postgres", f"drop database {self.name} with (force)")
        for login in self._logins.values():
            self._sql("postgres", f"drop role if exists {login}")

    def _as_dba(self, database: str) -> str:
        return urlunsplit(urlsplit(self._dba)._replace(path=f"/{database}"))

    def _sql(self, database: str, query: str, values: list[object] | None = None) -> list[tuple[object, ...]]:
        import psycopg

        with psycopg.connect(self._as_dba(database), autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []


def benteng(*arguments: str, cwd: Path, said: str = "", **environ: str) -> None:
    """Run a command to its end."""
    command = (*BENTENG, *arguments)
    done = subprocess.run(
        command, check=False, cwd=cwd, input=said, text=True, capture_output=True, env={**os.environ, **environ}
    )
    if done.returncode:
        raise SystemExit(f"benteng {' '.join(arguments)}: {done.stderr}")


class Service:
    """A long-running command, on a host or here; what it says goes to a file."""

    def __init__(
        self, ledger: Ledger, facet: str, server: str, arguments: tuple[str, ...], prefix: tuple[str, ...]
    ) -> None:
        home = ledger.service(facet, server)
        self._log = home / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                (*prefix, *BENTENG, *arguments),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "JOURNAL": str(ledger.journal)},
            )

    def said(self, event: str) -> str:
        """Return the last line that begins so, "" for none."""
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.startswith(event)), "")

    @property
    def namespace(self) -> str:
        """The network that it lives in."""
        return str(Path(f"/proc/{self.process.pid}/ns/net").readlink())

    def close(self) -> None:
        """Ask it to end; end it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def worker(ledger: Ledger, host: Host) -> Service:
    """Start a worker on a host."""
    arguments = ("worker", "jobs:app", "--pool", "patch", "--no-keeper")
    return Service(ledger, "consumer", host.gateway, arguments, host.prefix)


def play(ledger: Ledger, network: Network, stack: ExitStack) -> Story:
    """Let it happen, and return what happened."""
    story = Story()
    one, two = network.hosts
    app = ledger.service("producer", "127.0.0.1")
    stack.callback(Service(ledger, "keeper", "127.0.0.1", ("keeper",), ()).close)

    first = worker(ledger, one)
    stack.callback(first.close)
    enqueue(app, "web-7", WORK_TENTHS)
    story.first = until(lambda: begun(ledger, "web-7", above=0))
    second = worker(ledger, two)
    stack.callback(second.close)
    until(lambda: second.said("ready"))
    story.namespaces = (first.namespace, second.namespace)

    one.cut()
    story.cut_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    story.second = until(lambda: begun(ledger, "web-7", above=story.first))
    story.last_word = max(line.at for line in ledger.lines() if line.fence == story.first)
    story.taken_over = min(line.at for line in ledger.lines() if line.fence == story.second)
    until(lambda: ledger.state("web-7") == "completed")

    one.heal()
    healed = time.clock_gettime(time.CLOCK_BOOTTIME)
    story.refused = until(lambda: first.said("fenced_off"))
    second.close()
    enqueue(app, "web-8", 1)
    until(lambda: ledger.state("web-8") == "completed")
    story.back_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - healed
    story.state = ledger.state("web-7")
    story.ends = [line.fence for line in ledger.lines() if (line.what, line.host) == ("end", "web-7")]
    return story


def enqueue(app: Path, target: str, tenths: int) -> None:
    """Enqueue a patch, as the application's host would."""
    benteng("enqueue", "patch@1", f"host={target}", f"tenths={tenths}", "--actor", "svc:deployer", cwd=app)


def begun(ledger: Ledger, target: str, *, above: int) -> int:
    """Return the fence of an attempt that began after another one, 0 for none."""
    return next((line.fence for line in ledger.lines() if line.host == target and line.fence > above), 0)


def until(done: Callable[[], T]) -> T:
    """Look again and again until there is something to see, and return it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (answer := done()):
        if time.monotonic() > end:
            raise SystemExit("it never happened")
        time.sleep(0.05)
    return answer


def run(dba: str, port: int, network: Network) -> Story:
    """Make everything, let it happen, take everything away."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benteng-two-hosts-")))
        root.chmod(0o755)
        ledger = Ledger(dba, root, port)
        stack.callback(ledger.remove)
        return play(ledger, network, stack)


def main() -> int:
    """Run it and tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=5432, help="where the server listens for the two hosts")
    options = parser.parse_args()
    missing = why_not() or ("" if os.environ.get("BENTENG_DBA_DSN") else "BENTENG_DBA_DSN names no superuser's address")
    if missing:
        print(missing, file=sys.stderr)
        return 2
    with Network() as network:
        story = run(os.environ["BENTENG_DBA_DSN"], options.port, network)
    print(f"host 1 began to patch web-7 under fence {story.first}, and was cut off")
    print(f"its attempt was last heard of {story.last_word - story.cut_at:.2f} s later")
    print(f"host 2 began {story.taken_over - story.last_word:.2f} s after that, under fence {story.second}")
    print(f"healed, host 1 said: {story.refused}")
    print(f"and had the next job done {story.back_seconds:.1f} s after it was healed. web-7 is {story.state}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
