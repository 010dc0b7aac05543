"""Promises of `release`: a person agrees that held jobs go on."""

from __future__ import annotations

import pytest

from benteng.errors import PolicyError
from benteng.evidence import ControlMode
from benteng.lifecycle import State
from benteng.testing.bench import Bench, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import LOW, MEDIUM

UNKNOWN = "01890000-0000-7000-8000-000000000000"


class ReleasePromises(Promises):
    """Verb `release`."""

    def test_released_job_starts(self, bench: Bench) -> None:
        """A held job goes on, once, with the reason in its history."""
        job = bench.admitted(MEDIUM, operation="1", entry=State.HELD)
        assert [] == bench.claim()

        (answer,) = bench.operator.release([job.id], "agreed")

        assert (job.id, State.READY) == (answer.job_id, answer.state)
        assert "released" == bench.events(job.id)[-1]
        assert [job.id] == [grant.job.id for grant in bench.claim()]

    def test_released_job_keeps_its_time(self, bench: Bench) -> None:
        """A job whose time has not come is scheduled, and starts when it has."""
        job = bench.admitted(entry=State.HELD, available_at=bench.clock() + 60_000_000)

        (answer,) = bench.operator.release([job.id], "agreed")

        assert State.SCHEDULED is answer.state
        assert [] == bench.claim()
        bench.due()
        assert [job.id] == [grant.job.id for grant in bench.claim()]

    def test_only_held_jobs_are_released(self, bench: Bench) -> None:
        """Ready, running, finished and unknown jobs are left out and stay as they are."""
        done = bench.started()
        bench.settle(settlement(done))
        running = bench.started()
        ready = bench.admitted()

        assert [] == bench.operator.release([ready.id, running.job.id, done.job.id, UNKNOWN], "agreed")
        assert [State.READY, State.RUNNING, State.COMPLETED] == [
            bench.state(job_id) for job_id in (ready.id, running.job.id, done.job.id)
        ]

    @pytest.mark.parametrize("mode", [ControlMode.HOLD, ControlMode.DIVERT])
    def test_nothing_is_released_past_a_switch(self, bench: Bench, mode: ControlMode) -> None:
        """While the type is switched to hold or divert its jobs stay held."""
        job = bench.admitted(entry=State.HELD)
        bench.tighten(mode, LOW.name)

        with pytest.raises(PolicyError):
            bench.operator.release([job.id], "agreed")

        assert State.HELD is bench.state(job.id)

    def test_release_needs_a_reason(self, bench: Bench) -> None:
        """What a person agrees to, says why."""
        job = bench.admitted(entry=State.HELD)

        with pytest.raises(PolicyError):
            bench.operator.release([job.id], "  ")

        assert State.HELD is bench.state(job.id)
