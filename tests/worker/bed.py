"""A test bed: one ledger, its gate, and real worker processes. Tests wait on pipes, not on time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from benteng import lockfile
from benteng.clock import system_clock
from benteng.gate import Gate, JobSpec
from benteng.keyring import generate, load_signing_key
from benteng.lifecycle import State
from benteng.store.open import open_auditor, open_operator, open_producer
from benteng.store.records import Query, Receipt

HERE = Path(__file__).parent
APPS = HERE / "apps"
PATIENCE = 45.0
WAITING = {State.READY, State.SCHEDULED, State.RUNNING, State.BLOCKED, State.HELD}


class Lines:
    """Lines that arrive on a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        os.set_blocking(descriptor, False)

    def wait(self, seconds: float) -> list[str]:
        """Return whole lines, waiting for the first at most so long."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._descriptor, 1 << 16)
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode() for line in lines]


class Worker:
    """A worker process and what it said."""

    def __init__(
        self,
        settings: dict[str, object],
        environ: dict[str, str],
        python: str = sys.executable,
        user: int | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [python, str(HERE / "main.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(settings).encode() + b"\n")
        self.process.stdin.flush()
        self.stream = self.process.stdout
        self._lines = Lines(self.stream.fileno())
        self.events: list[dict[str, str]] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def listen(self, seconds: float) -> None:
        """Take in what it says."""
        self.events.extend(json.loads(line) for line in self._lines.wait(seconds) if line.startswith("{"))

    def wait(self, event: str, **fields: str) -> dict[str, str]:
        """Wait until it has said this."""
        until = time.monotonic() + PATIENCE
        while True:
            for said in self.events:
                if said["event"] == event and fields.items() <= said.items():
                    return said
            if time.monotonic() > until:
                raise AssertionError(f"never said {event} {fields}; said {self.events[-30:]}")
            if self.process.poll() is not None and not select.select([self.stream], [], [], 0)[0]:
                raise AssertionError(
                    f"ended with {self.process.returncode} without {event} {fields}: {self.events[-30:]}"
                )
            self.listen(0.2)

    def all(self, event: str, **fields: str) -> list[dict[str, str]]:
        """Return what it has said of a kind."""
        self.listen(0)
        return [said for said in self.events if said["event"] == event and fields.items() <= said.items()]

    def zygote(self) -> int:
        return int(self.wait("ready")["zygote"])

    def kill(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait for its end."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < until:
            self.listen(0.05)
        self.listen(0)
        return self.process.wait(0.1)

    def close(self) -> None:
        """End it by force."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


class Bed:
    """Directories, ledger, gate, pipes and workers of one test."""

    def __init__(self, root: Path, registry) -> None:
        self.root = root
        for name in ("store", "scratch", "artifacts"):
            (root / name).mkdir(mode=0o700)
        os.mkfifo(root / "effects")
        os.mkfifo(root / "go")
        self._pipe = os.open(root / "effects", os.O_RDWR)
        self._lines = Lines(self._pipe)
        self._go: list[int] = []
        self.effects: list[str] = []
        self.path = root / "store" / "benteng.db"
        self.dsn = f"sqlite:///{self.path}"
        self.registry = registry
        self.policies = registry.policies()
        self.workers: list[Worker] = []
        lockfile.write(root / "benteng.lock", self.policies)
        with closing(open_operator(self.dsn)) as operator:
            operator.apply_types(lockfile.to_rows(self.policies), "test")
            operator.allow_access("*", "*", "*", "test")
        self.open_ledger()
        generate(root / "keys", origin=self.producer.origin, now=system_clock())

    def open_ledger(self) -> None:
        """Open the facets that the test uses."""
        self.operator = open_operator(self.dsn)
        self.producer = open_producer(self.dsn)
        self.gate = Gate(self.producer, self.registry, self.policies, self._key)

    def close_ledger(self) -> None:
        """Let go of the store's file."""
        self.operator.close()
        self.producer.close()

    @contextlib.contextmanager
    def store_away(self):
        """Move the store's directory away, and back."""
        self.close_ledger()
        self.path.parent.rename(self.root / "elsewhere")
        yield
        (self.root / "elsewhere").rename(self.path.parent)
        self.open_ledger()

    def _key(self):
        return load_signing_key(self.root / "keys" / "producer.key")

    def enqueue(self, job_type: str, **payload: object) -> str:
        return self.gate.enqueue(JobSpec(job_type, payload, actor="svc:test")).job_id

    def enqueue_many(self, job_type: str, payloads: list[dict[str, object]]) -> list[str]:
        answers = self.gate.enqueue_many([JobSpec(job_type, each, actor="svc:test") for each in payloads])
        receipts = [answer for answer in answers if isinstance(answer, Receipt)]
        assert len(receipts) == len(payloads), answers
        return [receipt.job_id for receipt in receipts]

    def worker(
        self,
        *,
        keeper: bool = True,
        app: str = "jobs:app",
        cwd: Path = APPS,
        give_up_seconds=None,
        environ=None,
        python: str = sys.executable,
        user: int | None = None,
        tell_turns: bool = False,
        cell: str = "",
        **pool,
    ) -> Worker:
        """Start a worker and return at once."""
        settings = {
            "dsn": self.dsn,
            "app": app,
            "lock": str(self.root / "benteng.lock"),
            "pool": {"env": ["EFFECTS"], "write": [str(self.root / "effects"), str(self.root / "go")]} | pool,
            "keeper": keeper,
            "artifacts": str(self.root / "artifacts"),
            "trust": str(self.root / "keys" / "trust.toml"),
            "cwd": str(cwd),
            "scratch": str(self.root / "scratch"),
            "give_up_seconds": give_up_seconds,
            "tell_turns": tell_turns,
            "cell": cell,
        }
        variables = {**os.environ, "EFFECTS": str(self.root / "effects")} | (environ or {})
        worker = Worker(settings, variables, python, user)
        self.workers.append(worker)
        return worker

    def effect(self, prefix: str, count: int = 1) -> str:
        """Wait until that many effects begin so; return the last of them."""
        until = time.monotonic() + PATIENCE
        while len(found := [line for line in self.effects if line.startswith(prefix)]) < count:
            if time.monotonic() > until:
                raise AssertionError(f"no {count} effects {prefix!r}: {self.effects}; {self._said()}")
            self.effects.extend(self._lines.wait(0.2))
            for worker in self.workers:
                worker.listen(0)
        return found[count - 1]

    def count(self, prefix: str) -> int:
        """How many effects begin so, as far as they have arrived."""
        self.effects.extend(self._lines.wait(0))
        return sum(1 for line in self.effects if line.startswith(prefix))

    def go(self) -> None:
        """Let every handler go on that waits or will wait for it."""
        self._go.append(os.open(self.root / "go", os.O_RDWR))

    def status(self, job_id: str):
        return self.producer.status([job_id])[0]

    def show(self, job_id: str):
        view = self.operator.show(job_id)
        assert view is not None
        return view

    def until(self, job_id: str, *states: str):
        """Wait until a job is in one of these states, and return its status."""
        until = time.monotonic() + PATIENCE
        while (status := self.status(job_id)).state not in states:
            if time.monotonic() > until:
                raise AssertionError(f"{job_id} is {status}, not {states}; {self._said()}")
            self.wait_a_little()
        return status

    def ended(self, job_id: str):
        """Wait until a job is completed, cancelled or in quarantine, and return its status."""
        return self.until(job_id, "completed", "quarantined", "cancelled")

    def wait_a_little(self) -> None:
        """Take in what was said; return when something was, or after a moment."""
        self.effects.extend(self._lines.wait(0))
        streams = [worker.stream for worker in self.workers if worker.process.poll() is None]
        select.select(streams, [], [], 0.05)
        for worker in self.workers:
            worker.listen(0)

    def jobs(self):
        return self.operator.find(Query(limit=1000)).lines

    def operator_now(self) -> int:
        """The store's clock."""
        return system_clock()

    @staticmethod
    def other_token(database) -> object:
        """Return a token that no worker has, of the type that the store keeps."""
        (kind,) = database.execute("select typeof(token) from job where token is not null").fetchone()
        return b"x" * 16 if kind == "blob" else "x" * 32

    def audit(self) -> bytes:
        """Return all bodies of the audit log."""
        auditor = open_auditor(self.dsn)
        try:
            return b"\n".join(row.body or b"" for row in auditor.audit_page(0, 1000))
        finally:
            auditor.close()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        for descriptor in (*self._go, self._pipe):
            os.close(descriptor)
        self.close_ledger()

    def _said(self) -> list[list[dict[str, str]]]:
        return [worker.events[-12:] for worker in self.workers]


def field(line: str, name: str) -> str:
    """Return `name=value` of an effect."""
    return next(word.partition("=")[2] for word in line.split() if word.startswith(f"{name}="))


def gone(pid: int) -> bool:
    """Whether a process is dead (a zombie is)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def wait_gone(pid: int, seconds: float = 5.0) -> bool:
    """Wait for the death of a process that is not our child."""
    until = time.monotonic() + seconds
    while not gone(pid) and time.monotonic() < until:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        select.select([pidfd], [], [], 0.2)
        os.close(pidfd)
    return gone(pid)
