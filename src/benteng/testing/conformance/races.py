"""Promises under contention: two real connections, in threads and in processes, hundreds of times."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from benteng.errors import PolicyError
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.job import Job
from benteng.lifecycle import State
from benteng.store.records import Admission, LeaseProof, Replay, Settlement
from benteng.testing.bench import Bench, proof, quarantine, records, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import ACCEPTS, LOW, MEDIUM, Twin
from benteng.testing.race import Entry, Task, in_processes, in_threads

ROUNDS = 100
JOBS = 60
HALTS = 40
IDLE_CLAIMS_MAX = 200
KEYS = ("host:a", "host:b", "host:c")


def admit_one_by_one(ledger: Twin, jobs: Any) -> list[list[str]]:
    """Admit each job by itself; answer (disposal, job id) of each."""
    producer = ledger.producer()
    answers: list[list[str]] = []
    for job in msgspec.convert(jobs, list[Job]):
        (receipt,) = producer.admit([Admission(job)])
        answers.append([receipt.disposal.value, receipt.job_id])
    return answers


def claim_until_empty(ledger: Twin, _: Any) -> list[list[Any]]:
    """Claim up to 3 at a time until nothing is left; answer (job id, fence) of each."""
    consumer, taken = ledger.consumer(), list[list[Any]]()
    while grants := consumer.claim(3, ACCEPTS):
        taken += [[grant.job.id, grant.lease.fence] for grant in grants]
    return taken


def work_until_done(ledger: Twin, total: Any) -> list[str]:
    """Claim and complete until as many jobs as there are were completed, by anybody; answer the ids of our own."""
    consumer, producer, done, idle = ledger.consumer(), ledger.producer(), list[str](), 0
    ids: list[str] = total
    while idle < IDLE_CLAIMS_MAX:
        grants = consumer.claim(2, ACCEPTS)
        done += [answer.job_id for answer in consumer.settle([settlement(grant) for grant in grants])]
        idle = 0 if grants else idle + 1
        if not grants and all(status.state is State.COMPLETED for status in producer.status(ids)):
            break
    return done


def settle_one_by_one(ledger: Twin, settlements: Any) -> list[str]:
    """Settle each by itself; answer the ids that were accepted."""
    consumer = ledger.consumer()
    each = msgspec.convert(settlements, list[Settlement])
    return [answer.job_id for one in each for answer in consumer.settle([one])]


def extend_one_by_one(ledger: Twin, proofs: Any) -> list[str]:
    """Renew each lease by itself; answer the ids that were renewed."""
    consumer = ledger.consumer()
    each = msgspec.convert(proofs, list[LeaseProof])
    return [answer.job_id for one in each for answer in consumer.extend([one]) if not answer.lost]


def reclaim_one_by_one(ledger: Twin, tries: Any) -> list[str]:
    """Take back one job at a time; answer the ids."""
    keeper, count = ledger.keeper(), int(tries)
    return [answer.job_id for _ in range(count) for answer in keeper.reclaim(1)]


def replay_one_by_one(ledger: Twin, jobs: Any) -> list[str]:
    """Bring each job back from quarantine; answer the ids of those that it was let."""
    operator, back = ledger.operator(), list[str]()
    for job in msgspec.convert(jobs, list[Job]):
        with contextlib.suppress(PolicyError):
            operator.replay(Replay(job, State.READY, "race"))
            back.append(job.id)
    return back


def switch_on_and_off(ledger: Twin, times: Any) -> list[int]:
    """Halt and open the type LOW again and again; end open."""
    operator, count = ledger.operator(), int(times)
    for _ in range(count):
        operator.tighten(Control(ControlScope.TYPE, LOW.name, ControlMode.HALT, "race"))
        operator.loosen(Control(ControlScope.TYPE, LOW.name, ControlMode.OPEN, "race"))
    return []


def claim_one_by_one(ledger: Twin, total: Any) -> int:
    """Claim one at a time until as many were started as there are; answer how many."""
    consumer, count, idle = ledger.consumer(), 0, 0
    while count < int(total) and idle < 100 * IDLE_CLAIMS_MAX:
        grants = consumer.claim(1, ACCEPTS)
        count, idle = count + len(grants), 0 if grants else idle + 1
    return count


TASKS: dict[str, Task] = {
    task.__name__: task
    for task in (
        admit_one_by_one,
        claim_until_empty,
        work_until_done,
        settle_one_by_one,
        extend_one_by_one,
        reclaim_one_by_one,
        replay_one_by_one,
        switch_on_and_off,
        claim_one_by_one,
    )
}

Race = Callable[[Twin, Sequence[Entry]], list[Any]]


def _threads(ledger: Twin, entries: Sequence[Entry]) -> list[Any]:
    return in_threads(ledger, TASKS, entries)


def _processes(ledger: Twin, entries: Sequence[Entry]) -> list[Any]:
    return in_processes(ledger, __name__, entries)


def _at_once(race: Race, ledger: object, *entries: Entry) -> list[Any]:
    return race(cast("Twin", ledger), entries)


BOTH = pytest.mark.parametrize("race", [_threads, _processes], ids=["threads", "processes"])


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value)


class RacePromises(Promises):
    """Two real connections at the same moment."""

    @BOTH
    def test_racing_duplicates_admit_exactly_one(self, bench: Bench, race: Race) -> None:
        """Of all callers with one key exactly one is admitted, and the others get its receipt."""
        mine, theirs = ([bench.job(MEDIUM, operation=str(n)) for n in range(ROUNDS)] for _ in range(2))

        one, other = _at_once(
            race, bench.ledger, Entry("admit_one_by_one", _plain(mine)), Entry("admit_one_by_one", _plain(theirs))
        )

        for first, second in zip(one, other, strict=True):
            assert ["admitted", "duplicate"] == sorted([first[0], second[0]])
            assert first[1] == second[1]

    @BOTH
    def test_racing_conflicts_admit_exactly_one(self, bench: Bench, race: Race) -> None:
        """Two payloads under one key: one enters and the other is a conflict that names it."""
        mine = [bench.job(MEDIUM, operation=str(n)) for n in range(ROUNDS)]
        theirs = [bench.job(MEDIUM, operation=str(n), payload=b'{"x":"other"}') for n in range(ROUNDS)]

        one, other = _at_once(
            race, bench.ledger, Entry("admit_one_by_one", _plain(mine)), Entry("admit_one_by_one", _plain(theirs))
        )

        for first, second in zip(one, other, strict=True):
            assert ["admitted", "conflict"] == sorted([first[0], second[0]])
            assert first[1] == second[1]

    @BOTH
    def test_racing_claims_never_share_a_job(self, bench: Bench, race: Race) -> None:
        """Each job is started once, each fence is given once."""
        jobs = [bench.job() for _ in range(3 * ROUNDS)]
        bench.admit(*jobs)

        taken = [
            grant for answer in _at_once(race, bench.ledger, *[Entry("claim_until_empty")] * 2) for grant in answer
        ]

        assert sorted(job.id for job in jobs) == sorted(job_id for job_id, _ in taken)
        assert len(jobs) == len({fence for _, fence in taken})

    @BOTH
    def test_racing_workers_exclude_each_other(self, bench: Bench, race: Race) -> None:
        """Over few keys two workers get everything done, once each, and never hold one key at a time."""
        jobs = [
            bench.job(MEDIUM, operation=str(n), resources=tuple(sorted({KEYS[n % 3], KEYS[n % 2]})))
            for n in range(JOBS)
        ]
        bench.admit(*jobs)
        ids = [job.id for job in jobs]

        done = _at_once(race, bench.ledger, *[Entry("work_until_done", ids)] * 2)

        assert sorted(ids) == sorted(done[0] + done[1])

    @BOTH
    def test_settle_against_reclaim(self, bench: Bench, race: Race) -> None:
        """Of a worker that settles late and a keeper that takes back, exactly one has its way (case C17)."""
        bench.admit(*(bench.job() for _ in range(ROUNDS)))
        grants = bench.claim(ROUNDS)
        bench.advance(31)

        settled, reclaimed = _at_once(
            race,
            bench.ledger,
            Entry("settle_one_by_one", _plain([settlement(grant) for grant in reversed(grants)])),
            Entry("reclaim_one_by_one", ROUNDS),
        )

        assert {} == Counter(settled) & Counter(reclaimed)
        assert sorted(grant.job.id for grant in grants) == sorted(settled + reclaimed)
        assert {State.COMPLETED} >= {bench.state(job_id) for job_id in settled}
        assert {State.READY} >= {bench.state(job_id) for job_id in reclaimed}

    @BOTH
    def test_two_settlements_of_one_attempt(self, bench: Bench, race: Race) -> None:
        """A settlement sent twice at once is accepted once."""
        bench.admit(*(bench.job() for _ in range(ROUNDS)))
        grants = bench.claim(ROUNDS)
        batch = _plain([settlement(grant) for grant in grants])

        one, other = _at_once(race, bench.ledger, *[Entry("settle_one_by_one", batch)] * 2)

        assert sorted(grant.job.id for grant in grants) == sorted(one + other)

    @BOTH
    def test_two_replays_of_one_job(self, bench: Bench, race: Race) -> None:
        """A job that two people bring back at once comes back once, and starts once."""
        bench.admit(*(bench.job() for _ in range(JOBS)))
        grants = bench.claim(JOBS)
        bench.settle(*(quarantine(grant) for grant in grants))
        again = [replace(grant.job, generation=1) for grant in grants]

        one, other = _at_once(race, bench.ledger, *[Entry("replay_one_by_one", _plain(again))] * 2)

        assert sorted(job.id for job in again) == sorted(one + other)
        assert sorted(one + other) == sorted(grant.job.id for grant in bench.claim(2 * JOBS))

    @BOTH
    def test_extend_against_reclaim(self, bench: Bench, race: Race) -> None:
        """A lease at its end is either renewed or taken back, never both."""
        bench.admit(*(bench.job() for _ in range(ROUNDS)))
        grants = bench.claim(ROUNDS)
        bench.advance(29)
        renewed = _at_once(
            race,
            bench.ledger,
            Entry("extend_one_by_one", _plain([proof(grant) for grant in grants])),
            Entry("reclaim_one_by_one", ROUNDS),
        )

        assert [sorted(grant.job.id for grant in grants), []] == [sorted(renewed[0]), renewed[1]]

    @BOTH
    def test_tighten_against_claim(self, bench: Bench, race: Race) -> None:
        """After a switch committed no claim of its type commits until it is opened again: the log shows none."""
        bench.admit(*(bench.job() for _ in range(ROUNDS)))

        _, count = _at_once(race, bench.ledger, Entry("switch_on_and_off", HALTS), Entry("claim_one_by_one", ROUNDS))

        assert ROUNDS == count
        assert [] == list(_started_while_halted(records(bench.audit())))


def _started_while_halted(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    halted, wrong = False, list[dict[str, Any]]()
    for record in log:
        match record["event"]:
            case "tightened":
                halted = True
            case "loosened":
                halted = False
            case "claimed" if halted:
                wrong.append(record)
            case _:
                pass
    return wrong
