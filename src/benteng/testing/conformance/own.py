"""Promises of `status` and `cancel`: a producer sees and stops its own jobs, and nothing else."""

from __future__ import annotations

from benteng.decide import Disposition
from benteng.lifecycle import QuarantineReason, State
from benteng.testing.bench import Bench, proof, quarantine, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import LOW, MEDIUM, Twin

UNKNOWN = "01890000-0000-7000-8000-000000000000"
STRANGER = "svc:stranger"


class OwnPromises(Promises):
    """Verbs `status` and `cancel`."""

    def test_status_tells_state_error_and_times(self, bench: Bench) -> None:
        """A retried job says that it waits, until when, and why."""
        grant = bench.started()
        bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=5.0, error="db away"))

        (status,) = bench.producer.status([grant.job.id])

        assert (State.SCHEDULED, "db away", None) == (status.state, status.error, status.result)
        assert bench.clock() + 5_000_000 == status.available_at

    def test_status_brings_the_result(self, bench: Bench) -> None:
        """A completed job brings its result bytes and when it finished."""
        grant = bench.started()
        bench.settle(settlement(grant, result=b'{"n":1}'))

        (status,) = bench.producer.status([grant.job.id])

        assert (State.COMPLETED, b'{"n":1}', bench.clock()) == (status.state, status.result, status.finished_at)

    def test_status_of_a_quarantined_job_says_why(self, bench: Bench) -> None:
        """A quarantined job brings its reason."""
        grant = bench.started()
        bench.settle(quarantine(grant, QuarantineReason.SUSPICIOUS))

        (status,) = bench.producer.status([grant.job.id])

        assert (State.QUARANTINED, QuarantineReason.SUSPICIOUS) == (status.state, status.reason)

    def test_status_leaves_out_what_is_not_the_callers(self, ledger: Twin, bench: Bench) -> None:
        """Unknown and foreign ids are left out alike, as if they did not exist."""
        own, foreign = bench.admitted(), bench.admitted()
        ledger.give_away(foreign.id, STRANGER)

        statuses = bench.producer.status([UNKNOWN, foreign.id, own.id])

        assert [own.id] == [status.job_id for status in statuses]

    def test_cancel_of_a_waiting_job(self, bench: Bench) -> None:
        """Ready, scheduled, held: cancelled at once, with one record, and never started."""
        jobs = [
            bench.admitted(),
            bench.admitted(available_at=bench.clock() + 1_000_000),
            bench.admitted(entry=State.HELD),
        ]

        cancelled = bench.producer.cancel([job.id for job in jobs], "a reason")

        assert [State.CANCELLED] * 3 == [answer.state for answer in cancelled]
        assert ["cancelled"] * 3 == bench.states(*jobs)
        assert all("cancelled" == bench.events(job.id)[-1] or "freed" in bench.events(job.id) for job in jobs)
        bench.due()
        assert [] == bench.claim(10)

    def test_cancel_of_a_running_job_only_asks(self, bench: Bench) -> None:
        """A running job goes on until its worker says so; the worker hears it by `extend`."""
        grant = bench.started()

        (answer,) = bench.producer.cancel([grant.job.id], "a reason")

        assert State.RUNNING is answer.state
        assert [(False, True)] == [(e.lost, e.cancel) for e in bench.consumer.extend([proof(grant)])]

    def test_cancel_wins_over_going_back(self, bench: Bench) -> None:
        """Once cancel was asked, retry, crash, snooze and hand-back all end as cancelled."""
        for disposition in (
            Disposition.RETRY,
            Disposition.CRASH,
            Disposition.SNOOZE,
            Disposition.HAND_BACK,
            Disposition.INTERRUPT,
        ):
            grant = bench.started()
            bench.producer.cancel([grant.job.id], "a reason")
            started = disposition is not Disposition.HAND_BACK

            (answer,) = bench.settle(settlement(grant, disposition, delay_seconds=1.0, started=started))

            assert State.CANCELLED is answer.state, disposition

    def test_completion_wins_over_cancel(self, bench: Bench) -> None:
        """What is done is done: a job that completed in spite of a cancel is completed."""
        grant = bench.started()
        bench.producer.cancel([grant.job.id], "a reason")

        (answer,) = bench.settle(settlement(grant))

        assert State.COMPLETED is answer.state

    def test_cancelled_and_lost_job_is_cancelled(self, bench: Bench) -> None:
        """A repeatable job whose cancel was asked is not run again when its worker dies."""
        grant = bench.started()
        bench.producer.cancel([grant.job.id], "a reason")
        bench.advance(31)

        assert [State.CANCELLED] == [answer.state for answer in bench.reclaim()]

    def test_cancel_leaves_out_unknown_foreign_and_terminal(self, ledger: Twin, bench: Bench) -> None:
        """Ids that are not the caller's to cancel are left out, and nothing happens to them."""
        foreign, done = bench.admitted(MEDIUM, operation="f", priority=9), bench.started()
        ledger.give_away(foreign.id, STRANGER)
        bench.settle(settlement(done))

        assert [] == bench.producer.cancel([UNKNOWN, foreign.id, done.job.id], "a reason")
        assert ["ready", "completed"] == bench.states(foreign, done)

    def test_cancel_twice_says_the_same(self, bench: Bench) -> None:
        """The second cancel of a job finds it terminal and leaves it out; the first one's record stays the only one."""
        job = bench.admitted()
        bench.producer.cancel([job.id], "a reason")

        assert [] == bench.producer.cancel([job.id], "a reason")
        assert 1 == bench.events(job.id).count("cancelled")

    def test_damaged_job_can_be_cancelled(self, ledger: Twin, bench: Bench) -> None:
        """A row that cannot be read can still be stopped, and does not stop the batch (I15)."""
        jobs = [bench.admitted() for _ in range(2)]
        ledger.damage(jobs[0].id)

        answers = bench.operator.cancel([job.id for job in jobs], "a reason")

        assert [State.CANCELLED] * 2 == [answer.state for answer in answers]

    def test_operator_cancels_jobs_of_every_origin(self, ledger: Twin, bench: Bench) -> None:
        """A person may cancel what a producer may not."""
        job = bench.admitted()
        ledger.give_away(job.id, STRANGER)

        (answer,) = bench.operator.cancel([job.id], "a reason")

        assert (LOW.name, State.CANCELLED) == (job.type, answer.state)
