"""Hints of the embedded ledger: who is told, what a hint may not do, and that nothing fails without them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from benteng.errors import StoreUnavailable
from benteng.lifecycle import State
from benteng.store.sqlite.admission import Entrance, enter
from benteng.store.sqlite.hints import HEARD_MAX, Ear, ring
from benteng.testing.bench import Bench
from benteng.testing.faults import FACTS
from benteng.testing.ledger import LOW, MEDIUM
from benteng.testing.sqlite import SqliteLedger


@pytest.fixture
def bench(ledger):
    """The ledger with its facets open, its types applied, and a consumer that listens."""
    bench = Bench(ledger)
    assert not bench.consumer.hints.heard()
    return bench


@pytest.fixture
def sockets(ledger):
    """The directory of the sockets."""
    return ledger.path.with_name("ledger.db-hints")


def test_many_jobs_of_one_commit_are_one_hint(bench):
    """However many became ready, one datagram comes."""
    bench.admit(*(bench.job() for _ in range(20)))

    assert [True, False] == [bench.consumer.hints.heard(), bench.consumer.hints.heard()]


def test_nobody_is_told_while_there_is_something_to_do(bench):
    """Under load nothing is sent: whoever works asks anyway."""
    bench.admitted()
    bench.consumer.hints.heard()

    bench.admitted()

    assert not bench.consumer.hints.heard()


def test_held_and_scheduled_jobs_tell_nobody(bench):
    """There is nothing to start; when a scheduled one is due, its staging tells."""
    bench.admitted(entry=State.HELD)
    bench.admitted(MEDIUM, operation="1", available_at=bench.clock() + 5_000_000)
    before = bench.consumer.hints.heard()
    bench.due(10)

    assert (False, True) == (before, bench.consumer.hints.heard())


def test_what_comes_back_tells(bench):
    """A reclaimed job is work for somebody who is idle."""
    bench.started()
    bench.consumer.hints.heard()
    bench.advance(31)
    bench.reclaim()

    assert bench.consumer.hints.heard()


def test_what_was_not_committed_tells_nobody(bench, ledger, tmp_path):
    """A hint is sent after the commit: a verb that fails at its very end sends none."""
    producer, away = bench.producer, tmp_path / "away.db"
    job = bench.job()

    def admit_and_lose_the_file():
        with producer.writing() as tx:
            enter(tx, [Entrance(job, tx.origin)])
            ledger.path.rename(away)

    with pytest.raises(StoreUnavailable, match="moved"):
        admit_and_lose_the_file()
    away.rename(ledger.path)

    assert not bench.consumer.hints.heard()
    assert [] == producer.status([job.id])


def test_only_the_owner_can_reach_the_sockets(bench, sockets):
    """Directory 0700, socket 0600, whatever the umask."""
    modes = {stat.S_IMODE(path.stat().st_mode) for path in sockets.iterdir()}

    assert (0o700, {0o600}) == (stat.S_IMODE(sockets.stat().st_mode), modes)


def test_a_socket_of_a_dead_worker_is_cleared_away(bench, ledger, sockets):
    """What a killed process left behind does no harm, and goes with the next hint."""
    program = f"from pathlib import Path; from benteng.store.sqlite.hints import Ear; Ear(Path({str(ledger.path)!r}),"
    died = subprocess.run([sys.executable, "-c", f"{program} 'default'); import os; os._exit(1)"], check=False)
    left = len(list(sockets.iterdir()))

    bench.admitted()

    assert (1, 2, 1) == (died.returncode, left, len(list(sockets.iterdir())))
    assert bench.consumer.hints.heard()


def test_closing_takes_the_socket_along(bench, sockets):
    """A worker that ends in order leaves nothing."""
    bench.consumer.close()

    assert [] == list(sockets.iterdir())


@pytest.mark.parametrize("how", ["open to others", "a link", "a file"])
def test_a_strange_directory_means_no_hints(ledger, sockets, tmp_path, how):
    """Where the sockets cannot lie safely there are none, and every verb works."""
    if how == "a file":
        sockets.touch()
    elif how == "a link":
        (tmp_path / "other").mkdir(mode=0o700)
        sockets.symlink_to(tmp_path / "other")
    else:
        sockets.mkdir()
        sockets.chmod(0o755)
    bench = Bench(ledger)

    job = bench.admitted()

    assert bench.consumer.hints is None
    assert [job.id] == [grant.job.id for grant in bench.claim()]
    assert how != "a link" or [] == list((tmp_path / "other").iterdir())


def test_a_deep_directory_is_no_obstacle(tmp_path):
    """An address of a socket has 108 bytes; a path may have 4096."""
    deep = tmp_path.joinpath(*["d" * 100] * 3)
    deep.mkdir(parents=True)
    ledger = SqliteLedger(deep)
    bench = Bench(ledger)
    assert not bench.consumer.hints.heard()

    bench.admitted()

    assert bench.consumer.hints.heard()
    ledger.close()


def test_a_full_socket_holds_nobody_up(ledger):
    """Who is told more than it can take is told nothing more; who tells never waits."""
    ear = Ear(ledger.path, "default")
    for _ in range(2_000):
        ring(ledger.path, ["default"])

    rounds = 0
    while ear.heard():
        rounds += 1
    ear.close()

    assert 1 <= rounds <= 2_000 // HEARD_MAX


def test_sockets_that_were_deleted_are_made_again(bench, sockets):
    """A worker that nobody finds any more is found again after its next sign of life."""
    before = bench.consumer.hints
    for path in sockets.iterdir():
        path.unlink()

    bench.consumer.register(FACTS)
    bench.admitted()

    assert before is not bench.consumer.hints
    assert bench.consumer.hints.heard()


def test_a_forked_child_leaves_the_socket_alone(bench, sockets):
    """Closing in a child takes nothing from the parent."""
    pid = os.fork()
    if pid == 0:
        bench.consumer.close()
        os._exit(0)
    os.waitpid(pid, 0)

    bench.admitted(LOW)

    assert bench.consumer.hints.heard()
    assert 1 == len(list(sockets.iterdir()))
