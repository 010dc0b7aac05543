"""benteng in peerbench, beside other job queues: the adapter, and `install`, which plugs it into a copy of peerbench.

One adapter serves several peers, told apart by the name that peerbench gives its driver: LOW, MEDIUM and HIGH on
PostgreSQL, LOW with two worker processes, LOW and MEDIUM on SQLite. Nothing is switched off: each facet has its own
login, every job its operation and its audit records, MEDIUM and HIGH are signed, and their cells are walled in as the
host allows.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

META = {
    "backend": "postgres",
    "venv": "benteng",
    "requires": ["psycopg[binary]>=3.2"],
    "best": {"concurrency": 200, "note": "--concurrency 200, everything else default"},
    "durability": "PostgreSQL commit per enqueue (fsync), with operation and audit records in the same transaction",
    "pending_sql": "select count(*) from benteng.job",
}
SQLITE = {
    **META,
    "backend": "sqlite",
    "durability": "SQLite WAL, synchronous=FULL: a commit is on the disk, with operation and audit records in it",
}
PEERS: dict[str, tuple[dict[str, Any], int]] = {
    "benteng": (META, 200),
    "benteng_two": (META, 200),
    "benteng_medium": (META, 100),
    "benteng_high": (META, 2),
    "benteng_sqlite": (SQLITE, 200),
    "benteng_sqlite_medium": (SQLITE, 32),
}
"""Each peer's META, and the concurrency that its best run gets."""

JOBS_MAX = 1_000_000
"""Active jobs of the one producer: peerbench's `backlog` has 200,000."""

FACETS = ("producer", "consumer", "keeper", "operator")
TYPES = {
    "low": '@app.job("bench@1")\ndef bench(job: int, ms: int) -> None:\n    run(job, ms)\n',
    "medium": (
        '@app.job("bench@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("job",), resources=None)\n'
        "def bench(payload: Work) -> None:\n    run(payload.job, payload.ms)\n"
    ),
    "high": (
        '@app.job("bench@1", tier=Tier.HIGH, effect=Effect.REPEATABLE, operation=("job",), resources=None)\n'
        "def bench(payload: Work) -> None:\n    run(payload.job, payload.ms)\n"
    ),
}
JOBS = '''"""The job that every peer runs."""

import sys

sys.path.insert(0, {here!r})

from benteng import Benteng, Contract, Effect, Tier
from ledger import run

app = Benteng()


class Work(Contract):
    """Which slot of the ledger to mark, and how long to sleep."""

    job: int
    ms: int


{type}'''
HERE = Path(__file__).resolve().parent.parent
SCRATCH = Path(os.environ.get("PEERBENCH_SCRATCH", "/nowhere"))
HOME, QUEUE = SCRATCH / "home", SCRATCH / "store" / "queue.db"  # apart: cells may read the one, never the other
DSN = os.environ.get("PEERBENCH_DSN", "")
PEER = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in PEERS else "benteng"
TIER = PEER.rpartition("_")[2] if PEER.endswith(("medium", "high")) else "low"
ACTOR = "" if TIER == "low" else "svc:bench"


def setup() -> None:
    """Make the ledger with a login for each facet, the configuration, the job and, above LOW, keys."""
    for directory in (HOME, QUEUE.parent):
        directory.mkdir(mode=0o700)
    (HOME / "jobs.py").write_text(JOBS.format(here=str(HERE), type=TYPES[TIER]))
    lines = [
        'environment = "dev"',
        'app = "jobs:app"',
        *(_postgres() if DSN else [f'dsn = "sqlite:///{QUEUE}"']),
    ]
    ledger = os.environ["PEERBENCH_LEDGER"]
    pool = ["[pool.default]", 'env = ["PEERBENCH_LEDGER"]', f'read = ["{HERE}"]', f'write = ["{ledger}"]']
    config = HOME / "benteng.toml"
    config.write_text("\n".join([*lines, "", *pool, ""]))
    config.chmod(0o600)
    if TIER != "low":
        _keys()
    _deepen()


def _deepen() -> None:
    """Let this one producer have the whole backlog that peerbench asks for."""
    from contextlib import closing

    from benteng.store.open import open_operator
    from benteng.store.records import Depth

    dsn = DSN.replace("postgres@", "bench_operator@") if DSN else f"sqlite:///{QUEUE}"
    origin = "bench_producer" if DSN else f"os:{os.getuid()}"
    with closing(open_operator(dsn)) as operator:
        operator.limit_depth(Depth(origin, JOBS_MAX), "peerbench")


def _postgres() -> list[str]:
    import psycopg

    from benteng.store.postgres import migrate, roles

    migrate.up(DSN, "dev")
    roles.install(DSN)
    with psycopg.connect(DSN, autocommit=True) as owner:  # logins are the server's: they outlive peerbench's databases
        for facet in FACETS:
            owner.execute(f"drop role if exists bench_{facet}".encode())
    for facet in FACETS:
        speaks = [roles.Speech(ACTOR, "*")] if facet == "producer" else []
        pool = "default" if facet == "consumer" else ""
        roles.create_login(DSN, roles.Login(f"bench_{facet}", facet, pool), speaks=speaks)
    return ["[dsn]", *(f'{facet} = "{DSN.replace("postgres@", f"bench_{facet}@")}"' for facet in FACETS)]


def _keys() -> None:
    from benteng import keyring
    from benteng.clock import system_clock

    origin = "bench_producer" if DSN else f"os:{os.getuid()}"
    keyring.generate(HOME / ".benteng", origin=origin, now=system_clock())


class Client:
    """One application that enqueues."""

    def open(self) -> None:
        """Open the gate, as an application does at its start."""
        sys.path.insert(0, str(HOME))
        os.chdir(HOME)
        from jobs import app  # pyright: ignore[reportMissingImports] - setup has written it

        self.app = app
        self.app.lobby  # noqa: B018 - it opens when it is first asked for

    def enqueue(self, job: int, ms: int) -> None:
        """Return once the job is durable."""
        self.app.enqueue("bench@1", {"job": job, "ms": ms}, actor=ACTOR)

    def enqueue_many(self, jobs: list[tuple[int, int]]) -> None:
        """Return once all are durable."""
        from benteng import JobSpec, Refused

        specs = [JobSpec("bench@1", {"job": job, "ms": ms}, ACTOR) for job, ms in jobs]
        refused = [said for said in self.app.enqueue_many(specs) if isinstance(said, Refused)]
        if refused:
            raise refused[0]

    def close(self) -> None:
        """Give the connection back."""
        self.app.close()


def worker(concurrency: int, best: bool) -> None:  # noqa: FBT001 - peerbench's signature
    """Become `benteng worker`; the peer `benteng_two` is two of them, of which one has the keeper."""
    tool = str(Path(sys.prefix) / "bin" / "benteng")
    command = [tool, "worker", "--log-level", "warning", "--concurrency", str(PEERS[PEER][1] if best else concurrency)]
    os.chdir(HOME)
    if PEER == "benteng_two" and best:
        subprocess.Popen([*command, "--no-keeper"])
    os.execv(tool, command)  # noqa: S606 - there is nothing for a shell to do


def pending() -> int:
    """Count the jobs that are not finished (SQLite; on PostgreSQL peerbench asks by `pending_sql`)."""
    with sqlite3.connect(f"file:{QUEUE}?mode=ro", uri=True) as connection:
        return connection.execute("select count(*) from job").fetchone()[0]


def install(peerbench: Path, into: Path) -> None:
    """Copy peerbench, put this adapter into the copy, and a small module for each further peer of it."""
    shutil.copytree(peerbench, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(__file__, into / "adapters" / "benteng.py")
    for peer, (meta, best) in PEERS.items():
        own = {**meta, "best": {"concurrency": best, "note": f"--concurrency {best}, everything else default"}}
        text = f'"""{peer}: see benteng.py."""\n\nMETA = {own!r}\n\nfrom adapters.benteng import *\n'
        if peer != "benteng":
            (into / "adapters" / f"{peer}.py").write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 - a script's two arguments
        sys.exit("usage: peerbench_adapter.py PEERBENCH INTO: copy the checkout PEERBENCH to INTO, with these peers")
    install(Path(sys.argv[1]), Path(sys.argv[2]))
