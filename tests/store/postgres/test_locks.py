"""Every two verbs that take rows, met in the middle of the first one: they wait or pass, and never deadlock.

Somebody holds the last resource row, so that the first verb stands with all its other rows in its hands; then the
second comes. What waits is read from pg_stat_activity, deadlocks from the server's log: the client would hide one by
trying again. The random mix of many processes is in test_stress.py.
"""

from __future__ import annotations

import threading
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benteng.errors import BentengError, PolicyError
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.testing.bench import Bench, proof, settlement
from benteng.testing.ledger import ACCEPTS, LOW, MEDIUM, ONCE

A, B, C = "host:a", "host:b", "host:c"
WAITING = """
  select a.application_name from pg_stat_activity a
  where a.datname = current_database() and a.wait_event_type = 'Lock'
"""


class Scene:
    """What verbs meet on: running jobs on A and C whose leases are over; late ready jobs that want A and B.

    `woken` was waked for B and is the one to go on there (it has the baton); `gone` is uncertain, in quarantine.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.ledger = bench.ledger
        self.gone = bench.started(ONCE, operation="0")
        bench.advance(31)
        bench.reclaim()
        self.running = [bench.started(MEDIUM, operation=key, resources=(key,)) for key in (A, C)]
        before = bench.started(MEDIUM, operation=B, resources=(B,))
        late: dict[str, Any] = {"expires_at": bench.clock() + 10_000_000}
        self.woken = bench.admitted(MEDIUM, operation="woken", resources=(B,), **late)
        assert [] == bench.claim(5)
        bench.settle(settlement(before))
        self.ready = bench.admitted(MEDIUM, operation="both", resources=(A, B), **late)
        bench.advance(31)

    def call(self, verb: str) -> None:
        """Call a verb on all of these jobs, in the wrong order, on a connection of its own."""
        grants = list(reversed(self.running))
        match verb:
            case "settle":
                self.bench.journal.settled(self.ledger.consumer().settle([settlement(each) for each in grants]))
            case "turn":
                turn = self.ledger.consumer().turn([settlement(each) for each in grants], 5, ACCEPTS)
                self.bench.journal.settled(turn.settled)
                self.bench.journal.grants(turn.grants)
            case "extend":
                self.ledger.consumer().extend([proof(each) for each in grants])
            case "claim":
                self.bench.journal.grants(self.ledger.consumer().claim(5, ACCEPTS))
            case "reclaim":
                self.ledger.keeper().reclaim(5)
            case "stage":
                self.ledger.keeper().stage(5)
            case "cancel":
                ids = (self.woken.id, self.ready.id, *(each.job.id for each in grants))
                self.ledger.operator().cancel(ids, "a reason")
            case "resolve":
                self.ledger.operator().resolve(self.gone.job.id, happened=False, reason="a reason")
            case "tighten":
                self.ledger.keeper().tighten(Control(ControlScope.TYPE, LOW.name, ControlMode.HALT, "a reason"))
            case _:
                raise AssertionError(verb)


VERBS = ("settle", "turn", "extend", "claim", "reclaim", "stage", "cancel", "resolve", "tighten")
PASSES = {
    "settle": {"reclaim", "resolve", "tighten"},
    "turn": {"reclaim", "resolve"},
    "claim": {"claim", "extend", "stage", "resolve"},
    "reclaim": {"reclaim", "resolve", "tighten"},
    "stage": {"claim", "extend", "stage", "resolve", "tighten"},
    "cancel": {"claim", "reclaim", "stage", "resolve", "tighten"},
}
"""Behind each verb that stops with rows in its hands: who does not wait, because it skips rows that are held, or needs
none of them. Everybody else waits."""


@pytest.fixture
def deadlocks(postgres):
    """Return how many deadlocks the server has found so far."""
    if not hasattr(postgres, "log"):
        pytest.skip("the server is not ours: its log cannot be read")
    return lambda: Path(postgres.log).read_text(errors="replace").count("deadlock detected")


@pytest.mark.parametrize("first, second", list(product(PASSES, VERBS)))
def test_two_verbs_that_meet_do_not_deadlock(bench, owner, postgres, deadlocks, first, second):
    """Whoever comes second waits for rows, or leaves them alone; when the way is free, both end."""
    scene, before = Scene(bench), deadlocks()
    expected = ["waits", "passes" if second in PASSES[first] else "waits"]

    with postgres.connect(dbname=bench.ledger.site.database) as holder, holder.transaction():
        holder.execute("select from benteng.resource where key = any(%s) for update", [[B, C]])
        calls = [Call(scene, verb) for verb in (first, second)]
        seen = [call.begun(owner) for call in calls]
    errors = [call.error() for call in calls]

    assert expected == seen
    assert [None, None] == errors
    assert before == deadlocks()


class Call:
    """A verb in a thread of its own."""

    def __init__(self, scene: Scene, verb: str) -> None:
        self._scene, self._verb = scene, verb
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._scene.call(self._verb)
        except PolicyError:
            pass  # the first one has resolved it already
        except BentengError as error:
            self._error = error

    def begun(self, owner: psycopg.Connection[Any]) -> str:
        """Begin, and return what comes first: it passes, or it waits for a lock."""
        already = len(owner.execute(WAITING).fetchall())
        self._thread.start()
        while self._thread.is_alive():
            if len(owner.execute(WAITING).fetchall()) > already:
                return "waits"
        return "passes"

    def error(self) -> Exception | None:
        """Wait for its end, and return what it raised."""
        self._thread.join()
        return self._error
