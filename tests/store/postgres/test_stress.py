"""Many processes, every verb, few resources: no deadlock, no wrong log, nothing twice, and all comes to rest."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from benteng.decide import Disposition
from benteng.errors import BentengError, PolicyError
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import Grant
from benteng.lifecycle import QuarantineReason, State
from benteng.store.records import Admission
from benteng.testing.bench import Bench, proof, settlement
from benteng.testing.invariants import check_ledger, contents
from benteng.testing.ledger import ACCEPTS, HIGH, LOW, MEDIUM, ONCE, PARENT, Twin, make_job
from benteng.testing.race import Entry, Task, in_processes

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
SECONDS = float(os.environ.get("BENTENG_STRESS_SECONDS", "600" if LONG else "6"))
PROCESSES = 8 if LONG else 4
KEEPERS = 4  # the login of a keeper may have five connections
KEYS = tuple(f"host:{name}" for name in "abcdef")
POLICIES = (LOW, LOW, MEDIUM, MEDIUM, MEDIUM, MEDIUM, ONCE, PARENT, HIGH)
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
IDLE_ROUNDS_MAX = 200


class Life:
    """A user, a worker, an operator, and in some a keeper, in one process, with connections of their own."""

    def __init__(self, ledger: Twin, seed: int) -> None:
        self.ledger = ledger
        self.dice = Random(seed)  # noqa: S311 - a repeatable life, not a secret
        self.seed = seed
        self.producer, self.consumer = ledger.producer(), ledger.consumer()
        self.operator = ledger.operator()
        self.grants: list[Grant] = []
        self.ids: list[str] = []
        self.done: list[str] = []
        self.errors: Counter[str] = Counter()
        self.moves: list[Callable[[], object]] = [
            *([self.admit] * 6 + [self.claim] * 5 + [self.settle] * 6 + [self.turn] * 4 + [self.extend] * 2),
            *([self.cancel] + [self.operate] * 2),
            *([self.time] * 2 + [self.switch] if seed == 0 else []),
        ]
        if seed < KEEPERS:
            self.keeper = ledger.keeper()
            self.moves += [self.reclaim] * 2 + [self.stage] * 4

    def run(self, seconds: float) -> None:
        """Live. What the ledger refuses by a rule is part of life; what it cannot do is noted."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self.dice.choice(self.moves)()
            except PolicyError:
                pass
            except BentengError as error:
                self.errors[type(error).__name__ + ": " + str(error)] += 1
        if self.seed == 0:
            self.open()

    def admit(self) -> None:
        """Ask for a few jobs, with duplicates among all processes."""
        jobs = [
            make_job(
                policy,
                origin=self.producer.origin,
                operation=None if policy is LOW else str(self.dice.randint(0, 400)),
                resources=() if policy is LOW else tuple(self.dice.sample(KEYS, self.dice.randint(0, 3))),
                priority=self.dice.randint(0, 9),
            )
            for policy in self.dice.choices(POLICIES, k=self.dice.randint(1, 6))
        ]
        receipts = self.producer.admit([Admission(job) for job in jobs])
        self.ids = (self.ids + [each.job_id for each in receipts if each.job_id])[-200:]

    def claim(self) -> None:
        """Take some jobs; some are forgotten and come back by their lease, or as zombies."""
        self.grants = (self.grants + self.consumer.claim(self.dice.randint(1, 8), ACCEPTS))[-60:]

    def _ends(self) -> list[Any]:
        some = self.dice.sample(self.grants, min(len(self.grants), self.dice.randint(1, 8)))
        self.grants = [grant for grant in self.grants if grant not in some or self.dice.random() < 0.1]
        return [self._end(grant) for grant in some]

    def _end(self, grant: Grant) -> Any:
        disposition = self.dice.choice([Disposition.COMPLETE] * 8 + list(Disposition))
        child = make_job(self.dice.choice((LOW, MEDIUM)), origin=self.producer.origin, operation=None)
        return settlement(
            grant,
            disposition,
            reason=self.dice.choice(list(QuarantineReason)) if disposition is Disposition.QUARANTINE else None,
            delay_seconds=self.dice.choice([0.0, 3.0]),
            started=disposition not in {Disposition.HAND_BACK, Disposition.HOLD},
            successors=(child,) if grant.job.type == PARENT.name else (),
        )

    def _note(self, settled: Any) -> None:
        self.done += [answer.job_id for answer in settled if answer.state is State.COMPLETED]

    def settle(self) -> None:
        """End some attempts, old ones too."""
        self._note(self.consumer.settle(self._ends()))

    def turn(self) -> None:
        """End some and take others."""
        turn = self.consumer.turn(self._ends(), self.dice.randint(1, 8), ACCEPTS)
        self._note(turn.settled)
        self.grants += turn.grants

    def extend(self) -> None:
        """Send heartbeats."""
        self.consumer.extend([proof(grant) for grant in self.dice.sample(self.grants, min(len(self.grants), 10))])

    def reclaim(self) -> None:
        """Take back what was lost."""
        self.keeper.reclaim(self.dice.randint(1, 20))

    def stage(self) -> None:
        """Let the keeper do its round."""
        self.keeper.stage(self.dice.randint(1, 20))

    def cancel(self) -> None:
        """Cancel some jobs of the common origin."""
        self.producer.cancel(self.dice.sample(self.ids, min(len(self.ids), 3)), "a reason")

    def operate(self) -> None:
        """Do something with a job that a person must look at."""
        if not self.ids:
            return
        job_id = self.dice.choice(self.ids)
        match self.dice.randint(0, 3):
            case 0:
                self.operator.release([job_id], "agreed")
            case 1:
                self.operator.discard([job_id], "a reason")
            case 2:
                self.operator.resolve(job_id, happened=self.dice.random() < 0.5, reason="seen")
            case _:
                self.operator.show(job_id)

    def time(self) -> None:
        """Let time pass for everybody."""
        self.ledger.clock.advance(self.dice.choice([1, 2, 5, 11]))

    def switch(self) -> None:
        """Close or open the switch of one type."""
        name = self.dice.choice(POLICIES).name
        mode = self.dice.choice([ControlMode.HALT, ControlMode.HOLD, ControlMode.OPEN, ControlMode.OPEN])
        verb = self.operator.loosen if mode is ControlMode.OPEN else self.operator.tighten
        verb(Control(ControlScope.TYPE, name, mode, "stress"))

    def open(self) -> None:
        """Open every switch."""
        for control in self.operator.controls():
            self.operator.loosen(Control(control.scope, control.name, ControlMode.OPEN, "the end"))


def live(ledger: Twin, argument: Any) -> Any:
    """Live for some seconds; answer what was completed and what went wrong."""
    life = Life(ledger, argument[0])
    life.run(argument[1])
    return {"done": life.done, "errors": life.errors}


TASKS: dict[str, Task] = {"live": live}


@pytest.mark.timeout(2 * SECONDS + 300)
def test_random_mix_of_processes(ledger, owner):
    """After everything at once: no deadlock, all invariants, one success each, and then everything drains."""
    Bench(ledger)  # applies the types

    answers = in_processes(ledger, __name__, [Entry("live", [seed, SECONDS]) for seed in range(PROCESSES)])

    assert {} == sum((Counter(answer["errors"]) for answer in answers), Counter())
    assert (0,) == owner.execute(DEADLOCKS).fetchone()
    done = Counter(job_id for answer in answers for job_id in answer["done"])
    assert [] == [job_id for job_id, count in done.items() if count > 1]
    check_ledger(ledger)
    drain(Bench(ledger, types=()))
    left = Counter(view.state.value for view in contents(ledger).jobs.values() if not is_closed(view))
    assert {} == {
        state: count for state, count in left.items() if state in {"running", "ready", "scheduled", "blocked"}
    }
    print(msgspec.json.encode({"completed": len(done), "left": left}).decode())


def drain(bench: Bench) -> None:
    """Let honest workers do all that can be done."""
    for _ in range(IDLE_ROUNDS_MAX):
        bench.advance(61)
        bench.reclaim(1_000)
        bench.stage(1_000)
        while grants := bench.consumer.claim(100, ACCEPTS):
            bench.consumer.settle([settlement(grant) for grant in grants])
        if bench.stage(1_000).next_seconds is None:
            return
    raise AssertionError("the ledger does not come to rest")


def is_closed(view: Any) -> bool:
    """Say whether a job waits for a resource that an uncertain HIGH job keeps closed."""
    return view.state is State.BLOCKED and any(each.closed for each in view.resources)
