"""Promises about the audit log, the clock and production installations."""

from __future__ import annotations

import pytest

from benteng.audit import EVENTS, Event, verify_page
from benteng.decide import Disposition
from benteng.errors import BentengError, NeedsAction
from benteng.evidence import ArtifactFact, ArtifactState, Control, ControlMode, ControlScope
from benteng.lifecycle import State
from benteng.merkle import Frontier
from benteng.store.records import AuditRow, Disposal, Question
from benteng.testing.bench import Bench, proof, quarantine, records, settlement
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import ACTOR, HIGH, LOW, MEDIUM, Twin, type_row

CANARY = "canary-secret-value"


class AuditPromises(Promises):
    """Verb `audit_page`."""

    def _life(self, bench: Bench) -> None:
        first = bench.started(MEDIUM, operation="1", resources=("host:a",))
        bench.admitted(MEDIUM, operation="2", resources=("host:a",))
        bench.claim()
        bench.settle(settlement(first, Disposition.RETRY, delay_seconds=1.0))
        (second,) = bench.claim()
        bench.settle(quarantine(second))
        bench.due()
        bench.tighten(ControlMode.HALT)

    def test_log_is_gapless_and_verifies(self, bench: Bench) -> None:
        """Numbers rise by one from the first record on, and each body is the one that its leaf commits to."""
        self._life(bench)
        rows = bench.audit()

        findings = verify_page(rows, 1, Frontier())

        assert () == findings.problems
        assert len(rows) == findings.verified == findings.frontier.size

    def test_pages_join(self, bench: Bench) -> None:
        """Page by page gives the same log as one page, and past the end there is nothing."""
        self._life(bench)
        whole = bench.audit()
        paged: list[AuditRow] = []
        while page := bench.auditor.audit_page(paged[-1].seq if paged else 0, 2):
            paged += page

        assert whole == paged
        assert [] == bench.auditor.audit_page(whole[-1].seq, 10)

    def test_records_are_salted_each(self, bench: Bench) -> None:
        """No salt is used twice, so that equal records have different leaves."""
        self._life(bench)
        rows = bench.audit()

        assert len(rows) == len({row.salt for row in rows}) == len({row.leaf for row in rows})

    def test_log_only_grows(self, bench: Bench) -> None:
        """Whatever happens later, what was written stays byte for byte."""
        self._life(bench)
        before = bench.audit()
        bench.due(86_400)
        bench.keeper.purge(100)
        bench.loosen()

        assert before == bench.audit()[: len(before)]

    def test_every_event_is_in_the_table(self, bench: Bench) -> None:
        """Each record says an event that the table of events explains."""
        self._life(bench)

        assert {Event(record["event"]) for record in records(bench.audit())} <= set(EVENTS)

    def test_record_tells_who_what_when(self, bench: Bench) -> None:
        """Every record has the store's time and the login; those of a job its type, policy, origin, actor, request."""
        grant = bench.started(MEDIUM, operation="1")
        bench.settle(settlement(grant))

        for record in records(bench.audit()):
            assert record["at_us"] == bench.clock()
            assert record["login"]
        for record in records(bench.view(grant.job.id).audit):
            assert (MEDIUM.name, 1, MEDIUM.sha256) == tuple(
                record[n] for n in ("type", "contract_version", "policy_sha256")
            )
            assert (grant.job.origin, ACTOR, "req-1") == tuple(record[n] for n in ("origin", "actor", "request_id"))

    def test_digests_are_keyed(self, bench: Bench) -> None:
        """Neither the operation key nor the payload digest stands bare in the log: a guess cannot be confirmed."""
        grant = bench.started(MEDIUM, operation="1")
        bench.settle(settlement(grant, result=b'"r"'))

        text = repr(records(bench.audit()))

        assert grant.job.operation_key not in text
        assert grant.job.payload_sha256 not in text
        assert all(record["operation"] for record in records(bench.view(grant.job.id).audit))

    def test_results_are_not_in_the_log(self, bench: Bench) -> None:
        """A result is data of the job, not of the log."""
        grant = bench.started()
        bench.settle(settlement(grant, result=f'"{CANARY}"'.encode()))

        assert CANARY not in repr(bench.audit())

    def test_hostile_text_stays_one_line(self, bench: Bench) -> None:
        """Whatever stands in names and reasons, a record stays bounded, on one line and readable (case C116)."""
        hostile = '\r\n{"event":"completed"}\x1b[2J\u202e' * 2_000
        bench.admit(bench.job(actor="svc:a" + hostile), bench.job(request_id=hostile), bench.job(summary=hostile))
        grant = bench.started(priority=0)
        bench.settle(quarantine(grant, rule=hostile, error=hostile))
        bench.operator.discard([grant.job.id], hostile)
        bench.operator.tighten(Control(ControlScope.TYPE, hostile, ControlMode.HALT, hostile))

        for row in bench.audit():
            assert row.body is not None
            assert len(row.body) < 16_384
            assert not [byte for byte in row.body if byte < 0x20]


class ClockPromises(Promises):
    """Only the store's clock decides, and it does not go back (I14)."""

    @pytest.mark.parametrize("seconds", [-1, -300, -86_400])
    def test_clock_going_back_changes_nothing(self, bench: Bench, seconds: int) -> None:
        """A step back of the host's clock neither takes a lease nor makes one last longer, nor hides a due job."""
        job = bench.admitted(available_at=bench.clock() + 10_000_000, priority=9)
        grant = bench.started()
        bench.due(11)
        until = bench.view(grant.job.id).lease_until

        bench.advance(seconds)
        bench.stage()

        assert [] == bench.reclaim()
        assert State.READY is bench.state(job.id)
        (extension,) = bench.consumer.extend([proof(grant)])
        assert not extension.lost
        assert bench.view(grant.job.id).lease_until >= until
        times = [record["at_us"] for record in records(bench.audit())]
        assert sorted(times) == times

    def test_jump_ahead_is_one_long_wait(self, bench: Bench) -> None:
        """A jump of a day ends leases, but a settle before reclaim is still accepted."""
        grant = bench.started()
        bench.advance(86_400)

        assert [True] == [each.lost for each in bench.consumer.extend([proof(grant)])]
        assert [State.COMPLETED] == [each.state for each in bench.settle(settlement(grant))]


class ProductionPromises(Promises):
    """A `prod` installation: nothing is allowed that nobody allowed, and what loosens needs an Action."""

    @pytest.fixture
    def prod(self, ledger: Twin) -> Bench:
        """A fresh production installation without types."""
        return Bench(ledger.production(), types=())

    def test_nobody_speaks_for_anybody(self, prod: Bench) -> None:
        """In a fresh production installation no origin may enqueue: evidence says so and admit refuses."""
        prod.operator.apply_types([type_row(LOW)], "a reason")

        (evidence,) = prod.producer.evidence([Question(LOW.name, ACTOR, "k", (), ("host:a",))])
        (receipt,) = prod.admit(prod.job())

        assert not evidence.speaks
        assert ("host:a",) == evidence.denied_targets
        assert (Disposal.REFUSED, "S-speaks") == (receipt.disposal, receipt.rule)

    def test_what_loosens_needs_an_action(self, prod: Bench) -> None:
        """HIGH types, artifacts, access and switches over HIGH are not changed by one person's word."""
        with pytest.raises(NeedsAction):
            prod.operator.apply_types([type_row(HIGH)], "a reason")
        with pytest.raises(NeedsAction):
            prod.operator.register_artifact(ArtifactFact("a-1", "00" * 32, ArtifactState.APPROVED), "a reason")
        with pytest.raises(NeedsAction):
            prod.operator.allow_access(ACTOR, "*", "*", "a reason")

        assert [] == prod.operator.types()

    def test_tightening_needs_nobody(self, prod: Bench) -> None:
        """Anybody with the facet can stop the flow at once."""
        prod.operator.tighten(Control(ControlScope.TYPE, HIGH.name, ControlMode.HALT, "a reason"))

        assert 1 == len(prod.operator.controls())

    def test_batch_with_high_applies_nothing(self, prod: Bench) -> None:
        """A refused call leaves nothing behind."""
        with pytest.raises(BentengError):
            prod.operator.apply_types([type_row(LOW), type_row(HIGH)], "a reason")

        assert [] == prod.operator.types()
