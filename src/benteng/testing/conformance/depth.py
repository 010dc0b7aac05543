"""Promises of an origin's depth: verbs `limit_depth` and `depths`, and what `admit` makes of them."""

from __future__ import annotations

import pytest

from benteng.errors import PolicyError
from benteng.lifecycle import State
from benteng.policy import DEPTH_DEFAULT, DEPTH_MAX
from benteng.store.records import Depth, Disposal
from benteng.testing.bench import Bench, records
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import HIGH, LOW, MEDIUM


class DepthPromises(Promises):
    """An origin has a number of active jobs at most, and an operator sets it."""

    def test_a_full_origin_is_refused(self, bench: Bench) -> None:
        """At its depth nothing more of an origin enters; what entered before is still answered for."""
        first = bench.admitted(MEDIUM, operation="1")
        bench.admitted()
        self._limit(bench, 2)

        (new,) = bench.admit(bench.job())
        (again,) = bench.admit(bench.job(MEDIUM, operation="1"))

        assert (Disposal.REFUSED, "S-depth", None) == (new.disposal, new.rule, new.state)
        assert (Disposal.DUPLICATE, first.id) == (again.disposal, again.job_id)
        assert "S-depth" in [record["rule"] for record in records(bench.audit())]

    def test_room_comes_back(self, bench: Bench) -> None:
        """When a job of the origin has ended another may enter, a moment later."""
        self._limit(bench, 2)
        jobs = [bench.admitted() for _ in range(2)]
        bench.admit(bench.job())
        bench.producer.cancel([jobs[0].id], "make room")
        bench.advance(1)

        assert bench.admitted()
        assert ["S-depth"] == [receipt.rule for receipt in bench.admit(bench.job())]

    def test_a_full_origin_stays_full(self, bench: Bench) -> None:
        """However often it asks, and however much time goes by."""
        self._limit(bench, 1)
        bench.admitted()

        for _ in range(3):
            assert ["S-depth"] * 2 == [receipt.rule for receipt in bench.admit(bench.job(), bench.job())]
            bench.advance(1)

    def test_whatever_has_not_ended_counts(self, bench: Bench) -> None:
        """Each active state takes room once; what ended or is set apart takes none."""
        bench.started(HIGH, operation="1", resources=("host:a",))
        blocked = bench.admitted(HIGH, operation="2", resources=("host:a",))
        bench.claim()
        bench.admitted(entry=State.HELD)
        bench.admitted(available_at=bench.clock() + 60_000_000)
        bench.admitted(entry=State.QUARANTINED)
        self._limit(bench, 5)

        assert State.BLOCKED is bench.state(blocked.id)
        assert bench.admitted()
        bench.advance(1)
        assert ["S-depth"] == [receipt.rule for receipt in bench.admit(bench.job())]

    def test_a_replay_takes_room(self, bench: Bench) -> None:
        """A job that comes back from quarantine is active again, though nothing was admitted."""
        apart = [bench.admitted(entry=State.QUARANTINED) for _ in range(3)]
        self._limit(bench, 3)
        bench.admitted()
        for job in apart[:2]:
            bench.replay(job)
        bench.advance(1)

        assert ["S-depth"] == [receipt.rule for receipt in bench.admit(bench.job())]

    def test_a_deeper_origin_goes_on(self, bench: Bench) -> None:
        """What an operator gives it counts from the next call on, more or less."""
        self._limit(bench, 1)
        bench.admitted()
        bench.admit(bench.job())

        self._limit(bench, 2)
        bench.admitted()
        self._limit(bench, 1)

        assert ["S-depth"] == [receipt.rule for receipt in bench.admit(bench.job())]

    def test_depths_that_somebody_set_are_listed(self, bench: Bench) -> None:
        """Each with its origin; the default is none."""
        origin = bench.producer.origin
        before = bench.operator.depths()
        self._limit(bench, 7)
        listed = bench.operator.depths()
        self._limit(bench, DEPTH_DEFAULT)

        assert ([], [Depth(origin, 7)], []) == (before, listed, bench.operator.depths())

    def test_who_set_a_depth_is_recorded(self, bench: Bench) -> None:
        """With what it was, what it is, and why."""
        self._limit(bench, 7)
        self._limit(bench, 9)

        said = [(r["reason"], r["detail"]) for r in records(bench.audit()) if "depth" in r["detail"]]

        start = f"depth of {bench.producer.origin}: "
        assert [("a reason", f"{start}{DEPTH_DEFAULT} -> 7"), ("a reason", f"{start}7 -> 9")] == said

    @pytest.mark.parametrize("jobs_max", [-1, 0, DEPTH_MAX + 1, 1 << 70])
    def test_no_depth_is_no_limit(self, bench: Bench, jobs_max: int) -> None:
        """Nothing, less, or more than can be counted is refused, and so is a change without a reason."""
        with pytest.raises(PolicyError, match="S-depth"):
            self._limit(bench, jobs_max)
        with pytest.raises(PolicyError, match="S-reason"):
            bench.operator.limit_depth(Depth(bench.producer.origin, 7), " ")

        assert [] == bench.operator.depths()
        assert bench.admitted(LOW)

    def _limit(self, bench: Bench, jobs_max: int) -> None:
        bench.operator.limit_depth(Depth(bench.producer.origin, jobs_max), "a reason")
