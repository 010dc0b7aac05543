"""Judge a quarantined job again, as a worker would, before it comes back: here without user code, in a child with it.

This process holds a credential: it judges what needs none of the user's code (signature, references, approval,
access, switches). The child (bounded, without credential, inert) imports the application, parses strictly, runs the
type's evidence loaders and judges the rest. Only when both admit may the job be replayed (DESIGN promise 7).
Trust: neither the stored row nor the child's answer; what cannot be read is a refusal. Who controls the application's
code controls its own half of the verdict, as in a cell, and never the other half.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from benteng import inert
from benteng.clock import microseconds
from benteng.contract import Parsed
from benteng.envelope import JobClaims, open_envelope
from benteng.errors import EnvelopeError, RuleError
from benteng.evidence import Evidence
from benteng.gate import load_facts
from benteng.guard import CELL, SUPERVISOR, Case, Door, judge
from benteng.job import Job
from benteng.keyring import TrustRoots
from benteng.ops.child import answer, run, shut_in
from benteng.ops.describe import TEXT_CHARS_MAX, checked, failure
from benteng.ops.reference import check_reference
from benteng.policy import TypePolicy
from benteng.redact import clean_line
from benteng.store.contract import Operator
from benteng.store.records import JobView, Question
from benteng.task import JobType, Registry
from benteng.verdict import ADMIT, Admit, Divert, Hold, Refuse, Verdict

SKEW = microseconds(60)
"""How far a producer's clock may be ahead of the store's: as at the worker."""


@dataclass(frozen=True, slots=True)
class Code:
    """Where the user's code is: the application's reference, paths for its modules, and variables that it may see."""

    reference: str
    paths: Sequence[str]
    variables: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found, and the job as it would come back."""

    verdict: Verdict
    job: Job


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    job: Job
    policy: TypePolicy


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    verdict: str
    rule: str = ""
    reason: str = ""
    fix: str = ""
    field: str = ""
    suspicious: bool = False


def rejudge(
    opened: Operator, view: JobView, policies: Mapping[str, TypePolicy], trust: TrustRoots, code: Code
) -> Judgement:
    """Judge a job for its return. Raises StoreUnavailable; everything else that goes wrong is a refusal."""
    job = replace(view.job, generation=view.job.generation + 1)
    policy = policies.get(job.type)
    if policy is None:
        fix = "benteng policy lock, review it, benteng policy apply"
        return Judgement(Refuse("L-unknown", "the lock file of this host does not have the type", fix), job)
    if not job.envelope:  # a signed job keeps the policy that its producer signed; the judgement is by today's anyway
        job = replace(job, policy_sha256=policy.sha256)
    verdict = _ours(job, policy, opened.evidence([question_of(job)])[0], trust)
    return Judgement(_theirs(job, policy, code) if isinstance(verdict, Admit) else verdict, job)


def question_of(job: Job) -> Question:
    """Return what evidence the judgement of a job needs."""
    ids = tuple(ref.id for ref in job.refs.artifacts)
    return Question(job.type, job.actor, job.operation_key, ids, job.refs.targets)


# ------------------------------------------------------------------------------------------------- without user code


def _ours(job: Job, policy: TypePolicy, evidence: Evidence, trust: TrustRoots) -> Verdict:
    try:
        return judge(Case(job, policy, Door.REPLAY, claims=_claims(job, evidence, trust)), evidence, SUPERVISOR)
    except EnvelopeError as error:
        return Refuse(error.rule, error.reason, error.fix, error.field)
    except Exception as error:  # noqa: BLE001 - an unexpected exception in a check means refuse
        return Refuse("G-broken", f"the judgement failed ({type(error).__name__})", "report it")


def _claims(job: Job, evidence: Evidence, trust: TrustRoots) -> JobClaims | None:
    return open_envelope(job.envelope, trust, now_us=evidence.now, skew_us=SKEW) if job.envelope else None


# --------------------------------------------------------------------------------------------- with it, in the child


def _theirs(job: Job, policy: TypePolicy, code: Code) -> Verdict:
    try:
        arguments = [check_reference(code.reference), *code.paths]
        asked = msgspec.json.encode(_Asked(job, policy))
        entry = "benteng.ops.rejudge:child"
        ended = run(entry, arguments, cwd=Path(code.paths[0]), stdin=asked, variables=code.variables)
        return _verdict(msgspec.json.decode(checked(ended), type=_Said))
    except RuleError as error:
        return Refuse(error.rule, error.reason, error.fix, error.field)
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        return Refuse("G-broken", f"the application's process gave no verdict ({type(error).__name__})", "mend it")


def _verdict(said: _Said) -> Verdict:
    rule, reason, fix, field = (
        clean_line(text[:TEXT_CHARS_MAX]) for text in (said.rule, said.reason, said.fix, said.field)
    )
    match said.verdict:
        case "admit":
            return ADMIT
        case "hold":
            return Hold(rule, reason, fix)
        case "divert":
            return Divert(rule, reason, fix)
        case "refuse":
            return Refuse(rule, reason, fix, field, suspicious=said.suspicious)
        case _:
            return Refuse("G-broken", "the application's process gave a verdict that there is not")


def child() -> None:
    """Be the child: read a job and its policy, print what contract, security and semantic checks say."""
    from benteng.ops.application import load_app

    inert.mark()
    stream = shut_in()
    try:
        asked = msgspec.json.decode(sys.stdin.buffer.read(), type=_Asked)
        said = msgspec.json.encode(
            _say(judge_with(load_app(sys.argv[2], sys.argv[3:]).registry, asked.job, asked.policy))
        )
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit too
        said = failure(error)
    answer(stream, said)


def judge_with(registry: Registry, job: Job, policy: TypePolicy) -> Verdict:
    """Return what a cell's guards say of a job, with what the registry knows of its type."""
    try:
        job_type = registry.find(job.type)
        parsed = job_type.shape.parse(job.payload)
        facts = load_facts(registry, job_type, parsed.value)
    except RuleError as error:
        return Refuse(error.rule, error.reason, error.fix, error.field)
    return judge(_case(registry, job, policy, job_type, parsed, facts), Evidence(now=0), CELL)


def _case(
    registry: Registry,
    job: Job,
    policy: TypePolicy,
    job_type: JobType,
    parsed: Parsed,
    facts: Mapping[str, object],
) -> Case:
    checks = registry.checks_of(job_type)
    return Case(job, policy, Door.REPLAY, shape=job_type.shape, parsed=parsed, checks=checks, facts=facts)


def _say(verdict: Verdict) -> _Said:
    match verdict:
        case Admit():
            return _Said("admit")
        case Hold():
            return _Said("hold", verdict.rule, verdict.reason, verdict.fix)
        case Divert():
            return _Said("divert", verdict.rule, verdict.reason, verdict.fix)
        case Refuse():
            return _Said("refuse", verdict.rule, verdict.reason, verdict.fix, verdict.field, verdict.suspicious)
