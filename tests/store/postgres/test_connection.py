from __future__ import annotations

import dataclasses
import os
import signal
import threading
from urllib.parse import urlsplit

import psycopg
import pytest
from msgspec.structs import replace

from benteng.decide import Disposition
from benteng.errors import Busy, FacetError, PolicyError, StoreError, StoreUnavailable
from benteng.lifecycle import State
from benteng.store.open import open_consumer, open_keeper, open_producer
from benteng.store.records import Admission, Disposal
from benteng.testing.bench import proof, records, settlement
from benteng.testing.ledger import LOW, MEDIUM, POOL
from tests.support.interrupts import interrupted_after
from tests.support.proxy import Proxy
from tests.support.servers import address
from tests.support.waiting import until

END = """
select pg_terminate_backend(pid, 5000)
from pg_stat_activity
where datname = current_database()
  and application_name = %s
"""
PROTOCOL = """
create or replace function benteng_v1.protocol()
returns table (oldest integer, newest integer, login text, facet text, pool text, environment text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select {0}, {0}, l.name, l.facet, l.pool, 'dev' from benteng.login l where l.name = session_user $$
"""
REPLACED = """
alter function benteng_v1.status(uuid[]) rename to status_before;
create function benteng_v1.status(p_ids uuid[])
returns table (
  job_id uuid, state text, reason text, error text, result bytea, available_at bigint, finished_at bigint, more integer)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select s.*, 1 from benteng_v1.status_before(p_ids) s $$;
alter function benteng_v1.status(uuid[]) owner to benteng_owner;
grant execute on function benteng_v1.status(uuid[]) to public;
"""


def end_sessions(owner, facet):
    """Let the server end every session of a facet."""
    owner.execute(END, [f"benteng-{facet}"])


# --- who opens what -------------------------------------------------------------------------------------------------


def test_login_opens_its_own_facet_alone(ledger):
    """A worker's login cannot be opened as anything else: the client says so before a verb is tried."""
    with pytest.raises(FacetError):
        open_keeper(ledger.site.dsn("t_default"))


def test_login_opens_its_own_pool_alone(ledger):
    """The pool is the login's, whatever the worker's configuration says."""
    with pytest.raises(PolicyError):
        open_consumer(ledger.site.dsn("t_other"), POOL)


def test_other_environment_is_refused(ledger):
    """A ledger that was made for `dev` is not opened as `prod`, nor the other way round."""
    with pytest.raises(PolicyError, match="S-environment"):
        open_producer(ledger.site.dsn("t_producer"), environment="prod")


@pytest.mark.parametrize("protocol", [0, 2])
def test_other_protocol_is_refused(ledger, owner, protocol):
    """A ledger that is older or newer than what the client speaks is refused, with both numbers."""
    owner.execute(PROTOCOL.format(protocol).encode())

    with pytest.raises(StoreError, match=f"protocol {protocol} to {protocol}"):
        ledger.producer()


def test_database_without_ledger_names_the_command(ledger):
    """Where no ledger is, the error says how to make one."""
    with pytest.raises(StoreError, match="benteng migrate up"):
        open_producer(dataclasses.replace(ledger.site, database="postgres").dsn("postgres"))


def test_errors_do_not_repeat_the_address():
    """An address carries a password: no error has a part of it."""
    with pytest.raises(StoreUnavailable) as refused:
        open_producer("postgresql://somebody:s3cret-w0rd@127.0.0.1:1/nowhere")

    assert "s3cret" not in str(refused.value)
    assert "somebody" not in str(refused.value)


def test_forked_child_does_not_use_the_connection(bench):
    """A child that inherits a ledger may not speak on its parent's session, and closing there does no harm."""
    store = bench.producer
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.status([])
        except StoreError:
            code = 7
        store.close()
        os._exit(code)
    _, status = os.waitpid(child, 0)

    assert 7 == os.waitstatus_to_exitcode(status)
    assert [] == store.status([])


def test_isolation_above_read_committed_is_refused(ledger, bench, owner):
    """The verbs depend on a fresh snapshot for each statement: a login with another isolation gets an error."""
    owner.execute(
        f"alter role t_producer in database {ledger.site.database} "
        "set default_transaction_isolation = 'serializable'".encode()
    )
    store = ledger.producer()

    with pytest.raises(StoreError):
        store.admit([Admission(bench.job())])
    owner.execute(f"alter role t_producer in database {ledger.site.database} reset all".encode())


# --- plans ----------------------------------------------------------------------------------------------------------


def planned(store):
    """Return how many calls the store's session keeps a plan of."""
    (row,) = store._connected().ask(
        b"select count(*) as kept from pg_prepared_statements where statement like 'select * from %'"
    )
    return row["kept"]


def test_a_call_that_comes_again_is_planned_once(bench):
    """The first call of a verb makes no plan to keep, so that it costs one round trip; the second does."""
    store = bench.ledger.producer()
    store.status([])
    once = planned(store)
    store.status([])
    store.status([])

    assert (0, 1) == (once, planned(store))


def test_behind_a_pooler_no_plan_is_kept(ledger, monkeypatch):
    """Where the session is only lent the next call may meet another: told by a backend that is not the one named."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda info: -1))
    store = ledger.producer()
    for _ in range(3):
        store.status([])

    assert 0 == planned(store)


def test_a_verb_that_was_replaced_is_planned_again(bench, owner):
    """A migration under the feet of an open session: the next call meets the new verb, also with another answer."""
    job = bench.admitted()
    for _ in range(3):
        bench.producer.status([job.id])
    owner.execute(REPLACED)

    assert [job.id] == [each.job_id for each in bench.producer.status([job.id])]


# --- what goes away -------------------------------------------------------------------------------------------------


def test_session_that_ended_while_idle_is_opened_again(bench, owner):
    """Nothing was asked, so nothing is unknown: every verb goes on, also one that may not be repeated."""
    job = bench.admitted()
    assert [] == bench.claim(5, [])
    bench.consumer.extend([])
    bench.claim(1, [MEDIUM.name])
    end_sessions(owner, "consumer")

    assert [job.id] == [grant.job.id for grant in bench.claim()]


def test_admit_whose_session_is_ended_is_repeated(bench, owner):
    """Ended in the middle, an admission is asked again: one job, one receipt that says admitted."""
    job = bench.job()
    owner.execute("begin")
    owner.execute("lock table benteng.control in exclusive mode")
    answers = []
    thread = threading.Thread(target=lambda: answers.extend(bench.producer.admit([Admission(job)])))
    thread.start()
    wait_for(owner, "benteng-producer")
    end_sessions(owner, "producer")
    wait_for(owner, "benteng-producer")
    owner.execute("commit")
    thread.join()

    assert [(Disposal.ADMITTED, job.id)] == [(each.disposal, each.job_id) for each in answers]


def test_session_that_ends_while_it_is_awaited_says_why(bench, owner):
    """The server's last words reach the caller; what it had asked may not be asked again, for nobody knows."""
    job = bench.admitted()
    owner.execute("begin")
    owner.execute("select from benteng.job where id = %s for update", [job.id])
    said = []

    def cancel():
        with pytest.raises(StoreUnavailable, match="AdminShutdown 57P01") as raised:
            bench.producer.cancel([job.id], "no longer wanted")
        said.append(raised)

    thread = threading.Thread(target=cancel)
    thread.start()
    wait_for(owner, "benteng-producer")
    end_sessions(owner, "producer")
    thread.join()
    owner.execute("commit")

    assert 1 == len(said)


def wait_for(owner, application):
    """Return when a session of that name waits for a lock."""
    asked = "select count(*) from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
    for _ in range(10_000):
        owner.execute("select pg_stat_clear_snapshot()")
        if owner.execute(asked, [application]).fetchone()[0]:
            return
    raise AssertionError("nobody waits")


@pytest.fixture
def proxy(postgres):
    """A way to the server that can lose an answer."""
    parts = urlsplit(postgres.dsn())
    query = dict(pair.split("=") for pair in parts.query.split("&"))
    if not query["host"].startswith("%2F") or not hasattr(postgres, "socket"):
        pytest.skip("the server is not ours: there is no socket to stand before")
    with Proxy(postgres.socket) as proxy:
        yield proxy


def through(proxy, postgres, ledger, login):
    """Return the address of the ledger through the proxy, with the password that TCP asks for."""
    with postgres.connect() as connection:
        connection.execute(f"alter role {login} password '{postgres.password}'".encode())
    return address(login, ledger.site.database, host=proxy.host, port=proxy.port, password=postgres.password)


def lose_one_answer(proxy, call):
    """Return what `call` returns while one answer is lost on the way.

    Open the store after the last job was admitted: a consumer listens, and a hint would be taken for the answer.
    """
    proxy.lose_answers(one=True)
    return call()


def test_lost_answer_of_admit_is_found_again(ledger, bench, postgres, proxy):
    """Committed, and the answer lost: the repeated call finds the job and says admitted, not duplicate."""
    store = open_producer(through(proxy, postgres, ledger, "t_producer"))
    jobs = [bench.job(), bench.job(MEDIUM, operation="a")]

    receipts = lose_one_answer(proxy, lambda: store.admit([Admission(job) for job in jobs]))

    assert [(Disposal.ADMITTED, job.id) for job in jobs] == [(each.disposal, each.job_id) for each in receipts]
    assert ["ready", "ready"] == bench.states(*jobs)
    store.close()


@pytest.mark.parametrize(
    "disposition, state",
    [(Disposition.COMPLETE, State.COMPLETED), (Disposition.RETRY, State.SCHEDULED)],
)
def test_lost_answer_of_settle_is_found_again(ledger, bench, postgres, proxy, disposition, state):
    """Committed, and the answer lost: the repeated call tells by fence and token that it was this settlement."""
    grant = bench.started()
    store = open_consumer(through(proxy, postgres, ledger, "t_default"), POOL)
    forged = replace(settlement(grant), proof=replace(proof(grant), token="forged"))

    answers = lose_one_answer(proxy, lambda: store.settle([settlement(grant, disposition, delay_seconds=1.0), forged]))

    bench.journal.settled(answers)
    assert [(grant.job.id, state)] == [(each.job_id, each.state) for each in answers]
    assert 0 == stale_tries(bench)
    store.close()


def test_settling_again_without_a_lost_answer_is_stale(bench):
    """Only who lost an answer is told it again: a worker that settles twice hears that its attempt is over."""
    grant = bench.started()

    assert [grant.job.id] == [each.job_id for each in bench.settle(settlement(grant))]
    assert [] == bench.settle(settlement(grant))
    assert 1 == stale_tries(bench)


def test_attempt_that_is_named_twice_is_not_stale(bench):
    """The first counts and the second is nobody else's try, also beside one that its worker was wrong about."""
    one, other = bench.started(LOW), bench.started(MEDIUM, operation="a", resources=("host:a",))

    answers = bench.settle(*(settlement(each, holds=False) for each in (other, one, one)))

    assert [other.job.id, one.job.id] == [each.job_id for each in answers]
    assert 0 == stale_tries(bench)


def stale_tries(bench):
    """Return how many settlements the log has refused as stale."""
    return sum(record["rule"] == "S-stale" for record in records(bench.audit()))


def test_lost_answer_of_turn_keeps_its_settlements(ledger, bench, postgres, proxy):
    """What a turn settled is found again; what it claimed comes back by its lease."""
    grant = bench.started()
    job = bench.admitted()
    store = open_consumer(through(proxy, postgres, ledger, "t_default"), POOL)

    turn = lose_one_answer(proxy, lambda: store.turn([settlement(grant)], 1, [LOW.name]))

    bench.journal.settled(turn.settled)
    assert [State.COMPLETED] == [each.state for each in turn.settled]
    assert () == turn.grants
    assert State.RUNNING is bench.state(job.id)
    bench.advance(31)
    assert [job.id] == [each.job_id for each in bench.reclaim()]
    store.close()


def test_lost_answer_of_claim_is_an_error(ledger, bench, postgres, proxy):
    """A claim is never repeated: it would start others. Its leases end by themselves."""
    job = bench.admitted()
    store = open_consumer(through(proxy, postgres, ledger, "t_default"), POOL)

    with pytest.raises(StoreUnavailable):
        lose_one_answer(proxy, lambda: store.claim(1, [LOW.name]))

    bench.advance(31)
    assert [job.id] == [each.job_id for each in bench.reclaim()]
    store.close()


# --- what is in the way ---------------------------------------------------------------------------------------------


def test_locked_ledger_is_busy_and_stores_nothing(bench, owner):
    """A lock that is not given in time: Busy for who admits, away for who claims; nothing was stored."""
    waiting, job = bench.admitted(), bench.job()
    errors = []

    def refused(call):
        try:
            call()
        except (Busy, StoreUnavailable) as error:
            errors.append(type(error))

    owner.execute("begin")
    owner.execute("lock table benteng.control in exclusive mode")
    threads = [
        threading.Thread(target=refused, args=[lambda: bench.producer.admit([Admission(job)])]),
        threading.Thread(target=refused, args=[lambda: bench.consumer.claim(1, [LOW.name])]),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner.execute("commit")

    assert sorted([Busy, StoreUnavailable], key=str) == sorted(errors, key=str)
    assert bench.operator.show(job.id) is None
    assert State.READY is bench.state(waiting.id)


def test_read_only_server_is_away_and_stores_nothing(ledger, bench, owner):
    """On a server that does not write (a standby, a full disk) verbs say unavailable, and reading goes on."""
    job = bench.job()
    name = ledger.site.database
    owner.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    store = ledger.producer()

    with pytest.raises(StoreUnavailable):
        store.admit([Admission(job)])

    assert [] == store.status([job.id])
    owner.execute(f"alter database {name} reset default_transaction_read_only".encode())


# --- what is under way ----------------------------------------------------------------------------------------------


def begun(bench, *jobs):
    """Return the admission of jobs that the ledger has begun with."""
    asked = bench.producer.admitting([Admission(job) for job in jobs])
    asked.begin()
    return asked


def test_ledger_works_while_nobody_waits(bench):
    """What was begun is committed without another word from its producer; the receipts are there for who asks later."""
    job = bench.job()

    asked = begun(bench, job)

    until(lambda: bench.operator.show(job.id) is not None)
    asked.wait()
    assert [(Disposal.ADMITTED, job.id)] == [(each.disposal, each.job_id) for each in asked.receipts()]


def test_calls_of_several_verbs_take_turns(bench):
    """Each verb has a plan of its own from its second call on, whatever was called between."""
    for _ in range(3):
        job = bench.admitted()

        assert [job.id] == [each.job_id for each in bench.producer.status([job.id])]
        assert [job.id] == [each.job_id for each in bench.producer.cancel([job.id], "a turn")]


def test_another_call_waits_for_the_one_under_way(bench):
    """Calls of one connection happen one after the other, and each gets its own answer."""
    first, second = bench.job(), bench.job()

    asked = begun(bench, first)
    found = bench.producer.status([first.id])
    (receipt,) = bench.producer.admit([Admission(second)])
    asked.wait()

    assert [first.id] == [each.job_id for each in found]
    assert [first.id, second.id] == [*(each.job_id for each in asked.receipts()), receipt.job_id]


def test_session_that_ends_under_way_is_asked_again(bench, owner):
    """The server ends the session before the answer is asked for: one job, one receipt that says admitted."""
    job = bench.job()

    asked = begun(bench, job)
    end_sessions(owner, "producer")
    asked.wait()

    assert [(Disposal.ADMITTED, job.id)] == [(each.disposal, each.job_id) for each in asked.receipts()]
    assert State.READY is bench.state(job.id)


def test_error_of_what_is_under_way_belongs_to_it(bench, owner):
    """A call that finds another one failed goes on, and who began that one hears of it."""
    job = bench.job()
    owner.execute("begin")
    owner.execute("lock table benteng.control in exclusive mode")

    asked = begun(bench, job)
    found = bench.producer.status([job.id])
    owner.execute("commit")

    assert [] == found
    with pytest.raises(Busy):
        asked.wait()
    assert bench.operator.show(job.id) is None


def test_closing_waits_for_what_is_under_way(bench):
    """Whoever closes does not take the answer from who waits for it."""
    job = bench.job()

    asked = begun(bench, job)
    bench.producer.close()
    asked.wait()

    assert [job.id] == [each.job_id for each in asked.receipts()]


def test_forked_child_does_not_take_the_answer(bench):
    """What is under way at a fork is the parent's."""
    job = bench.job()
    asked = begun(bench, job)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asked.wait()
        except StoreError:
            code = 7
        os._exit(code)
    _, status = os.waitpid(child, 0)

    asked.wait()

    assert 7 == os.waitstatus_to_exitcode(status)
    assert [job.id] == [each.job_id for each in asked.receipts()]


def test_interrupted_wait_leaves_a_usable_ledger(bench, owner):
    """Ctrl-C while an answer is awaited: the statement is cancelled, and the next call works."""
    job, other = bench.job(), bench.job()
    owner.execute("begin")
    owner.execute("lock table benteng.control in exclusive mode")
    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(
        target=lambda: (wait_for(owner, "benteng-producer"), signal.pthread_kill(main, signal.SIGINT))
    ).start()

    asked = begun(bench, job)
    with pytest.raises(KeyboardInterrupt):
        asked.wait()
    signal.signal(signal.SIGINT, before)
    owner.execute("commit")

    with pytest.raises(StoreUnavailable, match="interrupted"):
        asked.wait()
    assert [other.id] == [each.job_id for each in bench.producer.admit([Admission(other)])]
    assert bench.operator.show(job.id) is None


def test_interrupted_sending_leaves_a_usable_ledger(bench):
    """Ctrl-C when a statement was sent and nobody has noted it: the next call does not take its answer."""
    job = bench.job()
    with interrupted_after("Session.send"):
        begun(bench, job)

    assert [] == bench.producer.cancel([bench.job().id], "a call that is not repeated")
