"""Promises of `extend`: who proves the lease keeps it, and nobody else."""

from __future__ import annotations

from msgspec.structs import replace

from benteng.store.records import LeaseProof
from benteng.testing.bench import Bench, proof, settlement
from benteng.testing.conformance.base import Promises

UNKNOWN = LeaseProof("01890000-0000-7000-8000-000000000000", 1, "token")


class ExtendPromises(Promises):
    """Verb `extend`."""

    def test_extend_renews_from_now(self, bench: Bench) -> None:
        """A renewed lease lasts its full seconds from the store's answer."""
        grant = bench.started()
        bench.advance(20)

        (extension,) = bench.consumer.extend([proof(grant)])

        assert (grant.job.id, False, False, 30.0) == (
            extension.job_id,
            extension.lost,
            extension.cancel,
            extension.seconds,
        )
        assert bench.clock() + 30_000_000 == bench.view(grant.job.id).lease_until

    def test_extend_answers_each_in_order(self, bench: Bench) -> None:
        """One answer for each lease, in the order asked, lost ones among them."""
        grants = [bench.started() for _ in range(2)]

        answers = bench.consumer.extend([proof(grants[1]), UNKNOWN, proof(grants[0])])

        assert [grants[1].job.id, UNKNOWN.job_id, grants[0].job.id] == [answer.job_id for answer in answers]
        assert [False, True, False] == [answer.lost for answer in answers]

    def test_extend_after_the_lease_end_is_lost(self, bench: Bench) -> None:
        """A lease that ran out is not renewed, also when nobody took the job back yet."""
        grant = bench.started()
        bench.advance(30.1)
        until = bench.view(grant.job.id).lease_until

        assert [True] == [answer.lost for answer in bench.consumer.extend([proof(grant)])]
        assert until == bench.view(grant.job.id).lease_until

    def test_forged_proofs_are_lost(self, bench: Bench) -> None:
        """A wrong token, a wrong fence, a wrong pool: lost, and the real lease is as it was."""
        grant = bench.started()
        until = bench.view(grant.job.id).lease_until
        bench.advance(5)
        forged = [
            replace(proof(grant), token="x" * len(grant.lease.token)),
            replace(proof(grant), token=""),
            replace(proof(grant), fence=grant.lease.fence + 1),
            replace(proof(grant), fence=grant.lease.fence - 1),
        ]

        answers = bench.consumer.extend(forged) + bench.elsewhere.extend([proof(grant)])

        assert [True] * 5 == [answer.lost for answer in answers]
        assert until == bench.view(grant.job.id).lease_until

    def test_settled_job_is_lost(self, bench: Bench) -> None:
        """There is nothing to renew once an attempt was settled."""
        grant = bench.started()
        bench.settle(settlement(grant))

        assert [True] == [answer.lost for answer in bench.consumer.extend([proof(grant)])]

    def test_long_run_with_heartbeats_is_never_reclaimed(self, bench: Bench) -> None:
        """A job may run for many leases: it is taken back by lease only, never by elapsed time (case C03)."""
        grant = bench.started()

        for _ in range(100):
            bench.advance(20)
            bench.consumer.extend([proof(grant)])
            assert [] == bench.reclaim()

        assert [grant.job.id] == [answer.job_id for answer in bench.settle(settlement(grant))]
        assert 1 == bench.journal.completed.count(grant.job.id)

    def test_progress_is_accepted_with_the_lease(self, bench: Bench) -> None:
        """Progress comes along with the heartbeat and changes nothing else."""
        grant = bench.started()

        answers = bench.consumer.extend([proof(grant)], ["3 of 10"])

        assert [False] == [answer.lost for answer in answers]

    def test_heartbeats_write_no_audit(self, bench: Bench) -> None:
        """A renewed lease is no transition: the log does not grow with time."""
        grant = bench.started()
        before = len(bench.audit())
        bench.consumer.extend([proof(grant)])

        assert before == len(bench.audit())

    def test_empty_is_no_error(self, bench: Bench) -> None:
        """No lease asked, none answered."""
        assert [] == bench.consumer.extend([])
