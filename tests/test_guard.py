"""The guards: what each refuses, and that nothing broken lets a job through."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from benteng.contract import Contract, shape_of
from benteng.envelope import VERSION, JobClaims
from benteng.evidence import ArtifactFact, ArtifactState, Control, ControlMode, ControlScope
from benteng.guard import CELL, GATE, SUPERVISOR, judge
from benteng.guard.security import security
from benteng.job import ArtifactRef, Job, Refs, sha256_hex
from benteng.policy import Tier
from benteng.verdict import ADMIT, Admit, Check, Divert, Hold, Refuse
from tests.guard_cases import DIGEST, case, evidence, job_type


class Note(Contract):
    """A contract with free text, as MEDIUM allows it."""

    note: str


def said(verdict):
    """Return the rule of a verdict that is not Admit."""
    assert not isinstance(verdict, Admit)
    return verdict.rule


@pytest.mark.parametrize("guards", [GATE, SUPERVISOR, CELL], ids=["gate", "supervisor", "cell"])
def test_a_good_job_is_admitted_at_every_door(guards):
    """Each door admits what the others admit."""
    assert judge(case(), evidence(), guards) == ADMIT


def test_a_guard_that_raises_refuses():
    """A bug in a check never lets a job through."""

    def broken(_case, _evidence):
        raise KeyError

    assert said(judge(case(), evidence(), [broken])) == "G-broken"


def test_a_guard_that_answers_true_refuses():
    """Only a verdict is an answer; a truthy value is none."""
    liar: Any = lambda _case, _evidence: True  # noqa: E731 - what a careless author writes

    assert said(judge(case(), evidence(), [liar])) == "G-broken"


def test_judging_stops_at_the_first_verdict():
    """The order is fixed: what comes later is not asked."""
    asked = []

    def no(_case, _evidence):
        return Refuse("first", "no")

    def later(_case, _evidence):
        asked.append("later")
        return ADMIT

    assert said(judge(case(), evidence(), [no, later])) == "first"
    assert asked == []


def test_the_contract_of_the_code_must_be_the_reviewed_one():
    """A contract that was changed after the review does not run."""
    good = case()

    reviewed = msgspec.structs.replace(good.policy, schema_sha256="0" * 64)

    verdict = judge(replace(good, policy=reviewed), evidence(), CELL)

    assert said(verdict) == "G-contract"


def test_a_cell_compares_the_digest_too():
    """What reaches a cell is what was digested, whoever handed it out."""
    good = case()
    job = replace(good.job, payload_sha256="0" * 64)

    assert said(judge(replace(good, job=job), evidence(), CELL)) == "G-canonical"


def test_bytes_that_are_not_canonical_are_suspicious():
    """White space in stored bytes did not come from a gate."""
    good = case()
    spaced = good.job.payload.replace(b":", b": ")
    job = replace(good.job, payload=spaced, payload_sha256=sha256_hex(spaced))

    verdict = judge(replace(good, job=job), evidence(), CELL)

    assert isinstance(verdict, Refuse)
    assert verdict.rule == "G-canonical"
    assert verdict.suspicious


@pytest.mark.parametrize(
    "changes",
    [
        {"payload_sha256": "0" * 64},
        {"operation_key": "0" * 64},
        {"refs": Refs()},
        {
            "refs": Refs(
                artifacts=(ArtifactRef("agent-1.2", DIGEST),), targets=("target:web-8",), resources=("target:web-7",)
            )
        },
    ],
    ids=["digest", "key", "no-refs", "other-target"],
)
def test_columns_must_follow_from_the_payload(changes):
    """Digest, key and references that were changed in the store are found before any cell starts."""
    verdict = judge(case(**changes), evidence(), SUPERVISOR)

    assert isinstance(verdict, Refuse)
    assert verdict.rule == "G-forged"
    assert verdict.suspicious


def test_a_signed_type_needs_an_envelope():
    """Nothing unsigned starts at HIGH."""
    verdict = judge(case(job_type(Tier.HIGH)), evidence(), SUPERVISOR)

    assert said(verdict) == "G-unsigned"


@pytest.mark.parametrize("field", ["actor", "priority", "available_at", "expires_at", "request_id", "origin"])
def test_each_signed_claim_must_equal_its_column(field):
    """Whoever edits a row of a signed job is found out."""
    good = case(job_type(Tier.HIGH))
    job, policy = good.job, good.policy
    claims = JobClaims(
        version=VERSION,
        key_id="0" * 16,
        job_id=job.id,
        type=job.type,
        tier="high",
        origin=job.origin,
        actor=job.actor,
        request_id="",
        operation_key=job.operation_key,
        payload_sha256=job.payload_sha256,
        schema_sha256=policy.schema_sha256,
        policy_sha256=job.policy_sha256,
        artifacts=tuple((a.id, a.sha256) for a in job.refs.artifacts),
        targets=job.refs.targets,
        resources=job.refs.resources,
        priority=5,
        available_at_us=0,
        generation=0,
        issued_at_us=0,
        expires_at_us=0,
    )
    edited = replace(job, **{field: 3 if field in {"priority", "available_at", "expires_at"} else "svc:other"})

    assert judge(replace(good, claims=claims), evidence(), SUPERVISOR) == ADMIT
    assert said(judge(replace(good, job=edited, claims=claims), evidence(), SUPERVISOR)) == "E-mismatch"


def test_the_ledgers_policy_must_be_the_hosts():
    """A row of job_type that somebody loosened stops the job."""
    assert said(judge(case(), evidence(policy_sha256="0" * 64), SUPERVISOR)) == "G-policy"


@pytest.mark.parametrize(
    "fact, rule",
    [
        pytest.param(None, "A-unknown", id="unknown"),
        pytest.param(ArtifactFact("agent-1.2", "cd" * 32, ArtifactState.APPROVED), "A-digest", id="exchanged"),
        pytest.param(ArtifactFact("agent-1.2", DIGEST, ArtifactState.PROPOSED), "A-state", id="proposed"),
        pytest.param(ArtifactFact("agent-1.2", DIGEST, ArtifactState.REVOKED), "A-state", id="revoked"),
        pytest.param(ArtifactFact("agent-1.2", DIGEST, ArtifactState.APPROVED, 1_000_000), "A-expired", id="expired"),
    ],
)
def test_an_artifact_must_be_approved_now(fact, rule):
    """Unknown, exchanged, unapproved, revoked and expired artifacts are refused."""
    facts = {} if fact is None else {"agent-1.2": fact}

    assert said(judge(case(), evidence(artifacts=facts), SUPERVISOR)) == rule


def test_an_origin_must_be_allowed_to_speak():
    """A producer cannot enqueue in the name of somebody else."""
    assert said(judge(case(), evidence(speaks=False), SUPERVISOR)) == "X-speaks"


def test_a_job_above_low_names_its_actor():
    """Nobody's job is nobody's responsibility."""
    assert said(judge(case(actor=""), evidence(), SUPERVISOR)) == "X-actor"


def test_a_denied_target_is_suspicious():
    """A target outside the access rule is not an honest mistake."""
    verdict = judge(case(), evidence(denied_targets=("target:web-7",)), SUPERVISOR)

    assert isinstance(verdict, Refuse)
    assert verdict.rule == "X-target"
    assert verdict.suspicious


@pytest.mark.parametrize(
    "mode, expected",
    [(ControlMode.OPEN, Admit), (ControlMode.HOLD, Hold), (ControlMode.DIVERT, Divert), (ControlMode.HALT, Refuse)],
)
def test_each_switch_has_its_verdict(mode, expected):
    """Hold holds, divert diverts, halt refuses."""
    switch = Control(ControlScope.TYPE, "patch.apply@1", mode)

    assert isinstance(judge(case(), evidence(control=switch), SUPERVISOR), expected)


@pytest.mark.parametrize(
    "text", ["a$(id)", "a`id`", "../etc", "{{x}}", "a && b", "a || b", "x; rm -rf", "<script>", "%2e%2e"]
)
def test_text_with_foreign_syntax_is_suspicious_above_low(text):
    """Shell, template and path syntax has no business in a reference."""
    shape = shape_of(Note, tier=Tier.MEDIUM)
    parsed = shape.parse_value({"note": text})
    job = Job("x", "patch.apply@1", Tier.MEDIUM, parsed.canonical, parsed.digest, "", "os:0")

    verdict = security(replace(case(), job=job, shape=shape, parsed=parsed), evidence())

    assert isinstance(verdict, Refuse)
    assert verdict.rule == "G-syntax"
    assert verdict.field == "note"
    assert verdict.suspicious
    assert text not in str(verdict)


def test_a_semantic_check_sees_payload_and_facts():
    """The user's check is asked with what it needs, by name."""
    seen = []

    def in_maintenance(payload, host):
        seen.append((payload.target, host))
        return Refuse("host", "not in maintenance")

    checked = replace(
        case(), checks=(Check("in_maintenance", in_maintenance, ("host",)),), facts={"host": "web-7 facts"}
    )

    assert said(judge(checked, evidence(), CELL)) == "host"
    assert seen == [("web-7", "web-7 facts")]


@pytest.mark.parametrize(
    "function", [lambda _p: 1 / 0, lambda _p: True, lambda _p: None], ids=["raises", "true", "none"]
)
def test_a_broken_semantic_check_refuses(function):
    """An exception, True or None from a user's check is no admission."""
    checked = replace(case(), checks=(Check("check", function),))

    assert said(judge(checked, evidence(), CELL)) == "G-broken"


def test_a_check_without_its_evidence_refuses():
    """Evidence that was not loaded is not evidence of innocence."""
    checked = replace(case(), checks=(Check("check", lambda _p, _h: ADMIT, ("host",)),))

    assert said(judge(checked, evidence(), CELL)) == "G-evidence"
