"""Each verb, its connection reset before it is asked, or its answer lost after the commit: what is true afterwards.

A commit whose answer was lost is unknown to the caller. Either the store finds out by itself, or it says
StoreUnavailable; in both cases the thing has happened exactly once, and the log says so.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from benteng.errors import StoreUnavailable
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import Grant, Job
from benteng.store.open import open_auditor, open_consumer, open_keeper, open_operator, open_producer
from benteng.store.records import Admission, Query, WorkerFacts, WorkerRefusal
from benteng.testing.bench import Bench, proof, quarantine, settlement
from benteng.testing.ledger import ACCEPTS, LOW, POOL
from tests.support.proxy import Proxy
from tests.support.servers import PostgresServer
from tests.support.site import by_tcp

FACTS = WorkerFacts("w/1", POOL, "host", "boot", 1, "0.1.0", {})
REFUSAL = WorkerRefusal("W-layers", "why")
LOGINS = {"producer": "t_producer", "consumer": "t_default", "keeper": "t_keeper"}
LOGINS |= {"operator": "t_operator", "auditor": "t_auditor"}
OPENERS = {"producer": open_producer, "keeper": open_keeper, "operator": open_operator, "auditor": open_auditor}


@dataclass
class Scene:
    """What there is to do something to: a new job, a ready one, a running one, a lost one, one in quarantine."""

    new: Job
    ready: Job
    running: Grant
    lost: Grant
    put_aside: Grant


@dataclass(frozen=True)
class Verb:
    """A call of a facet.

    event       the record that it leaves
    asks_again  whether it finds out what became of a first try; where asking means saying it again, `said` is 2
    """

    facet: str
    call: Callable[[Any, Scene], Any]
    event: str = ""
    asks_again: bool = True
    said: int = 1


HALT = Control(ControlScope.TYPE, LOW.name, ControlMode.HALT, "why")
VERBS = {
    "evidence": Verb("producer", lambda it, _: it.evidence([])),
    "admit": Verb("producer", lambda it, at: it.admit([Admission(at.new)]), "admitted"),
    "status": Verb("producer", lambda it, at: it.status([at.ready.id])),
    "cancel": Verb("producer", lambda it, at: it.cancel([at.ready.id], "why"), "cancelled", asks_again=False),
    "register": Verb("consumer", lambda it, _: it.register(FACTS), "registered", said=2),
    "register-refused": Verb("consumer", lambda it, _: it.register(FACTS, REFUSAL), "worker_refused", asks_again=False),
    "claim": Verb("consumer", lambda it, _: it.claim(1, ACCEPTS), "claimed", asks_again=False),
    "extend": Verb("consumer", lambda it, at: it.extend([proof(at.running)])),
    "settle": Verb("consumer", lambda it, at: it.settle([settlement(at.running)]), "completed"),
    "turn": Verb("consumer", lambda it, at: it.turn([settlement(at.running)], 1, ACCEPTS), "completed"),
    "lead": Verb("keeper", lambda it, _: it.lead("keeper", 5.0)),
    "reclaim": Verb("keeper", lambda it, _: it.reclaim(5), "reclaimed", asks_again=False),
    "stage": Verb("keeper", lambda it, _: it.stage(5)),
    "tighten": Verb("keeper", lambda it, _: it.tighten(HALT), "tightened", said=2),
    "purge": Verb("keeper", lambda it, _: it.purge(5), asks_again=False),
    "find": Verb("operator", lambda it, _: it.find(Query())),
    "show": Verb("operator", lambda it, at: it.show(at.ready.id)),
    "discard": Verb("operator", lambda it, at: it.discard([at.put_aside.job.id], "why"), "discarded", asks_again=False),
    "audit_page": Verb("auditor", lambda it, _: it.audit_page(0)),
}


@pytest.fixture
def scene(bench: Bench) -> Scene:
    """One of each."""
    lost = bench.started()
    bench.advance(20)
    put_aside, running = bench.started(), bench.started()
    bench.settle(quarantine(put_aside))
    bench.advance(15)
    return Scene(bench.job(), bench.admitted(), running, lost, put_aside)


@pytest.fixture
def proxy(postgres: Any) -> Iterator[Proxy]:
    """A way to the server that can be hurt."""
    if not isinstance(postgres, PostgresServer):
        pytest.skip("the server is not ours: there is no socket to stand before")
    with Proxy(postgres.socket) as proxy:
        yield proxy


@pytest.fixture
def through(ledger, postgres, proxy, tmp_path):
    """Open a facet through the proxy."""
    address = by_tcp(tmp_path, postgres.password, proxy.host, proxy.port)
    with ExitStack() as stack:

        def opened(facet: str) -> Any:
            with postgres.connect() as owner:
                owner.execute(f"alter role {LOGINS[facet]} password '{postgres.password}'".encode())
            dsn = address(LOGINS[facet], ledger.site.database)
            store = open_consumer(dsn, POOL) if facet == "consumer" else OPENERS[facet](dsn)
            return stack.enter_context(closing(store))

        yield opened


@pytest.mark.parametrize("name", VERBS)
def test_a_connection_that_was_reset_before_is_opened_again(bench, scene, through, proxy, name):
    """Nothing was asked on it, so that nothing is unknown: every verb simply goes on."""
    verb = VERBS[name]
    store = through(verb.facet)

    proxy.reset()
    select.select([store._connection.fileno()], [], [], 10)  # until it is known here
    verb.call(store, scene)

    assert happened(bench, verb) == bool(verb.event)


@pytest.mark.parametrize("name", VERBS)
def test_what_was_committed_without_an_answer_has_happened_once(bench, scene, through, proxy, name):
    """The store finds out by id, fence and token, or says that it does not know; it never does a thing twice."""
    verb = VERBS[name]
    store = through(verb.facet)

    known = answered(proxy, lambda: verb.call(store, scene))

    assert verb.asks_again == known
    assert happened(bench, verb) == (verb.said if verb.event else 0)


def answered(proxy: Proxy, call: Callable[[], Any]) -> bool:
    """Call while one answer is lost, and return whether the store knew in the end what had become of it."""
    proxy.lose_answers(one=True)
    try:
        call()
    except StoreUnavailable:
        return False
    finally:
        assert proxy.lost.wait(20)
    return True


def happened(bench: Bench, verb: Verb) -> int:
    """Return how often the log says that it happened, beyond what the scene needed."""
    before = {"admitted": 4, "claimed": 3}.get(verb.event, 0)
    records = bench.audit() if verb.event else []
    return sum(b'"event":"%s"' % verb.event.encode() in (row.body or b"") for row in records) - before
