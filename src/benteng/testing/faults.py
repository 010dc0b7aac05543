"""Kill a real process at each statement of each verb, and see that the verb happened wholly or not at all.

A fresh helper process has everything imported; for each kill it forks a child that opens the ledger, arms a trap and
calls the verb. The trap ends the child with SIGKILL right before its k-th statement: no handler, no rollback, no exit
code of ours runs. k rises until a run comes through; the last kill is after the verb returned and before anybody could
use its answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from benteng.decide import Disposition
from benteng.evidence import ArtifactFact, ArtifactState, Control, ControlMode, ControlScope
from benteng.lifecycle import QuarantineReason, State
from benteng.store.contract import Consumer, Store
from benteng.store.records import (
    Admission,
    Depth,
    LeaseProof,
    Refusal,
    Replay,
    Settlement,
    TypeRow,
    WorkerFacts,
    WorkerRefusal,
)
from benteng.testing.bench import Bench, proof, quarantine, settlement
from benteng.testing.ledger import ACCEPTS, ACTOR, HIGH, LOW, MEDIUM, ONCE, PARENT, POOL, Twin, make_policy, type_row
from benteng.testing.race import opened

STATEMENTS_MAX = 2_000
"""More statements than any verb needs; a sweep that does not end is a fault of the harness."""

A, B = "host:a", "host:b"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One verb under the knife.

    facet   which facet to open, by its name
    given   prepares a ledger, returns the verb's arguments
    types   how these arguments are read back in the child
    verb    calls the verb
    """

    facet: str
    given: Callable[[Bench], list[Any]]
    types: list[Any]
    verb: Callable[[Any, Any], object]


def _two_grants_and_waiters(bench: Bench) -> list[Any]:
    bench.admit(
        bench.job(PARENT, operation="1", resources=(A,)),
        bench.job(MEDIUM, operation="2", resources=(B,)),
        bench.job(MEDIUM, operation="3", resources=(A, B)),
        bench.job(MEDIUM, operation="4", resources=(A,)),
    )
    grants = bench.claim(4)
    assert len(grants) == 2
    return grants


def _extending(bench: Bench) -> list[Any]:
    grant = bench.started()
    bench.advance(5)
    return [[proof(grant)], ["1 of 2"]]


def _settling(bench: Bench) -> list[Any]:
    first, second = _two_grants_and_waiters(bench)
    done = settlement(first, result=b'"r"', successors=(bench.job(LOW),))
    return [[done, settlement(second, Disposition.RETRY, delay_seconds=1.0)]]


def _ending(bench: Bench) -> list[Any]:
    first, second = _two_grants_and_waiters(bench)
    return [[quarantine(first), settlement(second, Disposition.HAND_BACK, started=False)]]


def _admitting(bench: Bench) -> list[Any]:
    bench.admitted(MEDIUM, operation="dup")
    jobs = [bench.job(), bench.job(MEDIUM, operation="1", resources=(A, B)), bench.job(MEDIUM, operation="dup")]
    later = bench.job(available_at=bench.clock() + 60_000_000)
    refusal = Refusal(LOW.name, ACTOR, "req", "G-1", "why")
    return [[*map(Admission, [*jobs, later]), Admission(bench.job(), State.HELD, "R1", "why")], [refusal]]


def _claiming(bench: Bench) -> list[Any]:
    bench.admit(
        bench.job(MEDIUM, operation="1", resources=(A,)),
        bench.job(MEDIUM, operation="2", resources=(A, B)),
        bench.job(LOW),
        bench.job(LOW, expires_at=bench.clock() + 1),
    )
    bench.clock.advance(1)
    return [4, list(ACCEPTS)]


def _reclaiming(bench: Bench) -> list[Any]:
    bench.admit(
        bench.job(MEDIUM, operation="1", resources=(A,)),
        bench.job(HIGH, operation="2", resources=(B,)),
        bench.job(ONCE, operation="3"),
        bench.job(MEDIUM, operation="4", resources=(A,)),
    )
    bench.claim(4)
    bench.advance(31)
    return [10]


def _staging(bench: Bench) -> list[Any]:
    soon = bench.clock() + 1_000_000
    bench.admit(bench.job(available_at=soon), bench.job(MEDIUM, operation="1", expires_at=soon))
    bench.advance(2)
    return [10]


def _purging(bench: Bench) -> list[Any]:
    bench.settle(settlement(bench.started(MEDIUM, operation="1"), result=b"1"))
    bench.advance(40 * 86_400)
    return [10]


def _cancelling(bench: Bench) -> list[Any]:
    running = bench.started(MEDIUM, operation="1", resources=(A,))
    waiting, blocked = bench.admitted(), bench.admitted(MEDIUM, operation="2", resources=(A,))
    bench.claim(1, [MEDIUM.name])
    return [[running.job.id, waiting.id, blocked.id], "a reason"]


def _quarantined(bench: Bench, reason: QuarantineReason = QuarantineReason.PERMANENT) -> Any:
    grant = bench.started(HIGH, operation="q", resources=(A,))
    bench.settle(quarantine(grant, reason))
    bench.admitted(MEDIUM, operation="w", resources=(A,))
    bench.claim()
    return grant.job


def _switch(mode: ControlMode) -> Control:
    return Control(ControlScope.TYPE, LOW.name, mode, "a reason")


def _opening(bench: Bench) -> list[Any]:
    bench.tighten(ControlMode.HALT)
    return [_switch(ControlMode.OPEN)]


def _replaying(bench: Bench) -> list[Any]:
    job = _quarantined(bench)
    return [Replay(replace(job, generation=1), State.READY, "a reason")]


FACTS = WorkerFacts("w-1", POOL, "host", "boot", 1, "0.1", {LOW.name: LOW.sha256})
REFUSAL = WorkerRefusal("W-layers", "a reason")
NEW = [type_row(make_policy("t.new@1")), type_row(make_policy("t.newer@1"))]
ARTIFACT = ArtifactFact("a-1", "00" * 32, ArtifactState.APPROVED)

SCENARIOS: dict[str, Scenario] = {
    "admit": Scenario("producer", _admitting, [list[Admission], list[Refusal]], lambda s, a: s.admit(*a)),
    "cancel": Scenario("producer", _cancelling, [list[str], str], lambda s, a: s.cancel(*a)),
    "register": Scenario("consumer", lambda _: [FACTS], [WorkerFacts], lambda s, a: s.register(*a)),
    "register-refused": Scenario(
        "consumer", lambda _: [FACTS, REFUSAL], [WorkerFacts, WorkerRefusal], lambda s, a: s.register(*a)
    ),
    "claim": Scenario("consumer", _claiming, [int, list[str]], lambda s, a: s.claim(*a)),
    "extend": Scenario(
        "consumer",
        _extending,
        [list[LeaseProof], list[str]],
        lambda s, a: s.extend(*a),
    ),
    "settle": Scenario("consumer", _settling, [list[Settlement]], lambda s, a: s.settle(*a)),
    "settle-end": Scenario("consumer", _ending, [list[Settlement]], lambda s, a: s.settle(*a)),
    "reclaim": Scenario("keeper", _reclaiming, [int], lambda s, a: s.reclaim(*a)),
    "stage": Scenario("keeper", _staging, [int], lambda s, a: s.stage(*a)),
    "purge": Scenario("keeper", _purging, [int], lambda s, a: s.purge(*a)),
    "lead": Scenario("keeper", lambda _: ["k", 10.0], [str, float], lambda s, a: s.lead(*a)),
    "tighten": Scenario("operator", lambda _: [_switch(ControlMode.HALT)], [Control], lambda s, a: s.tighten(*a)),
    "loosen": Scenario("operator", _opening, [Control], lambda s, a: s.loosen(*a)),
    "release": Scenario(
        "operator",
        lambda bench: [[bench.admitted(entry=State.HELD).id], "a reason"],
        [list[str], str],
        lambda s, a: s.release(*a),
    ),
    "classify": Scenario(
        "operator",
        lambda bench: [_quarantined(bench).id, QuarantineReason.SUSPICIOUS, "a note"],
        [str, QuarantineReason, str],
        lambda s, a: s.classify(*a),
    ),
    "discard": Scenario(
        "operator",
        lambda bench: [[_quarantined(bench).id], "a reason"],
        [list[str], str],
        lambda s, a: s.discard(*a),
    ),
    "resolve": Scenario(
        "operator",
        lambda bench: [_quarantined(bench, QuarantineReason.UNCERTAIN).id],
        [str],
        lambda s, a: s.resolve(*a, happened=False, reason="a reason"),
    ),
    "replay": Scenario("operator", _replaying, [Replay], lambda s, a: s.replay(*a)),
    "apply_types": Scenario("operator", lambda _: [NEW, "r"], [list[TypeRow], str], lambda s, a: s.apply_types(*a)),
    "register_artifact": Scenario(
        "operator",
        lambda _: [ARTIFACT, "a reason"],
        [ArtifactFact, str],
        lambda s, a: s.register_artifact(*a),
    ),
    "limit_depth": Scenario(
        "operator",
        lambda bench: [Depth(bench.producer.origin, 7), "a reason"],
        [Depth, str],
        lambda s, a: s.limit_depth(*a),
    ),
    "allow_access": Scenario(
        "operator",
        lambda _: [ACTOR, LOW.name, "host:a", "a reason"],
        [str] * 4,
        lambda s, a: s.allow_access(*a),
    ),
}
"""Every verb that writes. `turn` is settle and claim: see "turn"."""


def _unneeded(_: Bench) -> list[Any]:
    raise AssertionError("an opening needs no ledger before it")


OPEN = Scenario("producer", _unneeded, [], lambda store, _: store.close())
"""The opening itself: the trap is armed before the facet is opened. Not a verb, so that it is not in SCENARIOS."""


def _turn(store: Consumer, arguments: Any) -> object:
    return store.turn(arguments[0], 2, ACCEPTS)


SCENARIOS["turn"] = Scenario("consumer", _settling, [list[Settlement]], _turn)


@dataclass(frozen=True, slots=True)
class Fate:
    """How a child ended: `killed` by the trap, or after `statements` statements by itself."""

    killed: bool
    statements: int


class Nursery:
    """A fresh process that forks children to be killed. A context manager; one kill at a time."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benteng.testing.faults"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, ledger: Twin, name: str, arguments: list[Any], kill_at: int) -> Fate:
        """Run a scenario's verb in a new child and kill it before statement `kill_at` (0: never).

        Raises RuntimeError when the child failed otherwise: its traceback is on stderr.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode([*ledger.recipe, name, arguments, kill_at]) + b"\n")
        stdin.flush()
        status, statements = msgspec.json.decode(stdout.readline(), type=tuple[int, int])
        if status not in {0, -signal.SIGKILL}:
            raise RuntimeError(f"the child of {name} ended with {status}")
        return Fate(status != 0, statements)


def sweep(nursery: Nursery, name: str, template: Twin, arguments: list[Any]) -> Iterator[tuple[int, Twin]]:
    """Yield (k, a copy of the ledger whose process was killed at k) for every k until the verb comes through."""
    for k in range(1, STATEMENTS_MAX):
        victim = template.copy()
        fate = nursery.run(victim, name, arguments, k)
        yield k, victim
        if not fate.killed:
            return
    raise AssertionError(f"{name}: more than {STATEMENTS_MAX} statements")


# ----------------------------------------------------------------------------------------------------- in the nursery


def main() -> None:
    """Serve kills until stdin ends. Single-threaded, so that a fork is a clean copy."""
    warm = set[str]()
    for line in sys.stdin.buffer:
        recipe, address, name, arguments, kill_at = msgspec.json.decode(line)
        facet = _scenario(name).facet
        if name != "open" and facet not in warm:  # open it once here, so that no child has to import the store
            getattr(opened(recipe, address), facet)().close()
            warm.add(facet)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _be_killed(opened(recipe, address), name, arguments, kill_at, write)
        os.close(write)
        told = os.read(read, 64)
        os.close(read)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"[{status},{int(told or b'0')}]\n")
        sys.stdout.flush()


def _be_killed(ledger: Any, name: str, arguments: Any, kill_at: int, write: int) -> None:
    code = 1
    try:
        code = _perform(ledger, name, arguments, kill_at, write)
    except BaseException:  # noqa: BLE001 - a forked child must never return into the nursery's loop
        traceback.print_exc()
    os._exit(code)


def _scenario(name: str) -> Scenario:
    return OPEN if name == "open" else SCENARIOS[name]


def _perform(ledger: Any, name: str, arguments: Any, kill_at: int, write: int) -> int:
    scenario = _scenario(name)
    given = msgspec.convert(arguments, tuple[tuple(scenario.types)])  # type: ignore[misc] # built from data
    trap = ledger.trap(kill_at)
    if name == "open":
        trap.arm()
    store: Store = getattr(ledger, scenario.facet)()
    trap.arm()
    scenario.verb(store, given)
    trap.step()  # the last place: the verb has returned, nobody has seen its answer
    os.write(write, str(trap.steps).encode())
    return 0


if __name__ == "__main__":
    main()
