"""Who sends too much: the ledger neither fills the disk with records nor reads what nobody asked for."""

from __future__ import annotations

import tracemalloc

import pytest

from benteng.store.records import Query, Refusal
from benteng.store.sqlite import refusals
from benteng.testing.bench import records
from benteng.testing.ledger import LOW, MEDIUM

MANY = 300
RECORDS_ENOUGH = 10 * (refusals.RECORDS_PER_MINUTE + 1)


def test_flood_of_made_up_rules_is_aggregated(bench):
    """A hostile producer that invents a rule for each refusal writes no more records than one that repeats itself."""
    bench.producer.admit([], [Refusal(LOW.name, "svc:x", "r", f"F{n}", "no") for n in range(MANY)])

    assert RECORDS_ENOUGH > len([each for each in records(bench.audit()) if each["event"] == "refused"])


@pytest.mark.parametrize("payload", [None, b"{}"], ids=["duplicate", "conflict"])
def test_flood_of_second_tries_is_aggregated(bench, payload):
    """A client that sends the same operation in a loop, with the same or with other bytes, leaves few records."""
    bench.admitted(MEDIUM, operation="1")
    before = len(bench.audit())

    for _ in range(10):
        bench.admit(*(bench.job(MEDIUM, operation="1", payload=payload) for _ in range(30)))

    assert refusals.RECORDS_PER_MINUTE + 1 == len(bench.audit()) - before


def test_lists_read_no_payload(bench):
    """A page over many large payloads costs the memory of its lines (C97)."""
    large = b'{"x":"' + b"x" * 60_000 + b'"}'
    bench.admit(*(bench.job(payload=large) for _ in range(200)))
    bench.operator.find(Query(limit=200))
    tracemalloc.start()

    lines = bench.operator.find(Query(limit=200)).lines

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 200 == len(lines)
    assert 2_000_000 > peak
