"""The lock protocol, one directed race each: what waits for what, and what is true when the wait is over.

`raw` sessions are the same least logins with a transaction held open; who waits is seen in pg_stat_activity.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from benteng.decide import Disposition
from benteng.errors import Busy
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.lifecycle import State
from benteng.store.records import Admission, Disposal
from benteng.testing.bench import records, settlement
from benteng.testing.ledger import ACCEPTS, LOW, MEDIUM
from tests.support.sessions import say

CLAIM = "select job_id::text, fence from benteng_v1.claim(%s, %s, 'raw') where job_id is not null"
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
A, B = "host:a", "host:b"
ENDS = {"plain": {"holds": False}, "held": {"holds": True}, "retried": {"disposition": Disposition.RETRY}}
"""How the attempts of one batch end, each way by other statements."""


class Waiter:
    """A call in a thread of its own. `answer` after `join`."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=[call])
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.answer = call()
        except Exception as error:  # noqa: BLE001 - raised again by join
            self.error = error

    def join(self) -> Any:
        """Return what the call returned. Raises what it raised."""
        self._thread.join()
        if self.error:
            raise self.error
        return self.answer


@pytest.fixture
def raw(ledger):
    """Open a transaction as a login of the ledger, to be committed by the test."""
    opened = []

    def begin(login: str = "t_default") -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(ledger.site.dsn(login)))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


@pytest.fixture
def held(ledger, postgres):
    """Hold rows as the superuser, until the block ends."""

    @contextmanager
    def hold(statement: str, *values: object):
        with postgres.connect(dbname=ledger.site.database) as connection, connection.transaction():
            connection.execute(statement.encode(), values)
            yield

    return hold


def wait_for(owner: psycopg.Connection[Any], count: int = 1) -> None:
    """Return when so many sessions of the ledger's database wait for a lock."""
    for _ in range(20_000):
        if owner.execute(WAITING).fetchone() == (count,):
            return
    raise AssertionError(f"there are not {count} sessions waiting")


def claim(session: psycopg.Connection[Any], n: int = 5) -> list[tuple[str, int]]:
    """Claim in the open transaction of a raw session; (job id, fence) of each."""
    return session.execute(CLAIM, [n, list(ACCEPTS)]).fetchall()


def test_release_finds_the_parking_that_came_before_it(bench, owner, raw):
    """A claim parks a job and has not committed; the release waits for it, and wakes that job (no lost wake-up)."""
    holder = bench.started(MEDIUM, operation="1", resources=(A,))
    waiter = bench.admitted(MEDIUM, operation="2", resources=(A,))
    parking = raw()
    assert [] == claim(parking)

    release = Waiter(lambda: bench.settle(settlement(holder)))
    wait_for(owner)
    parking.commit()

    assert [State.COMPLETED] == [each.state for each in release.join()]
    assert State.READY is bench.state(waiter.id)


def test_fence_is_drawn_after_the_resource_is_held(bench, owner, raw, held):
    """A claim that waits for its resource has not drawn its fence yet: a claim in between gets the lower number."""
    slow = bench.admitted(MEDIUM, operation="1", resources=(A,), priority=0)
    with held("select from benteng.resource where key = %s for update", A):
        waiting = Waiter(lambda: bench.claim(1))
        wait_for(owner)
        quick = bench.admitted(LOW, priority=9)
        (between,) = bench.claim(1, consumer=bench.ledger.consumer())

    (grant,) = waiting.join()
    assert (slow.id, quick.id) == (grant.job.id, between.job.id)
    assert between.lease.fence < grant.lease.fence


def test_job_that_expires_while_its_claim_waits_does_not_start(bench, owner, held):
    """Whether a job is too late is judged when the claim has its resource, not when it began to wait for it."""
    job = bench.admitted(MEDIUM, operation="1", resources=(A,), expires_at=bench.clock() + 10_000_000)
    with held("select from benteng.resource where key = %s for update", A):
        waiting = Waiter(lambda: bench.claim(1))
        wait_for(owner)
        bench.advance(11)

    assert [] == waiting.join()
    assert State.QUARANTINED is bench.state(job.id)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_batches_take_their_jobs_in_one_order(bench, owner, held, end):
    """Whatever the order of a batch, its first job by id is locked first: waiting for it, the batch holds no other."""
    grants = sorted((bench.started() for _ in range(2)), key=lambda grant: grant.job.id)
    with held("select from benteng.job where id = %s for update", grants[0].job.id):
        batch = Waiter(lambda: bench.settle(*(settlement(each, **end) for each in reversed(grants))))
        wait_for(owner)
        free = owner.execute("select from benteng.job where id = %s for update nowait", [grants[1].job.id]).fetchall()

    assert 1 == len(free)
    assert 2 == len(batch.join())


@pytest.mark.parametrize("holds", [False, True])
def test_an_attempt_ends_when_the_wait_for_its_job_is_over(bench, owner, held, holds):
    """No record is older than one that it had to wait for; and what changed meanwhile is no reason to refuse it."""
    grant = bench.started()
    with held("update benteng.job set progress = 'halfway' where id = %s returning id", grant.job.id):
        end = Waiter(lambda: bench.settle(settlement(grant, holds=holds)))
        wait_for(owner)
        bench.advance(5)
    assert 1 == len(end.join())

    assert bench.clock() == bench.view(grant.job.id).finished_at == records(bench.audit())[-1]["at_us"]


def test_batches_take_their_resources_in_one_order(bench, owner, held):
    """The same for resources: waiting for the first key, a settlement holds no other."""
    grant = bench.started(MEDIUM, operation="1", resources=(A, B))
    with held("select from benteng.resource where key = %s for update", A):
        batch = Waiter(lambda: bench.settle(settlement(grant)))
        wait_for(owner)
        free = owner.execute("select from benteng.resource where key = %s for update nowait", [B]).fetchall()

    assert 1 == len(free)
    assert 1 == len(batch.join())


def test_tighten_waits_for_a_claim_under_way(bench, owner, raw):
    """When the switch is set, every claim that had begun has committed: nothing starts after it."""
    job = bench.admitted()
    claiming = raw()
    assert [job.id] == [job_id for job_id, _ in claim(claiming)]

    switch = Waiter(lambda: bench.tighten(ControlMode.HALT))
    wait_for(owner)
    claiming.commit()
    switch.join()

    events = [record for record in bench.events(job.id) + bench.events() if record in {"claimed", "tightened"}]
    assert ["claimed", "tightened"] == events
    bench.advance(31)
    bench.reclaim()
    assert [] == bench.claim()


def test_claim_behind_a_waiting_switch_starts_nothing(bench, owner, raw):
    """A claim that comes while the switch waits for another one sees it set."""
    jobs = [bench.admitted(), bench.admitted()]
    claiming = raw()
    assert 1 == len(claim(claiming, 1))
    switch = Waiter(lambda: bench.tighten(ControlMode.HALT))
    wait_for(owner)
    late = Waiter(lambda: bench.claim(5))
    wait_for(owner, 2)
    claiming.commit()

    switch.join()

    assert [] == late.join()
    assert ["running", "ready"] == sorted(bench.states(*jobs), reverse=True)


def test_worker_cannot_keep_the_switch_from_being_set(bench, raw):
    """Whoever sits on an open claim delays the certainty, not the switch: it is set, and Busy says what is open."""
    bench.admitted()
    claim(raw(), 1)

    with pytest.raises(Busy, match="the switch is set"):
        bench.operator.tighten(Control(ControlScope.TYPE, LOW.name, ControlMode.HALT, "a reason"))

    assert [ControlMode.HALT] == [each.mode for each in bench.operator.controls()]


def test_second_round_does_not_wait(bench, owner, held):
    """A claim that holds resource rows leaves a job alone whose resource is in somebody's hands, and takes the next."""
    bench.started(MEDIUM, operation="1", resources=(A,), priority=0)
    bench.admitted(MEDIUM, operation="2", resources=(A,), priority=1)
    busy = bench.admitted(MEDIUM, operation="3", resources=(B,), priority=2)
    free = bench.admitted(LOW, priority=3)

    with held("select from benteng.resource where key = %s for update", B):
        grants = bench.claim(1)

    assert [free.id] == [grant.job.id for grant in grants]
    assert State.READY is bench.state(busy.id)


def test_turn_does_not_wait_for_resources(bench, owner, held):
    """The claim behind a settlement waits for nothing: what it cannot have at once stays ready, and the next starts."""
    grant = bench.started(MEDIUM, operation="1", resources=(A,))
    busy = bench.admitted(MEDIUM, operation="2", resources=(B,))
    free = bench.admitted(MEDIUM, operation="3")

    with held("select from benteng.resource where key = %s for update", B):
        turn = bench.consumer.turn([settlement(grant)], 2, [MEDIUM.name])
    bench.journal.settled(turn.settled)
    bench.journal.grants(turn.grants)

    assert ([State.COMPLETED], [free.id]) == (
        [each.state for each in turn.settled],
        [each.job.id for each in turn.grants],
    )
    assert State.READY is bench.state(busy.id)


def test_failed_claim_does_not_undo_the_settlement(bench, owner):
    """When the claim of a turn fails, what it settled stays settled."""
    grant = bench.started()
    job = bench.admitted(MEDIUM, operation="1", resources=(A,))
    owner.execute("alter table benteng.resource add constraint broken check (holder is null) not valid")

    turn = bench.consumer.turn([settlement(grant)], 1, [MEDIUM.name])
    bench.journal.settled(turn.settled)
    owner.execute("alter table benteng.resource drop constraint broken")

    assert ([State.COMPLETED], ()) == ([each.state for each in turn.settled], turn.grants)
    assert ["completed", "ready"] == bench.states(grant, job)


def test_settlement_ends_the_row_where_a_renewal_has_left_it(bench, owner, held):
    """A settlement that waited for a heartbeat finds the attempt in the row's new version, and ends that one."""
    done, failed = bench.started(), bench.started()
    with held("update benteng.job set lease_until = lease_until + interval '1 s' where state = %s", "running"):
        asked = [settlement(done), settlement(failed, Disposition.RETRY, error="an error")]
        waiting = Waiter(lambda: bench.settle(*asked))
        wait_for(owner)

    assert {State.COMPLETED, State.SCHEDULED} == {each.state for each in waiting.join()}
    assert [State.COMPLETED, State.SCHEDULED] == [bench.state(grant.job.id) for grant in (done, failed)]


def test_reclaim_leaves_a_settlement_under_way_alone(ledger, bench):
    """A job whose settlement is not committed yet is not taken back, and the keeper does not wait for it (C17)."""
    grant = bench.started()
    bench.advance(31)
    store = ledger.consumer()
    say(store, b"begin")
    settled = store.settle([settlement(grant)])

    taken = bench.reclaim()
    say(store, b"commit")
    bench.journal.settled(settled)

    assert ([State.COMPLETED], []) == ([each.state for each in settled], taken)
    assert State.COMPLETED is bench.state(grant.job.id)


def test_duplicate_waits_for_an_open_admission(ledger, bench, owner, raw):
    """While the first of two is not committed the second waits, and then gets the first one's receipt."""
    first, second = bench.job(MEDIUM, operation="a"), bench.job(MEDIUM, operation="a")
    store = ledger.producer()
    say(store, b"begin")
    store.admit([admission(first)])

    other = Waiter(lambda: bench.admit(second))
    wait_for(owner)
    say(store, b"commit")

    assert [first.id] == [each.job_id for each in other.join()]


def test_duplicate_of_an_admission_that_rolled_back_enters(ledger, bench, owner):
    """When the winner rolls back, the one that waited is admitted."""
    first, second = bench.job(MEDIUM, operation="a"), bench.job(MEDIUM, operation="a")
    store = ledger.producer()
    say(store, b"begin")
    store.admit([admission(first)])

    other = Waiter(lambda: bench.admit(second))
    wait_for(owner)
    say(store, b"rollback")

    assert [second.id] == [each.job_id for each in other.join()]
    assert bench.operator.show(first.id) is None


def test_batches_reserve_their_keys_in_one_order(ledger, bench, owner):
    """Whatever the order of a batch, its first key is reserved first: waiting for it, the batch holds no other."""
    early, late = sorted("ab", key=lambda name: bench.job(MEDIUM, operation=name).operation_key)
    store, other = ledger.producer(), ledger.producer()
    say(store, b"begin")
    store.admit([admission(bench.job(MEDIUM, operation=early))])

    batch = Waiter(lambda: bench.admit(bench.job(MEDIUM, operation=late), bench.job(MEDIUM, operation=early)))
    wait_for(owner)
    (free,) = other.admit([admission(bench.job(MEDIUM, operation=late))])
    say(store, b"rollback")

    assert [Disposal.DUPLICATE, Disposal.ADMITTED] == [each.disposal for each in batch.join()]
    assert free.job_id == batch.answer[0].job_id


def test_key_that_is_freed_while_an_admission_waits_gets_the_next_epoch(ledger, bench, owner):
    """Waiting for one key it has read the past of the other too early, and counts again when both are its own."""
    early, late = sorted("ab", key=lambda name: bench.job(MEDIUM, operation=name).operation_key)
    old = bench.admitted(MEDIUM, operation=late)
    store = ledger.producer()
    say(store, b"begin")
    store.admit([admission(bench.job(MEDIUM, operation=early))])

    both = Waiter(lambda: bench.admit(bench.job(MEDIUM, operation=early), bench.job(MEDIUM, operation=late)))
    wait_for(owner)
    bench.operator.cancel((old.id,), "a reason")
    say(store, b"rollback")

    assert [State.READY] * 2 == [each.state for each in both.join()]
    assert [1, 2] == [bench.view(each.job_id).epoch for each in both.answer]


def admission(job):
    """Return the admission of a job that is due."""
    return Admission(job)
