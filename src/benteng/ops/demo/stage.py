"""Where the steps are played: the site, the crew, the producer's app, and eyes on ledger, audit and world.

Steps wait for what they can see, never for a time to pass.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from benteng.app import Benteng
from benteng.audit import AuditRecord, Event
from benteng.evidence import ArtifactFact, ArtifactState
from benteng.job import sha256_hex
from benteng.lifecycle import TERMINAL, State
from benteng.ops.demo.crew import Crew, Member
from benteng.ops.demo.jobs import POOL, app
from benteng.ops.demo.site import APP, Site
from benteng.ops.demo.world import Effect, World
from benteng.receipt import Receipt
from benteng.store.contract import Auditor, Operator
from benteng.store.open import open_auditor, open_operator
from benteng.store.records import AuditRow, JobView, Query

T = TypeVar("T")

WAIT_SECONDS = 12.0
LOOK_SECONDS = 0.02
AUDIT_PAGE = 1_000
ACTOR = "svc:deployer"
WORKER = "worker-"
"""How the names of workers begin; a letter follows."""


class Missed(Exception):  # noqa: N818 - named by what happened
    """Something that a step waited for did not come."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """An audit record with its number."""

    seq: int
    record: AuditRecord


@dataclass(slots=True)
class Stage:
    """Everything a step needs. `receipts`: of earlier steps, by name; `rows`: the audit log as read so far."""

    site: Site
    crew: Crew
    operator: Operator
    auditor: Auditor
    app: Benteng = app
    receipts: dict[str, Receipt] = field(default_factory=dict[str, Receipt])
    rows: list[AuditRow] = field(default_factory=list[AuditRow])
    _pause: threading.Event = field(default_factory=threading.Event)

    @property
    def world(self) -> World:
        """The outside world."""
        return self.site.world

    # --- producing ----------------------------------------------------------------------------------------------------

    def enqueue(self, job_type: str, payload: dict[str, object], *, delay_seconds: float = 0.0) -> Receipt:
        """Enqueue as the demo's producer. Raises what `Benteng.enqueue` raises."""
        return self.app.enqueue(
            job_type, payload, actor=ACTOR, request_id=f"demo-{len(self.receipts) + 1}", delay_seconds=delay_seconds
        )

    def artifact(self, artifact_id: str, content: bytes) -> dict[str, str]:
        """Put a file into the artifact directory, approve it, and return the reference to it."""
        sha256 = sha256_hex(content)
        (self.site.artifacts / sha256).write_bytes(content)
        fact = ArtifactFact(artifact_id, sha256, ArtifactState.APPROVED)
        self.operator.register_artifact(fact, "the demo's artifact")
        return {"id": artifact_id, "sha256": sha256}

    # --- looking ------------------------------------------------------------------------------------------------------

    def view(self, receipt: Receipt) -> JobView:
        """Return all that the ledger knows of a job. Raises Missed when it knows nothing."""
        found = self.operator.show(receipt.job_id)
        if found is None:
            raise Missed("the ledger knows the job")
        return found

    def states(self) -> dict[str, State]:
        """Return the state of every job, by id."""
        found: dict[str, State] = {}
        page = self.operator.find(Query(limit=200))
        found |= {line.job_id: line.state for line in page.lines}
        while page.next:
            page = self.operator.find(Query(limit=200, after=page.next))
            found |= {line.job_id: line.state for line in page.lines}
        return found

    def records(self, job_id: str = "", event: Event | None = None) -> list[Numbered]:
        """Return audit records of a job (or all), of an event (or all), in order."""
        self._read_on()
        read = [Numbered(row.seq, msgspec.json.decode(row.body, type=AuditRecord)) for row in self.rows if row.body]
        return [n for n in read if job_id in ("", n.record.job_id) and event in (None, n.record.event)]

    def _read_on(self) -> None:
        while page := self.auditor.audit_page(self.rows[-1].seq if self.rows else 0, AUDIT_PAGE):
            self.rows.extend(page)

    def count(self, query: str) -> int:
        """Return one number that a query finds in the ledger's file: for what no verb shows."""
        with contextlib.closing(sqlite3.connect(f"file:{self.site.ledger}?mode=ro", uri=True)) as connection:
            return int(connection.execute(query).fetchone()[0] or 0)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def until(self, what: str, probe: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
        """Look until there is something to see, and return it. Raises Missed."""
        end = time.monotonic() + seconds
        while not (seen := probe()):
            if time.monotonic() >= end:
                raise Missed(what)
            if not any(member.name.startswith(WORKER) for member in self.crew.alive()):
                raise Missed(f"{what} (every worker has ended)")
            self._pause.wait(LOOK_SECONDS)
        return seen

    def ended(self, receipt: Receipt) -> State:
        """Wait until a job has ended or is in quarantine, and return its state."""
        return self.until(f"the job ends ({receipt.job_id})", lambda: self._end_of(receipt))

    def _end_of(self, receipt: Receipt) -> State | None:
        state = receipt.status().state
        return state if state in TERMINAL or state is State.QUARANTINED else None

    def effect(self, job: str, key: str, what: str, *, above: int = 0) -> Effect:
        """Wait for an effect with a fence above a number, and return it."""
        return self.until(
            f"the witness sees {what} of {key}",
            lambda: next((e for e in self.world.effects(job, key, what) if e.fence > above), None),
        )

    def audited(self, receipt: Receipt, event: Event, *, rule: str = "") -> Numbered:
        """Wait for an audit record of a job (by a rule, if one is named), and return the last one."""

        def last() -> Numbered | None:
            told = [n for n in self.records(receipt.job_id, event) if rule in ("", n.record.rule)]
            return told[-1] if told else None

        return self.until(f"the audit says {event} {rule}".strip(), last)

    # --- acting on the crew -------------------------------------------------------------------------------------------

    def worker(self, letter: str) -> Member:
        """Start a worker of the demo's pool."""
        return self.crew.start(WORKER + letter, ["worker", APP, "--pool", POOL, "--no-keeper"])

    def runs(self, effect: Effect) -> Member:
        """Return the worker in whose family the process of an effect is. Raises Missed."""
        member = self.crew.of(effect.pid)
        if member is None:
            raise Missed("the effect's process belongs to a worker")
        return member

    def freeze(self, member: Member) -> None:
        """Stop a process at a moment when it does not hold the lock of the ledger's file.

        SQLite has one writer: frozen inside a transaction, a process stops everybody until it goes on.
        """
        self.until("the process stops outside a transaction", lambda: self._frozen(member))

    def _frozen(self, member: Member) -> bool:
        member.stop()
        with contextlib.closing(sqlite3.connect(self.site.ledger, timeout=0.2, isolation_level=None)) as connection:
            try:
                connection.execute("begin immediate")
                connection.execute("rollback")
            except sqlite3.OperationalError:
                member.go_on()
                return False
        return True


@contextlib.contextmanager
def stage(site: Site) -> Generator[Stage]:
    """Open the ledger and be ready to start processes; afterwards end every process and close everything."""
    crew = Crew(site.home, site.logs, site.environ())
    with (
        contextlib.closing(app),
        contextlib.closing(open_operator(site.dsn, environment="dev")) as operator,
        contextlib.closing(open_auditor(site.dsn, environment="dev")) as auditor,
    ):
        try:
            yield Stage(site, crew, operator, auditor)
        finally:
            crew.end()


def contents(directory: Path) -> Generator[tuple[Path, bytes]]:
    """Yield every regular file below a directory with its bytes."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes()
