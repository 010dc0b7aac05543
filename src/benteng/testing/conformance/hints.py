"""Promises of `Consumer.hints`: who is told that there may be something to do. A ledger may give no hints at all."""

from __future__ import annotations

import select

from benteng.store.contract import Consumer
from benteng.testing.bench import Bench
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import LOW

PATIENCE_SECONDS = 20.0


class HintPromises(Promises):
    """Property `hints`."""

    def test_an_idle_consumer_is_told(self, bench: Bench) -> None:
        """A commit that puts something ready where nothing was can be waited for, where the ledger gives hints."""
        quiet = hears(bench.consumer)

        bench.admitted(LOW)

        assert bench.consumer.hints is None or ([], True) == (quiet, waits_and_hears(bench.consumer))

    def test_a_consumer_hears_of_its_own_pool(self, bench: Bench) -> None:
        """Nobody is woken for work that is not its own, also not by what comes along with an answer."""
        consumers = [bench.consumer, bench.elsewhere]
        before = [hears(each) for each in consumers]
        bench.admitted(LOW)
        for consumer in consumers:
            consumer.claim(1, ["nothing@1"])

        assert [[], []] == before
        assert [[True], []] == [hears(each) for each in consumers] or bench.consumer.hints is None


def hears(consumer: Consumer) -> list[bool]:
    """Return whether something was heard, as a list that is empty when nothing was."""
    heard = consumer.hints is not None and consumer.hints.heard()
    return [heard] if heard else []


def waits_and_hears(consumer: Consumer) -> bool:
    """Wait for a hint; False when none comes."""
    while consumer.hints is not None and select.select([consumer.hints], [], [], PATIENCE_SECONDS)[0]:
        if consumer.hints.heard():
            return True
    return False
