"""Promises under a random life: every verb in any order, zombies, dead workers, switches and a clock that goes back."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from benteng.decide import Disposition
from benteng.errors import BentengError
from benteng.evidence import Control, ControlMode
from benteng.job import Grant
from benteng.lifecycle import QuarantineReason, State
from benteng.store.records import Query
from benteng.testing.bench import Bench, proof, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.invariants import check_ledger, contents
from benteng.testing.ledger import HIGH, LOW, MEDIUM, ONCE, PARENT

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
SEEDS = range(100 if LONG else 4)
STEPS = 1_000 if LONG else 250
KEYS = ("host:a", "host:b", "host:c", "host:d")
POLICIES = (LOW, LOW, MEDIUM, MEDIUM, MEDIUM, ONCE, HIGH, PARENT)
ROUNDS_MAX = 2_000


class Life:
    """A random user, worker, keeper and operator over one bench. The same seed lives the same life, but for ids."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.dice = Random(seed)  # noqa: S311 - a repeatable life, not a secret
        self.grants: list[Grant] = []
        self.ids: list[str] = []
        self.moves: list[Callable[[], object]] = [
            *(self.admit, self.admit, self.admit, self.claim, self.claim, self.claim, self.settle, self.settle),
            *(self.settle, self.extend, self.time, self.time, self.reclaim, self.stage, self.cancel, self.switch),
            *(self.open, self.operate, self.operate, self.purge),
        ]

    def step(self) -> None:
        """Do one thing. What the store refuses by a typed error is part of life."""
        with suppress(BentengError):
            self.dice.choice(self.moves)()

    def admit(self) -> None:
        """Ask for a few jobs, some of them duplicates or conflicts."""
        policies = [self.dice.choice(POLICIES) for _ in range(self.dice.randint(1, 3))]
        jobs = [
            self.bench.job(
                policy,
                operation=None if policy is LOW else str(self.dice.randint(0, 40)),
                payload=self.dice.choice([None, None, None, b"{}"]),
                resources=() if policy is LOW else tuple(self.dice.sample(KEYS, self.dice.randint(0, 3))),
                priority=self.dice.randint(0, 9),
                available_at=self.dice.choice([0, 0, self.bench.clock() + self.dice.randint(0, 60_000_000)]),
                expires_at=self.dice.choice([0, 0, self.bench.clock() + self.dice.randint(0, 300_000_000)]),
            )
            for policy in policies
        ]
        entry = self.dice.choice([State.READY] * 8 + [State.HELD, State.QUARANTINED])
        self.ids += [receipt.job_id for receipt in self.bench.admit(*jobs, entry=entry) if receipt.job_id]

    def claim(self) -> None:
        """Take some jobs, and forget none of them: they settle later, or come back as zombies."""
        self.grants += self.bench.claim(self.dice.randint(1, 4))

    def settle(self) -> None:
        """End some attempts, old ones too, in any way."""
        for grant in self.dice.sample(self.grants, min(len(self.grants), self.dice.randint(1, 3))):
            disposition = self.dice.choice([Disposition.COMPLETE] * 6 + list(Disposition))
            reason = self.dice.choice(list(QuarantineReason)) if disposition is Disposition.QUARANTINE else None
            unstarted = disposition in {Disposition.HAND_BACK, Disposition.HOLD}
            child = (self.bench.job(LOW),) if grant.job.type == PARENT.name else ()
            self.bench.settle(
                settlement(
                    grant,
                    disposition,
                    reason=reason,
                    delay_seconds=self.dice.choice([0.0, 5.0, 1e9, float("nan")]),
                    started=not unstarted,
                    successors=child,
                )
            )

    def extend(self) -> None:
        """Send heartbeats for some attempts, old ones too."""
        some = self.dice.sample(self.grants, min(len(self.grants), 5))
        self.bench.consumer.extend([proof(grant) for grant in some])

    def time(self) -> None:
        """Let time pass; sometimes the host's clock goes back."""
        self.bench.advance(self.dice.choice([1, 5, 5, 20, 31, 70, -10, -300]))

    def reclaim(self) -> None:
        """Take back what was lost."""
        self.bench.reclaim(self.dice.randint(1, 10))

    def stage(self) -> None:
        """Let the keeper do its round."""
        self.bench.stage(self.dice.randint(1, 10))

    def cancel(self) -> None:
        """Cancel somebody's job."""
        if self.ids:
            self.bench.producer.cancel([self.dice.choice(self.ids)], "a reason")

    def switch(self) -> None:
        """Close a switch."""
        mode = self.dice.choice([ControlMode.HOLD, ControlMode.DIVERT, ControlMode.HALT])
        self.bench.tighten(mode, self.dice.choice(POLICIES).name)

    def open(self) -> None:
        """Open every switch."""
        for control in self.bench.operator.controls():
            self.bench.operator.loosen(Control(control.scope, control.name, ControlMode.OPEN, "a reason"))

    def operate(self) -> None:
        """Classify, discard, resolve or replay something in quarantine."""
        page = self.bench.operator.find(Query(states=(State.QUARANTINED,)))
        if not page.lines:
            return
        job_id = self.dice.choice(page.lines).job_id
        match self.dice.randint(0, 4):
            case 0:
                self.bench.operator.classify(job_id, QuarantineReason.PERMANENT, "a note")
            case 1:
                self.bench.operator.discard([job_id], "a reason")
            case 2:
                self.bench.operator.resolve(job_id, happened=self.dice.random() < 0.5, reason="a reason")
            case _:
                self.bench.replay(self.bench.view(job_id).job)

    def purge(self) -> None:
        """Forget what may be forgotten."""
        self.bench.keeper.purge(10)

    def drain(self) -> None:
        """Let everything end that can end by itself: honest workers, open switches, time."""
        self.open()
        for _ in range(ROUNDS_MAX):
            grants = self.bench.claim(10)
            self.bench.settle(*map(settlement, grants))
            if not grants:
                self.bench.advance(60)
                moved = self.bench.reclaim()
                staged = self.bench.stage()
                if not moved and staged.next_seconds is None and not (staged.ready or staged.woken or staged.expired):
                    return
        raise AssertionError("the ledger does not come to rest")


class MixPromises(Promises):
    """All verbs, in any order."""

    @pytest.mark.parametrize("seed", SEEDS)
    def test_random_life_keeps_every_invariant_and_comes_to_rest(self, bench: Bench, seed: int) -> None:
        """After any life all invariants hold; then, with honest workers, nothing that could run is left waiting."""
        life = Life(bench, seed)
        for _ in range(STEPS):
            life.step()
        check_ledger(bench.ledger, bench.journal)

        life.drain()

        left = {
            view.state for view in contents(bench.ledger).jobs.values() if not _waits_for_a_person(bench, view.job.id)
        }
        assert left <= {State.COMPLETED, State.CANCELLED, State.DISCARDED, State.QUARANTINED, State.HELD}


def _waits_for_a_person(bench: Bench, job_id: str) -> bool:
    """Say whether a job is blocked by a resource that an uncertain HIGH job keeps closed: only `resolve` opens it."""
    view = bench.view(job_id)
    return view.state is State.BLOCKED and any(each.closed for each in view.resources)
