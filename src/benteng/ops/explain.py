"""What each guard says of a spec, without admitting or recording anything: `benteng enqueue --dry-run`.

The gate stops at the first guard that says no; a person who asks wants to hear all of them. Evidence is always fetched.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from benteng.errors import PolicyError, RuleError
from benteng.evidence import Evidence
from benteng.gate import Draft, Gate, JobSpec, load_facts
from benteng.guard import GATE, Case, Door, judge
from benteng.job import sha256_hex
from benteng.verdict import ADMIT, Refuse, Verdict


@dataclass(frozen=True, slots=True)
class Said:
    """What one guard says."""

    guard: str
    verdict: Verdict


def explain(gate: Gate, spec: JobSpec) -> list[Said]:
    """Return what each guard says, in the gate's order; the contract first, and alone when the payload breaks it.

    Raises PolicyError when the type cannot be judged at all, StoreUnavailable.
    """
    try:
        draft = gate.draft(spec)
    except PolicyError:
        raise
    except RuleError as error:
        return [Said("contract", _refusal(error))]
    evidence = gate.producer.evidence([draft.question])[0]
    said = [Said("contract", ADMIT), *_guards(gate, draft, evidence)]
    return [*said, Said("operation", _operation(draft, evidence))]


def _guards(gate: Gate, draft: Draft, evidence: Evidence) -> list[Said]:
    try:
        facts = load_facts(gate.registry, draft.job_type, draft.parsed.value)
    except RuleError as error:
        return [Said("evidence", _refusal(error))]
    case = Case(
        draft.job,
        draft.policy,
        Door.GATE,
        shape=draft.job_type.shape,
        parsed=draft.parsed,
        checks=gate.registry.checks_of(draft.job_type),
        facts=facts,
    )
    known = replace(evidence, policy_sha256=None)
    return [Said(getattr(guard, "__name__", "guard"), judge(case, known, (guard,))) for guard in GATE]


def _operation(draft: Draft, evidence: Evidence) -> Verdict:
    """Say what the store would answer to the operation's key; one taken with the same payload is no refusal."""
    fact = evidence.operation
    if fact is None:
        return ADMIT
    same = fact.origin == draft.job.origin and fact.payload_sha256 == sha256_hex(draft.job.payload)
    if same:
        return ADMIT
    return Refuse("S-conflict", "the same operation exists with another payload or from another origin")


def _refusal(error: RuleError) -> Refuse:
    return Refuse(error.rule, error.reason, error.fix, error.field)
