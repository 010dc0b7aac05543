"""What is dead at the head of a line is not walked again by each claim, and nobody waits long for that.

A transaction pins the horizon while jobs fail again and again: their entries stay in the indexes, before all that wait.
"""

from __future__ import annotations

import psycopg
import pytest

from benteng.decide import Disposition
from benteng.testing.bench import Bench, settlement
from benteng.testing.ledger import TYPES, make_policy
from benteng.testing.postgres import superuser

STORM = make_policy("t.storm@1", limits={"attempts_max": 25})
JOBS, ROUNDS = 120, 20
DEAD = JOBS * (ROUNDS - 1)
FEW = 10 * JOBS
READ = "select idx_tup_read from pg_stat_user_indexes where indexrelname = %s"
HAND_BACK = """
  select state
  from benteng_v1.settle(
    array[(%s, %s, %s, 'hand_back', 0, null, '', '', null, true, false)::benteng_v1.settlement], '{}', false)
"""


class Storm:
    """Jobs that fail and come back, one that is claimed before all that, and a transaction that pins the horizon."""

    def __init__(self, ledger) -> None:
        self.ledger = ledger
        self.bench = Bench(ledger, types=(*TYPES, STORM))
        self.bench.admit(self.bench.job(STORM), self.bench.job(STORM))
        self.first, self.second = self.bench.consumer.claim(2, [STORM.name])
        self.bench.admit(*(self.bench.job(STORM) for _ in range(JOBS)))
        self.pin = superuser(ledger.site)
        self.pin.execute("begin isolation level repeatable read")
        self.pin.execute("select 1 from benteng.job limit 1")

    def fail(self, rounds: int = ROUNDS) -> None:
        """Let all fail so often, and come due again."""
        for _ in range(rounds):
            grants = self.bench.consumer.claim(JOBS, [STORM.name])
            self.bench.consumer.settle([settlement(each, Disposition.RETRY) for each in grants])
            assert JOBS == len(grants)
            self.bench.advance(61)
            self.bench.stage(1_000)

    def claim(self, n: int) -> list[str]:
        """Return who is claimed."""
        return [grant.job.id for grant in self.bench.consumer.claim(n, [STORM.name])]

    def read(self, facet, index: str) -> int:
        """Return how many entries of an index were read so far, when a facet's session has told what it read."""
        facet._connected().ask(b"select true as told from pg_stat_force_next_flush()")
        with superuser(self.ledger.site) as owner:
            return (owner.execute(READ, [index]).fetchone() or (0,))[0]


@pytest.fixture
def storm(ledger):
    """All have failed often, and stand in line again. Whoever claims, and the keeper, know what is dead."""
    storm = Storm(ledger)
    storm.fail()
    assert 10 == len(storm.claim(10))
    storm.bench.stage()
    yield storm
    storm.pin.close()


def test_what_is_dead_is_walked_once_in_a_while(storm):
    """A session that has seen it begins behind it. One that has not reads all of it."""
    newcomer = storm.ledger.consumer()
    counts = [storm.read(storm.bench.consumer, "job_ready")]
    for _ in range(3):
        assert 10 == len(storm.claim(10))
    counts.append(storm.read(storm.bench.consumer, "job_ready"))
    assert 10 == len(newcomer.claim(10, [STORM.name]))
    counts.append(storm.read(newcomer, "job_ready"))

    assert FEW >= counts[1] - counts[0]
    assert DEAD <= counts[2] - counts[1]


def test_what_was_due_is_walked_once_in_a_while(storm):
    """The same for the keeper, who looks for what comes due."""
    before = storm.read(storm.bench.keeper, "job_due")
    for _ in range(3):
        storm.bench.stage()

    assert FEW >= storm.read(storm.bench.keeper, "job_due") - before


def test_who_admits_asks_at_the_end_of_the_line(storm):
    """Whether to tell idle workers depends on whether somebody waits, and those stand behind all that is dead."""
    before = storm.read(storm.bench.producer, "job_ready")
    storm.bench.admitted(STORM)

    assert FEW >= storm.read(storm.bench.producer, "job_ready") - before


@pytest.mark.parametrize("together", [1, 2])
def test_who_admits_where_nothing_is_ready_walks_what_is_dead_once(storm, together):
    """All of it is read to know that; then only what came due lately, and who is ready there is seen."""
    assert JOBS == len(storm.claim(1_000)) + 10
    counts = [storm.read(storm.bench.producer, "job_ready")]
    for _ in range(4):
        storm.bench.admit(*(storm.bench.job(STORM) for _ in range(together)))
        counts.append(storm.read(storm.bench.producer, "job_ready"))
        assert together == len(storm.claim(1_000))

    assert DEAD <= counts[1] - counts[0]
    assert FEW >= counts[-1] - counts[1]


def test_what_was_passed_by_at_the_end_of_a_line_rings_again(storm):
    """Who looks only at the end of a dead line does not see who waits for long: a hint more is sent, never one less."""
    storm.claim(1_000)
    storm.bench.admitted(STORM)
    with superuser(storm.ledger.site) as hearing:
        hearing.execute("listen benteng")
        storm.claim(1_000)
        storm.bench.admitted(STORM)
        heard = [each.payload for each in hearing.notifies(timeout=5, stop_after=1)]
    assert len(heard) == 1


def test_an_urgent_job_is_the_next(storm):
    """Each priority is a lane of its own: who comes with a better one stands before the place of no other."""
    urgent = storm.bench.admitted(STORM, priority=0)

    assert [urgent.id] == storm.claim(1)


def test_who_comes_back_to_an_earlier_place_does_not_wait_long(storm):
    """An attempt that was handed back stands before all others again, and is found after two seconds at the latest."""
    storm.bench.consumer.settle([settlement(storm.first, Disposition.HAND_BACK, started=False)])
    storm.bench.advance(2.1)

    assert [storm.first.job.id] == storm.claim(1)


def test_a_commit_that_was_late_is_found(storm):
    """What was under way when the place was taken, and is committed behind it, is found as soon."""
    with psycopg.connect(storm.ledger.site.dsn("t_default")) as late:
        proof = settlement(storm.second).proof
        late.execute(HAND_BACK, [proof.job_id, proof.fence, proof.token])
        storm.claim(10)
        late.commit()
    storm.bench.advance(2.1)

    assert [storm.second.job.id] == storm.claim(1)


def test_a_commit_under_way_is_found_at_once(storm):
    """A place is never later than a twentieth of a second ago: what was due since then need not be committed yet."""
    storm.claim(JOBS)
    job = storm.bench.admitted(STORM)
    (grant,) = storm.bench.consumer.claim(1, [STORM.name])
    storm.bench.advance(0.04)
    newcomer = storm.ledger.consumer()
    with psycopg.connect(storm.ledger.site.dsn("t_default")) as late:
        late.execute(HAND_BACK, [grant.job.id, grant.lease.fence, grant.lease.token])
        assert [] == newcomer.claim(10, [STORM.name])
        late.commit()

    assert [job.id] == [grant.job.id for grant in newcomer.claim(1, [STORM.name])]


def test_a_clock_that_went_back_makes_a_place_void(storm):
    """What is admitted by the clock of an hour ago is claimed at once, though its place is far before the last one."""
    storm.claim(JOBS)
    storm.bench.advance(0.5)
    assert [] == storm.claim(1)
    storm.bench.advance(-3_600)
    job = storm.bench.admitted(STORM)

    assert [job.id] == storm.claim(1)


def test_nobody_is_lost(storm):
    """All that ever stood in line are claimed, once."""
    storm.bench.consumer.settle([settlement(storm.first, Disposition.HAND_BACK, started=False)])
    storm.bench.advance(2.1)

    found = storm.claim(JOBS + 10)

    assert JOBS - 10 + 1 == len(found) == len(set(found))


def test_what_ran_is_walked_once_in_a_while(ledger):
    """The same for the keeper, who asks whether anything runs: when nothing does, that is known for five seconds."""
    storm = Storm(ledger)
    storm.bench.settle(settlement(storm.first), settlement(storm.second))
    storm.fail()
    storm.bench.advance(10)
    counts = [storm.read(storm.bench.keeper, "job_running")]
    storm.bench.stage()
    counts.append(storm.read(storm.bench.keeper, "job_running"))
    for _ in range(4):
        storm.bench.advance(1)
        storm.bench.stage()
    counts.append(storm.read(storm.bench.keeper, "job_running"))
    storm.pin.close()

    assert DEAD <= counts[1] - counts[0]
    assert FEW >= counts[2] - counts[1]
