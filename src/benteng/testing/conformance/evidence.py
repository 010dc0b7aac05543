"""Promises of `evidence`, and of the registries that it reads: artifacts and access."""

from __future__ import annotations

from benteng.evidence import ArtifactFact, ArtifactState, ControlMode, ControlScope, OperationFact
from benteng.job import ArtifactRef, Refs, sha256_hex
from benteng.store.records import Question
from benteng.testing.bench import Bench, records
from benteng.testing.conformance.base import Promises
from benteng.testing.ledger import ACTOR, LOW, MEDIUM, POOL, make_policy, type_row

DIGEST = sha256_hex(b"artifact")


class EvidencePromises(Promises):
    """Verb `evidence` and the evidence that comes with a grant."""

    def test_evidence_answers_in_order(self, bench: Bench) -> None:
        """One answer for each question, in the order asked, at the store's own time."""
        questions = [
            Question(LOW.name, ACTOR, "k1"),
            Question("t.unknown@1", ACTOR, "k2"),
            Question(MEDIUM.name, ACTOR, "k3"),
        ]

        answers = bench.producer.evidence(questions)

        assert [LOW.sha256, None, MEDIUM.sha256] == [answer.policy_sha256 for answer in answers]
        assert [bench.clock()] * 3 == [answer.now for answer in answers]

    def test_evidence_only_reads(self, bench: Bench) -> None:
        """Asking changes nothing and records nothing."""
        before = bench.audit()

        bench.producer.evidence([Question(LOW.name, ACTOR, "k", ("a-1",), ("host:a",))])

        assert before == bench.audit()

    def test_evidence_names_the_holder_of_the_key(self, bench: Bench) -> None:
        """Who holds the operation's key, with which digest and how far it got; nobody for a key that is free."""
        job = bench.admitted(MEDIUM, operation="a")

        taken, free = bench.producer.evidence(
            [Question(MEDIUM.name, ACTOR, job.operation_key), Question(MEDIUM.name, ACTOR, "free")]
        )

        assert OperationFact(job.id, job.origin, job.payload_sha256, "reserved", 1) == taken.operation
        assert free.operation is None

    def test_evidence_names_the_strictest_switch(self, bench: Bench) -> None:
        """The strictest of the switches over type, origin and pool, with the reason that a person gave."""
        bench.tighten(ControlMode.HOLD)
        bench.tighten(ControlMode.DIVERT, POOL, ControlScope.POOL)

        (answer,) = bench.producer.evidence([Question(LOW.name, ACTOR, "k")])

        assert (ControlScope.POOL, POOL, ControlMode.DIVERT, "a reason") == (
            answer.control.scope,
            answer.control.name,
            answer.control.mode,
            answer.control.reason,
        )

    def test_evidence_without_switch_is_open(self, bench: Bench) -> None:
        """Where nobody set a switch the control is open."""
        (answer,) = bench.producer.evidence([Question(LOW.name, ACTOR, "k")])

        assert ControlMode.OPEN is answer.control.mode

    def test_evidence_brings_registered_artifacts_only(self, bench: Bench) -> None:
        """A registered artifact comes with its row, an unknown id is missing."""
        fact = ArtifactFact("a-1", DIGEST, ArtifactState.APPROVED, bench.clock() + 1)
        bench.operator.register_artifact(fact, "a reason")

        (answer,) = bench.producer.evidence([Question(MEDIUM.name, ACTOR, "k", ("a-1", "a-2"))])

        assert {"a-1": fact} == dict(answer.artifacts)

    def test_artifact_can_be_revoked(self, bench: Bench) -> None:
        """A revocation is in the next evidence, and both changes are on record."""
        for state in (ArtifactState.APPROVED, ArtifactState.REVOKED):
            bench.operator.register_artifact(ArtifactFact("a-1", DIGEST, state), "a reason")

        (answer,) = bench.producer.evidence([Question(MEDIUM.name, ACTOR, "k", ("a-1",))])

        assert ArtifactState.REVOKED is answer.artifacts["a-1"].state
        assert 2 == bench.events().count("artifact_registered")

    def test_grant_brings_fresh_evidence(self, bench: Bench) -> None:
        """What changed between admission and claim is in the grant: the second judgement sees it (I9)."""
        fact = ArtifactFact("a-1", DIGEST, ArtifactState.APPROVED)
        bench.operator.register_artifact(fact, "a reason")
        bench.admitted(MEDIUM, operation="a", refs=Refs(artifacts=(ArtifactRef("a-1", DIGEST),)))
        revoked = ArtifactFact("a-1", DIGEST, ArtifactState.REVOKED)
        bench.operator.register_artifact(revoked, "a reason")
        bench.tighten(ControlMode.HOLD, MEDIUM.name)

        (grant,) = bench.claim()

        assert {"a-1": revoked} == dict(grant.evidence.artifacts)
        assert ControlMode.HOLD is grant.evidence.control.mode
        assert (MEDIUM.sha256, True, bench.clock()) == (
            grant.evidence.policy_sha256,
            grant.evidence.speaks,
            grant.evidence.now,
        )

    def test_grant_tells_of_a_changed_policy(self, bench: Bench) -> None:
        """A job judged under one policy and started under another: the second judgement can see that they differ."""
        job = bench.admitted()
        changed = make_policy(LOW.name, limits={"run_seconds_max": 1.0})
        bench.operator.apply_types([type_row(changed)], "a reason")

        (grant,) = bench.claim()

        assert (LOW.sha256, changed.sha256) == (job.policy_sha256, grant.evidence.policy_sha256)

    def test_access_is_recorded(self, bench: Bench) -> None:
        """A new access rule leaves a record with its reason."""
        before = len(bench.audit())

        bench.operator.allow_access("svc:new", MEDIUM.name, "host:a", "a reason")

        (record,) = records(bench.audit()[before:])
        assert "a reason" == record["reason"]

    def test_operator_sees_the_same_evidence(self, bench: Bench) -> None:
        """A replay is judged by the same facts as an admission."""
        question = Question(LOW.name, ACTOR, "k")

        assert [LOW.sha256] == [answer.policy_sha256 for answer in bench.operator.evidence([question])]
