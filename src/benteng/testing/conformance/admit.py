"""Promises of `admit`: who gets in, under which key, and what is recorded of who does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benteng.evidence import ControlMode, ControlScope
from benteng.job import Job, Refs
from benteng.lifecycle import QuarantineReason, State
from benteng.store.records import Admission, Disposal, Refusal
from benteng.testing.bench import Bench, records
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import HIGH, LOW, MEDIUM, POOL, make_policy

FLOOD = 500


class AdmitPromises(Promises):
    """Verb `admit`."""

    def test_admitted_job_is_ready(self, bench: Bench) -> None:
        """A job that is due enters ready, under the id that its gate gave it."""
        job = bench.job()

        (receipt,) = bench.admit(job)

        assert (Disposal.ADMITTED, job.id, State.READY) == (receipt.disposal, receipt.job_id, receipt.state)
        assert [State.READY] == bench.states(job)

    def test_admitted_job_is_stored_as_it_came(self, bench: Bench) -> None:
        """Every field of the job, its exact payload bytes and its envelope come out as they went in."""
        job = bench.admitted(
            MEDIUM, operation="o", payload=b'{"x":"\xc3\xa9 <b>","n":9007199254740991}', resources=("host:b", "host:a")
        )

        (grant,) = bench.claim()

        assert job == bench.view(job.id).job
        assert job == grant.job

    def test_admission_writes_one_audit_record(self, bench: Bench) -> None:
        """The record is there when the receipt is, and it names origin, actor, request and type."""
        job = bench.admitted()

        (record,) = [r for r in records(bench.audit()) if r["job_id"] == job.id]

        assert ("admitted", "", "ready") == (record["event"], record["state_from"], record["state_to"])
        assert (job.origin, job.actor, job.request_id, job.type) == tuple(
            record[name] for name in ("origin", "actor", "request_id", "type")
        )

    def test_nothing_lets_nothing_in(self, bench: Bench) -> None:
        """Begun with nothing, and never waited for: there is no trace of it, and the next one finds its way."""
        before = len(bench.audit())
        bench.producer.admitting(()).begin()

        job = bench.admitted()

        assert ["admitted"] == bench.events(job.id)
        assert before + 1 == len(bench.audit())

    def test_batch_is_answered_in_order(self, bench: Bench) -> None:
        """One receipt for each admission, in the order asked."""
        jobs = [bench.job() for _ in range(20)]

        receipts = bench.admit(*jobs)

        assert [job.id for job in jobs] == [receipt.job_id for receipt in receipts]

    def test_empty_batch_is_no_error(self, bench: Bench) -> None:
        """Nothing asked, nothing answered, nothing recorded."""
        before = bench.audit()

        assert [] == bench.admit()
        assert before == bench.audit()

    def test_delayed_job_enters_scheduled(self, bench: Bench) -> None:
        """A job whose time has not come is scheduled, whatever state was asked for."""
        job = bench.job(available_at=bench.clock() + 60_000_000)

        (receipt,) = bench.admit(job)

        assert State.SCHEDULED is receipt.state
        assert [] == bench.claim()

    def test_held_and_diverted_jobs_enter_so(self, bench: Bench) -> None:
        """The gate's verdict is kept: held waits, diverted is quarantined; both with their rule, neither starts."""
        held, diverted = bench.admitted(entry=State.HELD), bench.admitted(entry=State.QUARANTINED)

        views = [bench.view(job.id) for job in (held, diverted)]

        assert [State.HELD, State.QUARANTINED] == [view.state for view in views]
        assert [None, QuarantineReason.DIVERTED] == [view.reason for view in views]
        assert ["R1", "R1"] == [view.rule for view in views]
        assert [] == bench.claim(10)

    @pytest.mark.parametrize(
        "state", sorted(set(State) - {State.READY, State.HELD, State.QUARANTINED, State.SCHEDULED})
    )
    def test_no_job_enters_further_on(self, bench: Bench, state: State) -> None:
        """Nobody admits a job as running, blocked or finished: refused, or an error of the caller, and not stored."""
        job = bench.job()

        try:
            (receipt,) = bench.admit(job, entry=state)
        except ValueError:
            receipt = None

        assert receipt is None or receipt.disposal is Disposal.REFUSED
        assert bench.operator.show(job.id) is None

    def test_unknown_type_is_refused(self, bench: Bench) -> None:
        """A type that `job_type` does not know does not enter."""
        self._refused(bench, bench.job(make_policy("t.unknown@1")), "S-type")

    def test_other_policy_is_refused(self, bench: Bench) -> None:
        """A job that was judged under another policy than the ledger's does not enter."""
        self._refused(bench, bench.job(policy_sha256="0" * 64), "S-policy")

    def test_foreign_origin_is_refused(self, bench: Bench) -> None:
        """The origin is who the store authenticated, never what the caller says."""
        self._refused(bench, bench.job(origin="svc:somebody-else"), "S-origin")

    def test_wrong_payload_digest_is_refused(self, bench: Bench) -> None:
        """The digest is computed again from the bytes that came: a job cannot carry another payload's identity."""
        self._refused(bench, bench.job(payload_sha256="ab" * 32), "S-digest")

    def test_too_large_payload_is_refused(self, bench: Bench) -> None:
        """The type's own payload limit holds inside the store too."""
        self._refused(bench, bench.job(payload=b'"' + b"x" * LOW.limits.payload_bytes_max + b'"'), "S-limit")

    def test_payload_at_its_limit_is_admitted(self, bench: Bench) -> None:
        """Exactly `payload_bytes_max` bytes are allowed."""
        bench.admitted(payload=b'"' + b"x" * (LOW.limits.payload_bytes_max - 2) + b'"')

    def test_more_than_sixteen_resources_are_refused(self, bench: Bench) -> None:
        """A job with 17 resources does not enter; one with 16 does."""
        keys = tuple(f"host:{number:02d}" for number in range(17))

        self._refused(bench, bench.job(MEDIUM, operation="a", resources=keys), "S-resources")
        bench.admitted(MEDIUM, operation="b", resources=keys[:16])

    @pytest.mark.parametrize("key", ["", "host", "host:", ":web", "host:a\nb"])
    def test_malformed_resource_is_refused(self, bench: Bench, key: str) -> None:
        """A resource key is `kind:value`."""
        job = replace(bench.job(MEDIUM, operation="a"), refs=Refs(resources=(key,)))

        self._refused(bench, job, "S-resources")

    def test_claimed_tier_is_not_believed(self, bench: Bench) -> None:
        """A job of a HIGH type that calls itself LOW does not enter as LOW."""
        job = bench.job(HIGH, operation="a")

        (receipt,) = bench.admit(replace(job, tier=LOW.tier))

        assert Disposal.REFUSED is receipt.disposal or bench.view(job.id).job.tier is HIGH.tier

    def test_one_refused_row_does_not_stop_the_batch(self, bench: Bench) -> None:
        """Around a refused job the others enter, and the receipts keep their order (I15)."""
        jobs = [bench.job(), bench.job(origin="svc:other"), bench.job()]

        receipts = bench.admit(*jobs)

        assert [Disposal.ADMITTED, Disposal.REFUSED, Disposal.ADMITTED] == [r.disposal for r in receipts]

    def test_refused_receipt_names_rule_but_no_job(self, bench: Bench) -> None:
        """A refusal says why, by rule, and names nothing that the caller may not know."""
        (receipt,) = bench.admit(bench.job(origin="svc:other"))

        assert ("", None, True) == (receipt.job_id, receipt.state, bool(receipt.rule and receipt.reason))

    def test_same_id_twice_in_a_batch_enters_once(self, bench: Bench) -> None:
        """Two jobs with one id: the first enters, the second is refused and leaves no operation behind."""
        first = bench.job(MEDIUM, operation="a")
        second = replace(bench.job(MEDIUM, operation="b"), id=first.id)

        receipts = bench.admit(first, second)
        (again,) = bench.admit(bench.job(MEDIUM, operation="b"))

        assert [Disposal.ADMITTED, Disposal.REFUSED] == [receipt.disposal for receipt in receipts]
        assert Disposal.ADMITTED is again.disposal

    def test_id_of_another_job_is_refused(self, bench: Bench) -> None:
        """An id is used once for ever, also after its job has ended."""
        first = bench.started(MEDIUM, operation="a").job
        thief = replace(bench.job(MEDIUM, operation="b"), id=first.id)

        self._refused(bench, thief, "S-id", stored=True)
        assert first == bench.view(first.id).job

    def test_same_operation_twice_in_a_batch_enters_once(self, bench: Bench) -> None:
        """Of two jobs with one key in one call, the second gets the first one's receipt."""
        first, second = bench.job(MEDIUM, operation="a"), bench.job(MEDIUM, operation="a")

        receipts = bench.admit(first, second)

        assert [Disposal.ADMITTED, Disposal.DUPLICATE] == [receipt.disposal for receipt in receipts]
        assert [first.id, first.id] == [receipt.job_id for receipt in receipts]

    @pytest.mark.parametrize("scope", ControlScope)
    def test_halt_refuses_at_once(self, bench: Bench, scope: ControlScope) -> None:
        """After the kill switch of its type, origin or pool nothing enters; after opening it does again."""
        name = {ControlScope.TYPE: LOW.name, ControlScope.ORIGIN: bench.producer.origin, ControlScope.POOL: POOL}[scope]
        bench.tighten(ControlMode.HALT, name, scope)

        self._refused(bench, bench.job(), "S-control")
        bench.loosen(name, scope)
        bench.admitted()

    def test_hold_and_divert_change_the_entry(self, bench: Bench) -> None:
        """Under `hold` new jobs enter held, under `divert` quarantined, whatever the gate had judged."""
        bench.tighten(ControlMode.HOLD)
        held = bench.admit(bench.job())[0]
        bench.tighten(ControlMode.DIVERT)
        diverted = bench.admit(bench.job())[0]

        assert [State.HELD, State.QUARANTINED] == [held.state, diverted.state]
        assert QuarantineReason.DIVERTED is bench.view(diverted.job_id).reason

    def test_strictest_switch_counts(self, bench: Bench) -> None:
        """With several switches over a job the strictest decides."""
        bench.tighten(ControlMode.HOLD)
        bench.tighten(ControlMode.DIVERT, POOL, ControlScope.POOL)
        bench.tighten(ControlMode.HOLD, bench.producer.origin, ControlScope.ORIGIN)

        (receipt,) = bench.admit(bench.job())

        assert State.QUARANTINED is receipt.state

    def test_switch_cannot_loosen_a_verdict(self, bench: Bench) -> None:
        """A job that its gate diverted stays diverted when the switch says only hold."""
        bench.tighten(ControlMode.HOLD)

        (receipt,) = bench.admit(bench.job(), entry=State.QUARANTINED)

        assert State.QUARANTINED is receipt.state

    def test_gate_refusal_is_recorded_without_values(self, bench: Bench) -> None:
        """What the gate refused is in the audit: rule, type, actor, request and reason."""
        refusal = Refusal(LOW.name, "svc:deployer", "req-9", "G-schema", "unknown field", "ab" * 32)

        assert [] == bench.producer.admit([], [refusal])

        (record,) = [r for r in records(bench.audit()) if r["event"] == "refused"]
        assert ("G-schema", LOW.name, "svc:deployer", "req-9", "unknown field") == tuple(
            record[name] for name in ("rule", "type", "actor", "request_id", "reason")
        )
        assert "ab" * 32 not in str(record)

    def test_refusals_come_along_with_admissions(self, bench: Bench) -> None:
        """One call may carry both; the receipts are those of the admissions."""
        job = bench.job()

        receipts = bench.producer.admit([Admission(job)], [Refusal(LOW.name, "svc:d", "r", "G-1", "why")])

        assert [job.id] == [receipt.job_id for receipt in receipts]
        assert "refused" in bench.events()

    def test_flood_of_refusals_is_aggregated(self, bench: Bench) -> None:
        """Refusals beyond a rate become few records, and how many there were is told later: the disk survives."""
        refusal = Refusal(LOW.name, "svc:d", "r", "G-1", "why")
        before = len(bench.audit())

        for _ in range(5):
            bench.producer.admit([], [refusal] * (FLOOD // 5))
        during = len(bench.audit()) - before
        bench.due(120)

        assert 1 <= during < FLOOD // 5
        assert 1 <= len(bench.audit()) - before - during <= 2
        told = records(bench.audit())[-1]["detail"]
        assert any(str(untold) in told for untold in (FLOOD - during, FLOOD - during + 1))  # +1: one said "more"

    def test_flood_of_one_kind_hides_no_other(self, bench: Bench) -> None:
        """Beyond its own rate a rule is only counted; a refusal by another rule, and a duplicate, still get records."""
        bench.producer.admit([], [Refusal(LOW.name, "svc:d", "r", "G-1", "why")] * FLOOD)
        before = len(bench.audit())
        bench.producer.admit([], [Refusal(LOW.name, "svc:d", "r", "G-2", "why")])
        bench.admit(bench.job(MEDIUM, operation="a"), bench.job(MEDIUM, operation="a"))

        assert ["refused", "admitted", "duplicate"] == [r["event"] for r in records(bench.audit()[before:])]

    def _refused(self, bench: Bench, job: Job, rule: str, *, stored: bool = False) -> None:
        (receipt,) = bench.admit(job)

        assert (Disposal.REFUSED, rule) == (receipt.disposal, receipt.rule), receipt
        assert stored == (bench.operator.show(job.id) is not None)
