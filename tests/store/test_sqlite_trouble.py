from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from benteng.audit import Event
from benteng.errors import StoreDamaged, StoreError, StoreUnavailable
from benteng.lifecycle import State
from benteng.store.records import Admission, Disposal
from benteng.store.sqlite import connection
from benteng.testing.bench import Bench, proof, settlement
from benteng.testing.invariants import check_ledger
from benteng.testing.sqlite import SqliteLedger


@pytest.fixture
def bench(ledger):
    """The ledger with its facets open and its types applied."""
    return Bench(ledger)


@pytest.fixture
def impatient(monkeypatch):
    """Connections that do not wait for others."""
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.01)


@contextmanager
def locked(ledger):
    """Somebody else is writing, and does not stop."""
    with closing(sqlite3.connect(ledger.path)) as other:
        other.execute("begin immediate")
        yield
        other.execute("rollback")


@contextmanager
def full(store):
    """The disk has no room for one more page."""
    raw = store._connection
    raw.set_authorizer(None)
    (pages,) = raw.execute("pragma page_count").fetchone()
    raw.execute(f"pragma max_page_count = {pages}")
    yield
    if store._connection is raw:
        raw.execute("pragma max_page_count = 1000000")


@contextmanager
def files_bounded(bytes_max):
    """No file of this process may grow beyond some bytes: what a quota or a failing disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def log_of(ledger):
    """Size and time of the write-ahead log."""
    found = Path(f"{ledger.path}-wal").stat()
    return found.st_size, found.st_mtime_ns


def replace_by(ledger, other):
    """Put another database where the ledger is, as a restore does: the log beside it goes, too."""
    for each in list(ledger.directory.glob("ledger.db*")):
        each.rename(each.with_name(f"away-{each.name}"))
    shutil.copyfile(other.path, ledger.path)
    ledger.path.chmod(0o600)


def in_threads(act, batches):
    """Act on each batch in a thread of its own, all at once."""
    threads = [threading.Thread(target=act, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def big(bench, n):
    """Jobs that need pages."""
    return [bench.job(payload=b'{"x":"%s"}' % (b"y" * 20_000)) for _ in range(n)]


def test_locked_ledger_is_unavailable_after_a_bounded_wait(ledger, bench, impatient):
    """While another process holds the file, a verb gives up in time, has done nothing, and works afterwards."""
    producer, job = ledger.producer(), bench.job()

    with locked(ledger), pytest.raises(StoreUnavailable, match="locked by another process"):
        producer.admit([Admission(job)])

    assert Disposal.ADMITTED is producer.admit([Admission(job)])[0].disposal


def test_reading_does_not_wait_for_a_writer(ledger, bench, impatient):
    """Evidence, status and lists are answered while somebody writes."""
    job, producer = bench.admitted(), ledger.producer()

    with locked(ledger):
        assert [State.READY] == [status.state for status in producer.status([job.id])]


def test_writing_does_not_wait_for_a_reader(ledger, bench):
    """A long read transaction does not hold up the queue (case C81)."""
    with closing(sqlite3.connect(ledger.path)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from job").fetchone()

        bench.admitted()


def test_opening_waits_for_a_writer(ledger, bench):
    """A worker that starts while somebody writes does not fail (journal_mode has no busy handler of its own)."""
    with closing(sqlite3.connect(ledger.path, check_same_thread=False)) as other:
        other.execute("begin immediate")
        timer = threading.Timer(0.2, lambda: other.execute("rollback"))
        timer.start()

        ledger.consumer()
        ledger.producer().admit([Admission(bench.job())])
        timer.join()


def test_many_writers_wait_for_each_other(ledger, bench):
    """Eight writers at once, and a reader that holds an old state: nobody sees that the file was locked (case C81)."""
    batches = [[bench.job() for _ in range(10)] for _ in range(8)]
    answers = []

    def admit(batch):
        producer = ledger.producer()
        answers.extend(producer.admit([Admission(job)])[0].disposal for job in batch)

    with closing(sqlite3.connect(ledger.path)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from job").fetchone()
        in_threads(admit, batches)

    assert [Disposal.ADMITTED] * 80 == answers
    check_ledger(ledger)


def test_full_disk_stores_nothing_of_a_verb(ledger, bench):
    """When the disk is full a batch is refused as a whole with a typed error, and enters when there is room (C83)."""
    jobs = big(bench, 20)
    producer = bench.producer

    with full(producer), pytest.raises(StoreUnavailable, match="SQLITE_FULL"):
        producer.admit([Admission(job) for job in jobs])

    assert [] == producer.status([job.id for job in jobs])
    check_ledger(ledger, bench.journal)
    assert [Disposal.ADMITTED] * 20 == [receipt.disposal for receipt in bench.admit(*jobs)]


def test_failing_write_stores_nothing_of_a_verb(ledger, bench):
    """A write that the system refuses in the middle of a commit leaves the ledger as it was."""
    jobs = big(bench, 20)
    producer = bench.producer
    wal, _ = log_of(ledger)

    with files_bounded(wal + 30_000), pytest.raises(StoreUnavailable):
        producer.admit([Admission(job) for job in jobs])

    assert [] == producer.status([job.id for job in jobs])
    check_ledger(ledger, bench.journal)
    assert [Disposal.ADMITTED] * 20 == [receipt.disposal for receipt in bench.admit(*jobs)]


def test_settlement_survives_the_failing_claim_of_its_turn(ledger, bench):
    """What `turn` has settled stays settled when its claim fails half-way, and nothing of that claim remains."""
    done = bench.started()
    late = bench.admitted(priority=0, expires_at=bench.clock())
    waiting = bench.admitted()
    bench.advance(1)
    other = ledger.consumer()
    raw = bench.consumer._connection

    def no_start(action, table, column, *_):
        is_start = action == sqlite3.SQLITE_UPDATE and table == "job" and column == "lease_until"
        return sqlite3.SQLITE_DENY if is_start else sqlite3.SQLITE_OK

    raw.set_authorizer(no_start)
    # The late job is quarantined by the claim before the start of the next one is refused.
    turn = bench.consumer.turn([settlement(done)], 1, [waiting.type])

    assert [done.job.id] == [settled.job_id for settled in turn.settled]
    assert () == turn.grants
    assert ["completed", "ready", "ready"] == bench.states(done, late, waiting)
    assert ["admitted"] == bench.events(late.id)
    assert [waiting.id] == [grant.job.id for grant in other.claim(1, [waiting.type])]
    check_ledger(ledger)


def test_moved_ledger_is_unavailable_and_heals_when_it_is_back(ledger, bench, tmp_path):
    """No verb writes into a file that nobody will find again; the same connection goes on when the file is back."""
    job = bench.job()
    away = tmp_path / "away.db"
    ledger.path.rename(away)

    with pytest.raises(StoreUnavailable):
        bench.producer.admit([Admission(job)])
    assert not ledger.path.exists(), "a verb must not make a new, empty ledger"

    away.rename(ledger.path)
    assert Disposal.ADMITTED is bench.producer.admit([Admission(job)])[0].disposal


def test_ledger_moved_in_the_middle_of_a_verb_is_not_written(ledger, bench, tmp_path):
    """The file is looked for again before the commit."""
    producer = bench.producer

    def admit_and_lose_the_file():
        with producer.writing() as tx:
            tx.say(Event.TIGHTENED)
            ledger.path.rename(tmp_path / "away.db")

    with pytest.raises(StoreUnavailable, match="moved"):
        admit_and_lose_the_file()
    (tmp_path / "away.db").rename(ledger.path)

    assert Event.TIGHTENED not in bench.events()


def test_another_ledger_in_its_place_is_damage(ledger, bench, tmp_path):
    """A process does not go on in another installation, where its fences and leases mean nothing."""
    (tmp_path / "strange").mkdir()
    strange = SqliteLedger(tmp_path / "strange", environment=ledger.environment)
    strange.operator()
    strange.close()
    producer, job = bench.producer, bench.job()
    replace_by(ledger, strange)

    with pytest.raises(StoreDamaged, match="another ledger"):
        producer.admit([Admission(job)])


def test_older_copy_in_its_place_is_damage(ledger, bench):
    """A copy in which fences would be given out twice is not written by a process that has seen newer ones."""
    old = ledger.copy()
    bench.started()
    consumer = bench.consumer
    replace_by(ledger, old)

    with pytest.raises(StoreDamaged, match="gone back"):
        consumer.claim(1, ["t.low@1"])


def test_fence_set_back_by_hand_is_damage(ledger, bench):
    """A process that has seen a fence does not give it out again, whoever wrote the row."""
    bench.started()
    bench.admitted()
    with closing(sqlite3.connect(ledger.path)) as raw, raw:
        raw.execute("drop trigger fence_never_goes_back")
        raw.execute("update installation set fence = 0")

    with pytest.raises(StoreDamaged, match="gone back"):
        bench.claim()


def test_emptied_ledger_is_not_made_anew(ledger, bench):
    """An empty file under an open ledger is damage: a new installation would start its fences from 1."""
    bench.started()
    bench.consumer.close()
    copy = ledger.copy()
    store = copy.producer()
    store._drop()
    for each in copy.directory.glob("ledger.db*"):
        each.unlink()
    copy.path.touch(mode=0o600)

    with pytest.raises(StoreDamaged, match="emptied"):
        store.admit([Admission(bench.job())])


def test_corrupt_page_is_damage(ledger, bench):
    """What SQLite finds corrupt is said so, and nothing is repaired by itself."""
    for _ in range(50):
        bench.admitted()
    copy = ledger.copy()
    data = bytearray(copy.path.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    copy.path.write_bytes(data)

    with pytest.raises(StoreDamaged):
        copy.operator()


def test_forked_child_is_refused_and_hurts_nobody(ledger, bench):
    """A child that inherited a ledger gets an error, not the parent's connection; the parent goes on."""
    grant = bench.started()
    consumer = bench.consumer
    child = os.fork()
    if child == 0:
        code = 1
        try:
            consumer.settle([settlement(grant)])
        except StoreError as error:
            code = 0 if "before a fork" in str(error) else 2
        consumer.close()
        os._exit(code)
    _, status = os.waitpid(child, 0)

    assert 0 == os.waitstatus_to_exitcode(status)
    assert [grant.job.id] == [settled.job_id for settled in consumer.settle([settlement(grant)])]


def test_threads_of_one_process_share_a_connection(ledger, bench):
    """A gate is called from many threads: each gets its own answer, and nothing is lost."""
    jobs = [[bench.job() for _ in range(10)] for _ in range(8)]
    answers = []

    def admit(batch):
        answers.extend(bench.producer.admit([Admission(job)])[0].disposal for job in batch)

    in_threads(admit, jobs)

    assert [Disposal.ADMITTED] * 80 == answers
    check_ledger(ledger)


def test_closed_ledger_says_so(bench):
    """After close, which may be called twice, a verb is an error and not a crash."""
    producer = bench.ledger.producer()
    producer.close()
    producer.close()

    with pytest.raises(StoreError, match="closed"):
        producer.status(["x"])


def test_time_never_goes_back_for_any_connection(ledger, bench):
    """What one connection has acted on is the earliest that another one can believe, also after a step of the clock."""
    grant = bench.started()
    acted_at = bench.clock()
    bench.advance(-86_400)

    assert acted_at == grant.evidence.now
    assert acted_at == bench.view(grant.job.id).now
    assert not ledger.consumer().extend([proof(grant)])[0].lost


def test_idle_verbs_write_nothing(ledger, bench):
    """Polling an empty queue costs no sync: a verb that changed nothing does not write the clock."""
    for verb in (bench.claim, bench.stage, bench.reclaim):
        verb()
        before = log_of(ledger)
        bench.advance(1)
        verb()
        assert before == log_of(ledger)
