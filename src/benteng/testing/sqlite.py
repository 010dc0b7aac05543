"""The harness of the embedded store: a ledger in a directory, and hands inside its file.

Third parties need a module like this one for their own store: see docs/reference/conformance.md.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from benteng.store.contract import Auditor, Keeper, Operator, StepwiseConsumer, StepwiseProducer, Store
from benteng.store.open import open_auditor, open_consumer, open_keeper, open_operator, open_producer
from benteng.testing.clock import TestClock
from benteng.testing.ledger import POOL
from benteng.testing.trap import Trap

S = TypeVar("S", bound=Store)
RECIPE = "benteng.testing.sqlite:SqliteLedger"


class SqliteLedger:
    """A ledger in `directory/ledger.db`, whose clock is `directory/clock`."""

    def __init__(self, directory: str | Path, *, environment: str = "dev") -> None:
        self.directory = Path(directory)
        self.environment = environment
        self.path = self.directory / "ledger.db"
        self.clock = TestClock(self.directory / "clock")
        self._opened: list[Store] = []
        self._made: list[SqliteLedger] = []

    @property
    def dsn(self) -> str:
        """What `store.open` takes."""
        return f"sqlite:///{self.path}"

    @property
    def recipe(self) -> tuple[str, str]:
        """How another process opens this ledger."""
        return RECIPE, str(self.directory)

    def producer(self) -> StepwiseProducer:
        """Open the producer facet."""
        return self._kept(open_producer(self.dsn, environment=self.environment, clock=self.clock))

    def consumer(self, pool: str = POOL) -> StepwiseConsumer:
        """Open the consumer facet of one pool."""
        return self._kept(open_consumer(self.dsn, pool, environment=self.environment, clock=self.clock))

    def keeper(self) -> Keeper:
        """Open the keeper facet."""
        return self._kept(open_keeper(self.dsn, environment=self.environment, clock=self.clock))

    def operator(self) -> Operator:
        """Open the operator facet."""
        return self._kept(open_operator(self.dsn, environment=self.environment, clock=self.clock))

    def auditor(self) -> Auditor:
        """Open the auditor facet."""
        return self._kept(open_auditor(self.dsn, environment=self.environment, clock=self.clock))

    def _kept(self, store: S) -> S:
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close every connection that was opened through this harness."""
        for each in (*self._opened, *self._made):
            each.close()
        self._opened.clear()
        self._made.clear()

    def copy(self) -> SqliteLedger:
        """Return a ledger of its own with the same rows and time."""
        copy = SqliteLedger(self._beside(), environment=self.environment)
        if Path(f"{self.path}-wal").exists():
            with closing(sqlite3.connect(self.path)) as here:
                here.execute("vacuum into ?", (str(copy.path),))
        else:  # nobody has it open, so that the file is all there is
            shutil.copyfile(self.path, copy.path)
        copy.path.chmod(0o600)
        return self._made_of(copy, self.clock)

    def production(self) -> SqliteLedger:
        """Return a fresh `prod` installation."""
        return self._made_of(SqliteLedger(self._beside(), environment="prod"), self.clock)

    def _made_of(self, ledger: SqliteLedger, clock: Callable[[], int]) -> SqliteLedger:
        ledger.clock.set(clock())
        self._made.append(ledger)
        return ledger

    def _beside(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.directory))

    def trap(self, kill_at: int) -> Trap:
        """Return a trap that steps at every statement of every connection opened from now on in this process.

        `sqlite3` tells a connection's trace callback of each statement right before it runs, also of those that
        triggers run. For a child that is meant to die: nothing takes the hook out again.
        """
        trap, connect = Trap(kill_at), sqlite3.connect

        def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(trap.step)
            return connection

        sqlite3.connect = traced
        return trap

    def give_away(self, job_id: str, origin: str) -> None:
        """Make a job look as if another origin had admitted it."""
        self._by_hand("update operation set origin = ? where job_id = ?", origin, job_id)
        self._by_hand("update job set origin = ? where id = ?", origin, job_id)
        self._by_hand("update quarantine set origin = ? where id = ?", origin, job_id)

    def damage(self, job_id: str) -> None:
        """Make the row of a job undecodable."""
        self._by_hand("update job set refs = '{\"resources\": 7', tier = 'unheard-of' where id = ?", job_id)

    def swap_payload(self, job_id: str) -> None:
        """Put another payload into the row of a job."""
        self._by_hand("update job set payload = cast('{}' as blob) where id = ?", job_id)

    def _by_hand(self, statement: str, *values: str) -> None:
        with closing(sqlite3.connect(self.path, timeout=5)) as connection, connection:
            connection.execute(statement, values)

    def remove(self) -> None:
        """Close, and delete the directory."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)
