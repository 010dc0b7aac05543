"""Promises of the operator's looks and switches: `find`, `show`, `controls`, `tighten`, `loosen`, `types`, `health`."""

from __future__ import annotations

import pytest

from benteng.decide import Disposition
from benteng.errors import PolicyError
from benteng.evidence import Control, ControlMode, ControlScope
from benteng.lifecycle import QuarantineReason, State
from benteng.store.records import Query
from benteng.testing.bench import Bench, quarantine, records, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import ELSEWHERE, LOW, MEDIUM, TYPES, Twin, make_policy, type_row

CANARY = b"canary-payload-9d1c"
UNKNOWN = "01890000-0000-7000-8000-000000000000"


class FindPromises(Promises):
    """Verb `find`."""

    def test_newest_first(self, bench: Bench) -> None:
        """A list starts with the job that came last."""
        jobs = [bench.admitted() for _ in range(3)]

        page = bench.operator.find(Query())

        assert [job.id for job in reversed(jobs)] == [line.job_id for line in page.lines]

    def test_every_state_is_found(self, bench: Bench) -> None:
        """Active, quarantined and finished jobs are all in the list, each once."""
        done, bad = bench.started(), bench.started()
        bench.settle(settlement(done), quarantine(bad))
        jobs = [bench.admitted(), bench.admitted(entry=State.HELD), bench.admitted()]
        bench.producer.cancel([jobs[2].id], "a reason")

        lines = bench.operator.find(Query()).lines

        assert {
            done.job.id: State.COMPLETED,
            bad.job.id: State.QUARANTINED,
            jobs[0].id: State.READY,
            jobs[1].id: State.HELD,
            jobs[2].id: State.CANCELLED,
        } == {line.job_id: line.state for line in lines}
        assert 5 == len(lines)

    def test_pages_cover_everything_once(self, bench: Bench) -> None:
        """Following the cursor gives each job once, in order, and ends; also while new jobs come in."""
        jobs = [bench.admitted() for _ in range(7)]
        seen: list[str] = []
        after = ""
        while True:
            page = bench.operator.find(Query(after=after, limit=3))
            seen += [line.job_id for line in page.lines]
            bench.admitted()
            if not page.next:
                break
            after = page.next

        assert [job.id for job in reversed(jobs)] == seen

    def test_filters(self, bench: Bench) -> None:
        """Each filter alone finds exactly what it names."""
        bad = bench.started(MEDIUM, operation="a", resources=("host:x",), actor="svc:ana", request_id="req-9")
        bench.settle(quarantine(bad, QuarantineReason.SUSPICIOUS))
        bench.admitted(ELSEWHERE)
        queries = [
            Query(states=(State.QUARANTINED,)),
            Query(type=MEDIUM.name),
            Query(actor="svc:ana"),
            Query(request_id="req-9"),
            Query(resource="host:x"),
            Query(reason=QuarantineReason.SUSPICIOUS),
        ]

        found = [[line.job_id for line in bench.operator.find(query).lines] for query in queries]

        assert [[bad.job.id]] * len(queries) == found
        assert [] == list(bench.operator.find(Query(origin="svc:nobody")).lines)
        assert 2 == len(bench.operator.find(Query(origin=bench.producer.origin)).lines)

    def test_lists_never_show_payloads(self, bench: Bench) -> None:
        """No list, status, receipt or audit record holds a payload byte (case C97)."""
        job = bench.admitted(payload=b'{"x":"' + CANARY + b'"}')
        (grant,) = bench.claim()
        bench.settle(quarantine(grant))

        shown = repr(bench.operator.find(Query())) + repr(bench.producer.status([job.id])) + repr(bench.audit())

        assert CANARY.decode() not in shown

    def test_damaged_row_hides_no_other(self, ledger: Twin, bench: Bench) -> None:
        """One row that cannot be read: lists and views of all others are as they were (I15)."""
        jobs = [bench.admitted() for _ in range(3)]
        ledger.damage(jobs[1].id)

        listed = [line.job_id for line in bench.operator.find(Query()).lines]

        assert {jobs[0].id, jobs[2].id} <= set(listed)
        assert [State.READY, State.READY] == [bench.state(jobs[0].id), bench.state(jobs[2].id)]
        assert 2 <= len(bench.producer.status([job.id for job in jobs]))
        bench.claim(3)

    def test_unknown_job_is_none(self, bench: Bench) -> None:
        """A job that does not exist is no error."""
        assert bench.operator.show(UNKNOWN) is None
        assert bench.operator.show("' or 1=1 --") is None


class ShowPromises(Promises):
    """Verb `show`."""

    def test_show_counts_who_is_ahead(self, bench: Bench) -> None:
        """A ready job is told how many come before it."""
        bench.admit(bench.job(), bench.job())
        last = bench.admitted()

        assert 2 == bench.view(last.id).ahead

    def test_show_names_the_switch(self, bench: Bench) -> None:
        """A job that waits for a switch is told which, and why."""
        job = bench.admitted()
        bench.tighten(ControlMode.HALT)

        control = bench.view(job.id).control

        assert control is not None
        assert (ControlMode.HALT, "a reason") == (control.mode, control.reason)

    def test_show_brings_the_jobs_history(self, bench: Bench) -> None:
        """The audit records of the job, in order."""
        grant = bench.started()
        bench.settle(settlement(grant))

        events = [record["event"] for record in records(bench.view(grant.job.id).audit)]

        assert ["admitted", "claimed", "completed"] == events


class ControlPromises(Promises):
    """Verbs `tighten`, `loosen`, `controls`."""

    def test_switches_that_are_not_open_are_listed(self, bench: Bench) -> None:
        """What somebody closed is listed, with the reason; what was opened again is not."""
        bench.tighten(ControlMode.HALT)
        bench.tighten(ControlMode.HOLD, "default", ControlScope.POOL)
        bench.loosen("default", ControlScope.POOL)

        assert [Control(ControlScope.TYPE, LOW.name, ControlMode.HALT, "a reason")] == bench.operator.controls()

    @pytest.mark.parametrize("looser", [ControlMode.OPEN, ControlMode.HOLD, ControlMode.DIVERT])
    def test_tighten_never_loosens(self, bench: Bench, looser: ControlMode) -> None:
        """To tighten to something looser is refused, by keeper and operator, and the switch stays."""
        bench.tighten(ControlMode.HALT)
        control = Control(ControlScope.TYPE, LOW.name, looser, "a reason")

        with pytest.raises(PolicyError):
            bench.operator.tighten(control)
        with pytest.raises(PolicyError):
            bench.keeper.tighten(control)

        assert [ControlMode.HALT] == [each.mode for each in bench.operator.controls()]

    def test_keeper_can_tighten(self, bench: Bench) -> None:
        """The breaker stops the flow by itself."""
        bench.admitted()
        bench.keeper.tighten(Control(ControlScope.TYPE, LOW.name, ControlMode.HALT, "too many failures"))

        assert [] == bench.claim()

    def test_every_turn_of_a_switch_is_recorded(self, bench: Bench) -> None:
        """Who closed and opened what, and why, is in the log."""
        bench.tighten(ControlMode.HOLD)
        bench.tighten(ControlMode.HALT)
        bench.loosen()

        assert ["tightened", "tightened", "loosened"] == [e for e in bench.events() if e.endswith("ened")]

    def test_switch_of_one_type_leaves_others_alone(self, bench: Bench) -> None:
        """The kill switch is as narrow as it was set."""
        other = bench.admitted(MEDIUM, operation="a")
        bench.tighten(ControlMode.HALT)

        assert [other.id] == [grant.job.id for grant in bench.claim(5)]


class TypePromises(Promises):
    """Verbs `types` and `apply_types`."""

    def test_types_are_what_was_applied(self, bench: Bench) -> None:
        """The table holds the applied bytes and digests."""
        assert sorted(map(type_row, TYPES), key=lambda row: row.name) == sorted(
            bench.operator.types(), key=lambda row: row.name
        )

    def test_apply_says_what_changed(self, bench: Bench) -> None:
        """Rows that are as they were are no change and leave no record."""
        changed = make_policy(LOW.name, limits={"attempts_max": 2})
        before = len(bench.audit())

        assert [] == bench.operator.apply_types([type_row(LOW)], "a reason")
        assert before == len(bench.audit())
        assert [LOW.name] == bench.operator.apply_types([type_row(changed), type_row(MEDIUM)], "a reason")
        assert "policy_applied" in [record["event"] for record in records(bench.audit()[before:])]

    def test_rows_not_given_stay(self, bench: Bench) -> None:
        """Applying one type removes no other."""
        bench.operator.apply_types([type_row(make_policy("t.new@1"))], "a reason")

        assert len(TYPES) + 1 == len(bench.operator.types())

    def test_row_that_is_no_policy_is_refused(self, bench: Bench) -> None:
        """Bytes that are no policy, a wrong digest or another name: an error, and nothing of the call is applied."""
        good = type_row(make_policy("t.new@1"))
        bad = [
            type(good)("t.bad@1", b"{}", good.sha256),
            type(good)(good.name, good.policy, "0" * 64),
            type(good)("t.other@1", good.policy, good.sha256),
        ]
        for row in bad:
            with pytest.raises(Exception) as refused:  # noqa: PT011 - which typed error is the store's choice
                bench.operator.apply_types([type_row(make_policy("t.first@1")), row], "a reason")
            assert type(refused.value).__module__.startswith("benteng")

        assert len(TYPES) == len(bench.operator.types())

    def test_new_policy_applies_to_waiting_jobs(self, bench: Bench) -> None:
        """Limits come from the table at the time of the verb, never from the caller."""
        grant = bench.started()
        bench.operator.apply_types([type_row(make_policy(LOW.name, limits={"attempts_max": 1, "crashes_max": 1}))], "r")

        (answer,) = bench.settle(settlement(grant, Disposition.RETRY, delay_seconds=1.0))

        assert QuarantineReason.EXHAUSTED is answer.reason

    def test_health_names_the_store(self, bench: Bench) -> None:
        """Doctor learns store, version and a durability class."""
        health = bench.operator.health()

        assert health.store
        assert health.version
        assert health.durability in {"D0", "D1", "D2"}
