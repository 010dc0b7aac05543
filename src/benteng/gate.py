"""The way in. There is no other.

A spec becomes a job here: strict parse, canonical bytes, operation key, references, evidence, judgement, signature,
and one `admit`. What is refused is recorded, without any value of it, and raised as `Refused`. Replays pass the same
judge. Trust: nothing of a spec. The store checks origin, control, policy and limits once more inside `admit`.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress, groupby
from typing import TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from benteng.clock import Instant, microseconds, system_clock
from benteng.contract import Parsed
from benteng.envelope import VERSION, JobClaims, seal
from benteng.errors import (
    BentengError,
    Conflict,
    DefinitionError,
    EnvelopeError,
    KeyringError,
    PolicyError,
    QueueFull,
    Refused,
    RuleError,
)
from benteng.evidence import Evidence
from benteng.guard import GATE, Case, Door, judge
from benteng.guard.integrity import identity_of, refs_of, signed_columns
from benteng.job import Job, new_job_id
from benteng.keyring import SigningKey
from benteng.lifecycle import State
from benteng.policy import PRIORITY_DEFAULT, PRIORITY_MAX, Tier, TypePolicy
from benteng.store.contract import Admitting, StepwiseProducer
from benteng.store.durability import Durability
from benteng.store.records import Admission, Disposal, Question, Receipt, Refusal
from benteng.task import Handler, JobType, Registry
from benteng.verdict import Admit, Divert, Hold, Refuse, Verdict

EVIDENCE_SECONDS_MAX = 10.0
PART_MAX = 250
"""Jobs by one commit of `enqueue_many`: so many that a commit is shared, so few that the ledger does not wait long for
the first ones nor the caller for the last ones."""

FIRST_MAX = PART_MAX // 2
"""Jobs of the first part of several: until it is begun the ledger has nothing to do."""

NOISE = 10
"""Random bytes in a job's id."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}", re.ASCII)
"""What an actor or a request id looks like; matched in full."""

CONFLICT = "the same operation exists with another payload or from another origin"
SAME_OPERATION = "send the same payload for the same operation, or change what identifies the operation"

UNASKED = Evidence(now=0, speaks=True)
"""What the gate assumes for a LOW job that needs no evidence: `admit` checks control and origin itself."""


class JobSpec(msgspec.Struct, frozen=True):
    """What a caller wants: a type, a payload, on whose behalf, and when.

    payload        an instance of the contract, a mapping of its fields, or raw JSON bytes
    delay_seconds  start no earlier than this after it was judged
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


class Draft(msgspec.Struct, frozen=True, gc=False):
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
        policy = self.policy
        timed = self.delay_seconds > 0 or policy.limits.expires_seconds > 0
        return timed or policy.tier is not Tier.LOW or bool(self.job.refs.artifacts)


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A spec that was read and is not judged yet: its draft and the facts that its checks need, or why it is refused.

    It waits in memory at most for the flushes before its own (flusher.py); whatever can change in the ledger is asked
    after that.
    """

    spec: JobSpec
    draft: Draft | None
    facts: Mapping[str, object]
    refused: Refused | None


class _Unsigned(msgspec.Struct, frozen=True, gc=False):
    """An admission that is complete but for its signature, which it shares with those that are judged with it."""

    admission: Admission
    claims: JobClaims
    key: SigningKey


@dataclass(frozen=True, slots=True)
class _Read:
    """The jobs of one commit of `enqueue_many` before they are judged, and the evidence for those that may be.

    asked  whether the ledger was asked for any
    """

    prepared: Sequence[Prepared] = ()
    evidence: Sequence[Evidence] = ()
    asked: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """The jobs of one commit of `enqueue_many`: what was decided about each, and their way into the ledger."""

    decided: Sequence[Admission | Refused]
    refusals: Sequence[Refusal]
    asked: Admitting

    def answers(self) -> list[Receipt | Refused]:
        """Return one answer for each job, in order."""
        receipts = iter(self.asked.receipts())
        return [said if isinstance(said, Refused) else _answer(next(receipts)) for said in self.decided]


@dataclass(frozen=True, slots=True)
class Gate:
    """Takes specs in through one producer facet, for one registry, under the reviewed policies of this host.

    durability  the class that the ledger must have for every job of this host
    """

    producer: StepwiseProducer
    registry: Registry
    policies: Mapping[str, TypePolicy]
    signing_key: Callable[[], SigningKey | None]
    durability: Durability = Durability.D0

    def enqueue(self, spec: JobSpec) -> Receipt:
        """Admit one job. Raises Refused (Conflict for a taken operation), KeyringError, StoreUnavailable.

        Raises PolicyError (S-durability) for a ledger of a lower class than is demanded.
        """
        answer = self.admit([self.prepare(spec)])[0]
        if isinstance(answer, BentengError):
            raise answer
        return answer

    def enqueue_many(self, specs: Sequence[JobSpec]) -> list[Receipt | Refused]:
        """Admit several jobs, `PART_MAX` by each commit; one answer for each, in order.

        The next ones are read and judged while the ledger works on those before them. A refused one does not stop the
        others. Raises what `enqueue` raises besides Refused: PolicyError and KeyringError before anything is stored,
        StoreUnavailable before anything of its commit is; the commits before it are in. The highest class of durability
        that one of the jobs demands is demanded for all.
        """
        answers: list[Receipt | Refused] = []
        try:
            self._admit_in_parts(specs, self._demanded(specs), answers)
        except BentengError as error:
            error.add_note(
                f"the first {len(answers)} of {len(specs)} jobs were answered, those of this commit were not"
            )
            raise
        return answers

    def _admit_in_parts(self, specs: Sequence[JobSpec], wanted: Durability, answers: list[Receipt | Refused]) -> None:
        parts = self._parts(specs, wanted)
        before = next(parts, None)
        if before is not None:
            before.asked.begin()
        while before is not None:
            try:
                part = next(parts, None)
            finally:  # whatever happens meanwhile, nobody leaves without knowing what became of those before
                self._wait(before)
            if part is not None:
                part.asked.begin()
            answers += before.answers()
            before = part

    def _parts(self, specs: Sequence[JobSpec], wanted: Durability) -> Iterator[_Part]:
        """Yield the parts of a list, each ready for the ledger.

        Evidence is asked for the next one before this one is begun, for no answer comes while a part is under way; what
        needs none is not even read until then.
        """
        rest = _cut(specs)
        read = self._read(next(rest, ()))
        while read.prepared:
            part = self._make(read, wanted)
            if read.asked:
                read = self._read(next(rest, ()))
                yield part
            else:
                yield part
                read = self._read(next(rest, ()))

    def prepare(self, spec: JobSpec, noise: bytes = b"") -> Prepared:
        """Read a spec and load the facts that its checks need (I/O only where the type has loaders). Asks no ledger.

        noise  `NOISE` random bytes for the job's id, where they were drawn for many at once

        Raises PolicyError when the type cannot be judged at all.
        """
        try:
            draft = self.draft(spec, noise)
        except PolicyError:
            raise
        except RuleError as error:
            return Prepared(spec, None, {}, _refused(error))
        try:
            return Prepared(spec, draft, load_facts(self.registry, draft.job_type, draft.parsed.value), None)
        except RuleError as error:
            return Prepared(spec, draft, {}, _refused(error))

    def admit(self, prepared: Sequence[Prepared]) -> list[Receipt | BentengError]:
        """Judge and admit what several callers prepared; one answer for each, in order: a receipt, or what to raise.

        What one of them demands or lacks stops no other: each class of durability is a commit of its own.
        """
        return self._store(prepared, self.decide(prepared))

    def examine(self, spec: JobSpec) -> Verdict:
        """Judge a spec without admitting or recording anything: `benteng enqueue --dry-run`."""
        try:
            draft = self.draft(spec)
            facts = load_facts(self.registry, draft.job_type, draft.parsed.value)
            return self.judge(draft, facts, self._evidence([draft])[0], Door.GATE)
        except RuleError as error:
            return Refuse(error.rule, error.reason, error.fix, error.field)

    def draft(self, spec: JobSpec, noise: bytes = b"") -> Draft:
        """Parse a spec into an unsigned, unjudged job. Raises RuleError. noise: see `prepare`."""
        job_type = self.registry.find(spec.type)
        policy = self._policy(job_type)
        parsed = _parse(job_type, spec.payload, policy)
        _check_names(spec)
        job_id = new_job_id(system_clock(), noise or os.urandom(NOISE))
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
        durability = self.durability if spec.durability == Durability.D0 else max(self.durability, _durability(spec))
        return Draft(job, job_type, policy, parsed, spec.delay_seconds, durability)

    def judge(self, draft: Draft, facts: Mapping[str, object], evidence: Evidence, door: Door) -> Verdict:
        """Ask every guard about a draft."""
        checks = self.registry.checks_of(draft.job_type)
        case = Case(
            draft.job, draft.policy, door, shape=draft.job_type.shape, parsed=draft.parsed, checks=checks, facts=facts
        )
        return judge(case, evidence, GATE)

    def _policy(self, job_type: JobType) -> TypePolicy:
        policy = self.policies.get(job_type.name)
        if policy is None or policy.schema_sha256 != job_type.shape.schema_digest:
            raise PolicyError(
                "L-stale",
                f"the lock file does not have {job_type.name} as the code defines it",
                fix="run: benteng policy lock, review it, then: benteng policy apply",
            )
        return policy

    def _demanded(self, specs: Sequence[JobSpec]) -> Durability:
        """Return the class that is demanded for all. Raises PolicyError and KeyringError for what no job could pass."""
        for target in dict.fromkeys(spec.type for spec in specs if isinstance(spec.type, str) or callable(spec.type)):
            with suppress(DefinitionError):  # an unknown type is refused job by job
                policy = self._policy(self.registry.find(target))
                if policy.signed:
                    self._key(policy)
        classes = {str(spec.durability) for spec in specs}  # what is no class is refused job by job
        return max(self.durability, *(each for each in Durability if each.value in classes or each is Durability.D0))

    def _read(self, specs: Sequence[JobSpec]) -> _Read:
        """Read the jobs of one commit, and ask for the evidence that they need."""
        noise = os.urandom(NOISE * len(specs))
        prepared = [self.prepare(spec, noise[NOISE * n : NOISE * (n + 1)]) for n, spec in enumerate(specs)]
        evidence = self._evidence([each.draft for each in prepared if each.draft and not each.refused])
        return _Read(prepared, evidence, any(each is not UNASKED for each in evidence))

    def _make(self, read: _Read, wanted: Durability) -> _Part:
        """Judge the jobs of one commit, and make them ready for the ledger."""
        judged = self._judged(read.prepared, read.evidence)
        decided = [_demanding(said, wanted) for said in map(_unless_raised, judged)]
        admissions = [said for said in decided if isinstance(said, Admission)]
        pairs = zip(read.prepared, decided, strict=True)
        refusals = [_refusal(each, said) for each, said in pairs if isinstance(said, Refused)]
        return _Part(decided, refusals, self.producer.admitting(admissions, refusals))

    def _wait(self, part: _Part) -> None:
        try:
            part.asked.wait()
        except PolicyError:  # the ledger is of a lower class than is demanded: what was refused is recorded
            self.producer.admit([], part.refusals)
            raise

    def decide(self, prepared: Sequence[Prepared]) -> list[Admission | BentengError]:
        """Ask the ledger for evidence and judge; no spec's error stops another."""
        return self._judged(
            prepared, self._evidence([each.draft for each in prepared if each.draft and not each.refused])
        )

    def _judged(self, prepared: Sequence[Prepared], evidence: Sequence[Evidence]) -> list[Admission | BentengError]:
        found = iter(evidence)
        decided = [each.refused or self._decide_one(each, next(found)) for each in prepared]
        signed = _signed([said for said in decided if isinstance(said, _Unsigned)])
        return [next(signed) if isinstance(said, _Unsigned) else said for said in decided]

    def _decide_one(self, prepared: Prepared, evidence: Evidence) -> Admission | _Unsigned | BentengError:
        draft = prepared.draft
        if draft is None:
            raise AssertionError("unreachable: what was not refused has a draft")
        match self.judge(draft, prepared.facts, evidence, Door.GATE):
            case Admit():
                return self._admission(draft, evidence)
            case Hold(rule, reason):
                return self._admission(draft, evidence, State.HELD, rule, reason)
            case Divert(rule, reason):
                return self._admission(draft, evidence, State.QUARANTINED, rule, reason)
            case Refuse() as no:
                return Refused(no.rule, no.reason, field=no.field, fix=no.fix, suspicious=no.suspicious)

    def _admission(
        self, draft: Draft, evidence: Evidence, entry: State = State.READY, rule: str = "", reason: str = ""
    ) -> Admission | _Unsigned | KeyringError:
        """Give the job its times, by the store's clock, and find out who signs it, if anybody."""
        policy, job = draft.policy, _timed(draft, evidence.now)
        admission = Admission(job, entry, rule, reason, draft.durability)
        if policy.tier is Tier.LOW and not policy.signed:
            return admission
        try:
            key = self._key(policy)
        except KeyringError as error:
            return error
        return admission if key is None else _Unsigned(admission, _claims(job, policy, key, evidence.now), key)

    def _store(
        self, prepared: Sequence[Prepared], decided: Sequence[Admission | BentengError]
    ) -> list[Receipt | BentengError]:
        """Bring admissions and refusals to the ledger: one call, or one for each class of durability, highest first."""
        answers = {index: said for index, said in enumerate(decided) if isinstance(said, BentengError)}
        refused = {index: said for index, said in answers.items() if isinstance(said, Refused)}
        admitted = {index: said for index, said in enumerate(decided) if isinstance(said, Admission)}
        classes = sorted({said.durability for said in admitted.values()}, reverse=True) or [Durability.D0]
        stored: dict[int, Receipt | BentengError] = {**answers}
        for wanted in classes:
            group = {index: said for index, said in admitted.items() if said.durability is wanted}
            stored |= self._store_group(prepared, group, refused if wanted is classes[-1] else {})
        return [stored[index] for index in range(len(decided))]

    def _store_group(
        self, prepared: Sequence[Prepared], admissions: Mapping[int, Admission], refused: Mapping[int, Refused]
    ) -> dict[int, Receipt | BentengError]:
        refusals = [_refusal(prepared[index], said) for index, said in refused.items()]
        try:
            receipts = self.producer.admit(list(admissions.values()), refusals)
        except PolicyError as error:  # the ledger is of a lower class than is demanded: what was refused is recorded
            if refusals:
                self.producer.admit([], refusals)
            return dict.fromkeys(admissions, error)
        except BentengError as error:
            return dict.fromkeys([*admissions, *refused], error)
        return {index: _answer(receipt) for index, receipt in zip(admissions, receipts, strict=True)}

    def _evidence(self, drafts: Sequence[Draft]) -> list[Evidence]:
        needs = [draft.needs_evidence for draft in drafts]
        asked = [draft.question for draft in compress(drafts, needs)]
        found = iter(self.producer.evidence(asked) if asked else ())
        return [next(found) if needed else UNASKED for needed in needs]

    def _key(self, policy: TypePolicy) -> SigningKey | None:
        key = self.signing_key()
        if key is None and policy.signed:
            msg = f"a job of type {policy.name} must be signed and there is no producer key: make one with benteng init"
            raise KeyringError(msg)
        return key


def _cut(specs: Sequence[JobSpec]) -> Iterator[Sequence[JobSpec]]:
    first = FIRST_MAX if len(specs) > PART_MAX else PART_MAX
    yield specs[:first]
    yield from (specs[start : start + PART_MAX] for start in range(first, len(specs), PART_MAX))


def _timed(draft: Draft, now: Instant) -> Job:
    """Return the job with the times that count from the store's now."""
    job, delay, expires = draft.job, draft.delay_seconds, draft.policy.limits.expires_seconds
    if not (delay or expires):
        return job
    return replace(
        job,
        available_at=now + microseconds(delay) if delay else job.available_at,
        expires_at=now + microseconds(expires) if expires else 0,
    )


def _signed(unsigned: Sequence[_Unsigned]) -> Iterator[Admission | Refused]:
    """Sign all together, and answer each for itself: claims that nobody would open are refused."""
    for key, each_of_it in groupby(unsigned, key=lambda each: each.key):
        together = list(each_of_it)
        for each, sealed in zip(together, seal([each.claims for each in together], key), strict=True):
            if isinstance(sealed, EnvelopeError):
                yield _refused(sealed)
            else:
                yield replace(each.admission, job=replace(each.admission.job, envelope=sealed))


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
    try:
        return Durability(spec.durability)
    except ValueError:
        raise RuleError("G-durability", "a durability class is D0, D1 or D2", field="durability") from None


def _instant(run_at: datetime | None) -> Instant:
    if run_at is None:
        return 0
    if run_at.tzinfo is None:
        raise RuleError("G-zone", "a moment needs a time zone", field="run_at", fix="use datetime(..., tzinfo=...)")
    return microseconds((run_at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def _claims(job: Job, policy: TypePolicy, key: SigningKey, now: Instant) -> JobClaims:
    return JobClaims(version=VERSION, key_id=key.key_id, issued_at_us=now, **signed_columns(job, policy))


def _refusal(prepared: Prepared, refused: Refused) -> Refusal:
    spec = prepared.spec
    name = spec.type if isinstance(spec.type, str) else getattr(spec.type, "__name__", "")
    actor, request_id = (text if NAME.fullmatch(text) else "" for text in (spec.actor, spec.request_id))
    digest = prepared.draft.job.payload_sha256 if prepared.draft is not None else ""
    return Refusal(name[:128], actor, request_id, refused.rule, refused.reason, digest, refused.suspicious)


def _refused(error: RuleError) -> Refused:
    return Refused(error.rule, error.reason, field=error.field, fix=error.fix)


def _demanding(said: Admission | Refused, wanted: Durability) -> Admission | Refused:
    return replace(said, durability=wanted) if isinstance(said, Admission) and said.durability != wanted else said


S = TypeVar("S")


def _unless_raised(said: S | BentengError) -> S | Refused:
    if isinstance(said, BentengError) and not isinstance(said, Refused):
        raise said
    return said


def _answer(receipt: Receipt) -> Receipt | Refused:
    match receipt.disposal:
        case Disposal.ADMITTED | Disposal.DUPLICATE:
            return receipt
        case Disposal.CONFLICT:
            return Conflict(receipt.rule or "S-conflict", receipt.reason or CONFLICT, fix=SAME_OPERATION)
        case Disposal.REFUSED if receipt.rule == "S-depth":
            return QueueFull(
                receipt.rule, receipt.reason, fix="wait until some have ended, or find out why they do not"
            )
        case Disposal.REFUSED:
            return Refused(receipt.rule, receipt.reason)
        case _:
            assert_never(receipt.disposal)
