"""Promises about sudden death: whatever statement the process dies at, a verb happened wholly or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from benteng.store.records import Question
from benteng.testing.bench import Bench, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.faults import SCENARIOS, Nursery, sweep
from benteng.testing.invariants import check_ledger, contents
from benteng.testing.ledger import ACTOR, LOW, Ledger, Twin

LONG = os.environ.get("BENTENG_TEST_LONG") == "1"
"""Recover after each kill, and not only after the first one of each outcome."""

UNSEEN = frozenset({"lead"})
"""Verbs whose effect no reading facet shows: for them only what follows is checked."""


def picture(ledger: Ledger) -> list[Any]:
    """Return everything that can be seen of a ledger, without what differs from run to run: salts, leaves, worker."""
    seen = contents(ledger)
    operator = ledger.operator()
    question = Question(LOW.name, ACTOR, "k", ("a-1",), ("host:a",))
    facts = (operator.types(), operator.controls(), operator.evidence([question]))
    operator.close()
    views = {job_id: replace(view, audit=(), worker="") for job_id, view in seen.jobs.items()}
    return [views, [record | {"worker": ""} for record in seen.records], *facts]


def recover(ledger: Ledger) -> None:
    """Let time and workers do their part after a death, and check the ledger before and after."""
    bench = Bench(ledger, types=())
    check_ledger(ledger)
    bench.advance(31)
    bench.reclaim()
    bench.stage()
    while grants := bench.claim(10):
        assert len(grants) == len(bench.settle(*map(settlement, grants)))
    check_ledger(ledger, bench.journal)


class KillPromises(Promises):
    """SIGKILL before each statement of each verb, and after the last one."""

    @pytest.fixture(scope="class")
    @classmethod
    def nursery(cls) -> Iterator[Nursery]:
        """A fresh process whose children are killed."""
        with Nursery() as nursery:
            yield nursery

    @pytest.mark.parametrize("name", SCENARIOS)
    def test_killed_verb_happened_wholly_or_not_at_all(
        self,
        ledger: Twin,
        bench: Bench,
        nursery: Nursery,
        name: str,
    ) -> None:
        """After each death the ledger is as before the verb or as after it, audit included, and work goes on."""
        arguments = msgspec.to_builtins(SCENARIOS[name].given(bench))
        clean = ledger.copy()
        before, fate = picture(clean), nursery.run(clean, name, arguments, 0)
        after = picture(clean)

        happened: list[bool] = []
        for k, victim in sweep(nursery, name, ledger.copy(), arguments):
            seen = picture(victim)
            assert seen in (before, after), f"{name} killed before statement {k} happened in part"
            if LONG or [seen == after] != happened[-1:]:  # the same rows recover the same way
                recover(victim)
            happened.append(seen == after)
            victim.close()

        assert fate.statements + 1 == len(happened)
        assert (before == after) == (name in UNSEEN)
        assert sorted(happened) == happened, "a verb that had happened was undone by a later kill"
