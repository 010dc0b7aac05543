"""The way in. There is no other.

A spec becomes a job here: strict parse, canonical bytes, operation key, references, evidence, judgement, signature,
and one `admit`. What is refused is recorded, without any value of it, and raised as `Refused`. Replays pass the same
judge. Trust: nothing of a spec. The store checks origin, control, policy and limits once more inside `admit`.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import assert_never

import msgspec

from benteng.clock import Instant, microseconds, system_clock
from benteng.contract import Parsed
from benteng.envelope import VERSION, JobClaims, seal
from benteng.errors import Conflict, KeyringError, PolicyError, Refused, RuleError
from benteng.evidence import Evidence
from benteng.guard import GATE, Case, Door, judge
from benteng.guard.integrity import identity_of, refs_of, signed_columns
from benteng.job import Job, new_job_id
from benteng.keyring import SigningKey
from benteng.lifecycle import State
from benteng.policy import PRIORITY_DEFAULT, PRIORITY_MAX, Tier, TypePolicy
from benteng.store.contract import Producer
from benteng.store.durability import Durability
from benteng.store.records import Admission, Disposal, Question, Receipt, Refusal
from benteng.task import Handler, JobType, Registry
from benteng.verdict import Admit, Divert, Hold, Refuse, Verdict

EVIDENCE_SECONDS_MAX = 10.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}", re.ASCII)
"""What an actor or a request id looks like; matched in full."""

CONFLICT = "the same operation exists with another payload or from another origin"
SAME_OPERATION = "send the same payload for the same operation, or change what identifies the operation"

UNASKED = Evidence(now=0, speaks=True)
"""What the gate assumes for a LOW job that needs no evidence: `admit` checks control and origin itself."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a caller wants: a type, a payload, on whose behalf, and when.

    payload        an instance of the contract, a mapping of its fields, or raw JSON bytes
    delay_seconds  start no earlier than this after admission
    run_at         or no earlier than this moment (time zone required)
    durability     the class that the ledger must have: D0 (any), D1, D2; the host's configuration may demand more
    """

    type: str | Handler
    payload: object
    actor: str = ""
    request_id: str = ""
    priority: int = PRIORITY_DEFAULT
    delay_seconds: float = 0.0
    run_at: datetime | None = None
    durability: str = Durability.D0


@dataclass(frozen=True, slots=True)
class Draft:
    """A parsed spec on its way: not judged, not signed."""

    job: Job
    job_type: JobType
    policy: TypePolicy
    parsed: Parsed
    delay_seconds: float = 0.0
    durability: Durability = Durability.D0

    @property
    def question(self) -> Question:
        """What evidence is wanted for it."""
        job = self.job
        ids = tuple(ref.id for ref in job.refs.artifacts)
        return Question(job.type, job.actor, job.operation_key, ids, job.refs.targets)

    @property
    def needs_evidence(self) -> bool:
        """LOW jobs save the round trip unless they name artifacts, or have a time that the store's clock must give."""
        timed = self.delay_seconds > 0 or self.policy.limits.expires_seconds > 0
        return self.policy.tier is not Tier.LOW or timed or bool(self.job.refs.artifacts)


@dataclass(frozen=True, slots=True)
class Gate:
    """Takes specs in through one producer facet, for one registry, under the reviewed policies of this host.

    durability  the class that the ledger must have for every job of this host
    """

    producer: Producer
    registry: Registry
    policies: Mapping[str, TypePolicy]
    signing_key: Callable[[], SigningKey | None]
    durability: Durability = Durability.D0

    def enqueue(self, spec: JobSpec) -> Receipt:
        """Admit one job. Raises Refused (Conflict for a taken operation), KeyringError, StoreUnavailable.

        Raises PolicyError (S-durability) for a ledger of a lower class than is demanded.
        """
        answer = self.enqueue_many([spec])[0]
        if isinstance(answer, Refused):
            raise answer
        return answer

    def enqueue_many(self, specs: Sequence[JobSpec]) -> list[Receipt | Refused]:
        """Admit several jobs in one commit; one answer for each, in order. A refused one does not stop the others."""
        answers: dict[int, Receipt | Refused] = {}
        drafts = self._drafts(specs, answers)
        admissions = self._admissions(drafts, answers)
        refusals = [_refusal(specs[i], said, drafts.get(i)) for i, said in answers.items() if isinstance(said, Refused)]
        receipts = self.producer.admit(list(admissions.values()), refusals)
        for index, receipt in zip(admissions, receipts, strict=True):
            answers[index] = _answer(receipt)
        return [answers[index] for index in range(len(specs))]

    def examine(self, spec: JobSpec) -> Verdict:
        """Judge a spec without admitting or recording anything: `benteng enqueue --dry-run`."""
        try:
            draft = self.draft(spec)
            return self.judge(draft, self._evidence([draft])[0], Door.GATE)
        except RuleError as error:
            return Refuse(error.rule, error.reason, error.fix, error.field)

    def draft(self, spec: JobSpec) -> Draft:
        """Parse a spec into an unsigned, unjudged job. Raises RuleError."""
        job_type = self.registry.find(spec.type)
        policy = self._policy(job_type)
        parsed = _parse(job_type, spec.payload, policy)
        _check_names(spec)
        job_id = new_job_id(system_clock(), os.urandom(10))
        job = Job(
            id=job_id,
            type=job_type.name,
            tier=policy.tier,
            payload=parsed.canonical,
            payload_sha256=parsed.digest,
            operation_key=identity_of(policy, job_id, parsed.canonical),
            origin=self.producer.origin,
            actor=spec.actor,
            request_id=spec.request_id,
            priority=spec.priority,
            available_at=_instant(spec.run_at),
            refs=refs_of(policy, parsed.canonical),
            policy_sha256=policy.sha256,
            summary=msgspec.json.encode(job_type.shape.summary(parsed)).decode(),
        )
        durability = max(self.durability, _durability(spec))
        return Draft(job, job_type, policy, parsed, spec.delay_seconds, durability)

    def judge(self, draft: Draft, evidence: Evidence, door: Door) -> Verdict:
        """Ask every guard about a draft; the type's evidence loaders run first, each within its time."""
        checks = self.registry.checks_of(draft.job_type)
        try:
            facts = load_facts(self.registry, draft.job_type, draft.parsed.value)
        except RuleError as error:
            return Refuse(error.rule, error.reason, error.fix)
        case = Case(
            draft.job, draft.policy, door, shape=draft.job_type.shape, parsed=draft.parsed, checks=checks, facts=facts
        )
        return judge(case, replace(evidence, policy_sha256=None), GATE)

    def _policy(self, job_type: JobType) -> TypePolicy:
        policy = self.policies.get(job_type.name)
        if policy is None or policy.schema_sha256 != job_type.shape.schema_digest:
            raise PolicyError(
                "L-stale",
                f"the lock file does not have {job_type.name} as the code defines it",
                fix="run: benteng policy lock, review it, then: benteng policy apply",
            )
        return policy

    def _drafts(self, specs: Sequence[JobSpec], answers: dict[int, Receipt | Refused]) -> dict[int, Draft]:
        drafts: dict[int, Draft] = {}
        for index, spec in enumerate(specs):
            try:
                drafts[index] = self.draft(spec)
            except PolicyError:
                raise
            except RuleError as error:
                answers[index] = Refused(error.rule, error.reason, field=error.field, fix=error.fix)
        return drafts

    def _admissions(self, drafts: Mapping[int, Draft], answers: dict[int, Receipt | Refused]) -> dict[int, Admission]:
        admissions: dict[int, Admission] = {}
        found = self._evidence(list(drafts.values()))
        for (index, draft), evidence in zip(drafts.items(), found, strict=True):
            match self.judge(draft, evidence, Door.GATE):
                case Admit():
                    admissions[index] = self._admission(draft, evidence)
                case Hold(rule, reason):
                    admissions[index] = self._admission(draft, evidence, State.HELD, rule, reason)
                case Divert(rule, reason):
                    admissions[index] = self._admission(draft, evidence, State.QUARANTINED, rule, reason)
                case Refuse() as no:
                    answers[index] = Refused(no.rule, no.reason, field=no.field, fix=no.fix, suspicious=no.suspicious)
        return admissions

    def _admission(
        self, draft: Draft, evidence: Evidence, entry: State = State.READY, rule: str = "", reason: str = ""
    ) -> Admission:
        return Admission(self._finish(draft, evidence.now), entry, rule, reason, draft.durability)

    def _evidence(self, drafts: Sequence[Draft]) -> list[Evidence]:
        asked = [draft for draft in drafts if draft.needs_evidence]
        found = iter(self.producer.evidence([draft.question for draft in asked]) if asked else [])
        return [next(found) if draft.needs_evidence else UNASKED for draft in drafts]

    def _finish(self, draft: Draft, now: Instant) -> Job:
        """Give the job its times, by the store's clock, and its signature."""
        limits = draft.policy.limits
        delay = now + microseconds(draft.delay_seconds) if draft.delay_seconds else draft.job.available_at
        expires = now + microseconds(limits.expires_seconds) if limits.expires_seconds else 0
        job = replace(draft.job, available_at=delay, expires_at=expires)
        key = self.signing_key() if draft.policy.tier is not Tier.LOW or draft.policy.signed else None
        if key is not None:
            return replace(job, envelope=seal(_claims(job, draft.policy, key, now), key))
        if draft.policy.signed:
            msg = f"a job of type {job.type} must be signed and there is no producer key: make one with benteng init"
            raise KeyringError(msg)
        return job


def load_facts(registry: Registry, job_type: JobType, value: object) -> dict[str, object]:
    """Run the evidence loaders that a type's checks need. Raises RuleError when one fails or takes too long."""
    loaders = registry.loaders_of(job_type)
    if not loaders:
        return {}
    pool = concurrent.futures.ThreadPoolExecutor(len(loaders), thread_name_prefix="benteng-evidence")
    try:
        futures = {loader.name: pool.submit(loader.function, value) for loader in loaders}
        return {name: _fact(name, future) for name, future in futures.items()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _fact(name: str, future: concurrent.futures.Future[object]) -> object:
    try:
        return future.result(EVIDENCE_SECONDS_MAX)
    except concurrent.futures.TimeoutError:
        raise RuleError("G-evidence", f"evidence {name} took longer than {EVIDENCE_SECONDS_MAX:.0f} s") from None
    except Exception as error:  # noqa: BLE001 - whatever it is: no evidence, no job
        raise RuleError("G-evidence", f"evidence {name} failed ({type(error).__name__})") from None


def _parse(job_type: JobType, payload: object, policy: TypePolicy) -> Parsed:
    shape = job_type.shape
    parsed = shape.parse(payload) if isinstance(payload, bytes) else shape.parse_value(payload)
    if len(parsed.canonical) > policy.limits.payload_bytes_max:
        raise RuleError(
            "G-size", f"the payload is larger than {policy.limits.payload_bytes_max} bytes", fix="use an artifact"
        )
    return parsed


def _check_names(spec: JobSpec) -> None:
    for field, text in (("actor", spec.actor), ("request_id", spec.request_id)):
        if text and not NAME.fullmatch(text):
            raise RuleError("G-name", "at most 128 letters, digits and ._:@/+-", field=field)
    if isinstance(spec.priority, bool) or spec.priority not in range(PRIORITY_MAX + 1):
        raise RuleError("G-priority", "a priority is 0 (first) to 9", field="priority")
    if not 0 <= spec.delay_seconds <= 366 * 86_400:
        raise RuleError("G-delay", "a delay is 0 s to a year", field="delay_seconds")


def _durability(spec: JobSpec) -> Durability:
    if spec.durability not in set(Durability):
        raise RuleError("G-durability", "a durability class is D0, D1 or D2", field="durability")
    return Durability(spec.durability)


def _instant(run_at: datetime | None) -> Instant:
    if run_at is None:
        return 0
    if run_at.tzinfo is None:
        raise RuleError("G-zone", "a moment needs a time zone", field="run_at", fix="use datetime(..., tzinfo=...)")
    return microseconds((run_at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def _claims(job: Job, policy: TypePolicy, key: SigningKey, now: Instant) -> JobClaims:
    return JobClaims(version=VERSION, key_id=key.key_id, issued_at_us=now, **signed_columns(job, policy))


def _refusal(spec: JobSpec, refused: Refused, draft: Draft | None) -> Refusal:
    name = spec.type if isinstance(spec.type, str) else getattr(spec.type, "__name__", "")
    actor, request_id = (text if NAME.fullmatch(text) else "" for text in (spec.actor, spec.request_id))
    digest = draft.job.payload_sha256 if draft is not None else ""
    return Refusal(name[:128], actor, request_id, refused.rule, refused.reason, digest, refused.suspicious)


def _answer(receipt: Receipt) -> Receipt | Refused:
    match receipt.disposal:
        case Disposal.ADMITTED | Disposal.DUPLICATE:
            return receipt
        case Disposal.CONFLICT:
            return Conflict(receipt.rule or "S-conflict", receipt.reason or CONFLICT, fix=SAME_OPERATION)
        case Disposal.REFUSED:
            return Refused(receipt.rule, receipt.reason)
        case _:
            assert_never(receipt.disposal)
