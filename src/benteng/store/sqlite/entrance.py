"""One job at the door: who brings it, and what the store itself requires of it. The first rule that it breaks counts.

The gate has judged already; what is checked here is what the gate cannot be trusted with or cannot see in time: form,
origin, policy, limits and switches.  Trust: nothing of a job.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from benteng.evidence import ControlMode
from benteng.job import Job, sha256_hex
from benteng.lifecycle import ENTRY, State
from benteng.policy import PRIORITY_MAX, RESOURCES_MAX, TYPE_NAME
from benteng.store.sqlite import control
from benteng.store.sqlite.evidence import may_speak
from benteng.store.sqlite.policies import TypeFact, type_fact
from benteng.store.sqlite.rows import HEX_64, JOB_ID
from benteng.store.sqlite.store import INSTANT_MAX, Tx

NAME_BYTES_MAX = 256
REFS_MAX = 256
ENVELOPE_BYTES_MAX = 16 * 1024
SUMMARY_BYTES_MAX = 4096


class Entrance(msgspec.Struct, frozen=True, gc=False):
    """One job on its way in. `origin` is who asks, `parent` the job that adds it as its successor."""

    job: Job
    origin: str
    entry: State = State.READY
    rule: str = ""
    reason: str = ""
    parent: str = ""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why the store itself does not let a job in."""

    rule: str
    reason: str
    suspicious: bool = False


def refusal_of(tx: Tx, entrance: Entrance) -> Refusal | None:
    """Return the first rule of the store that the job breaks, or None."""
    job = entrance.job
    malformed = _malformed(job)
    if malformed:
        return malformed
    if job.origin != entrance.origin:
        return Refusal("S-origin", "the job names another origin than the one that asks", suspicious=True)
    fact = type_fact(tx, job.type)
    if fact is None:
        return Refusal("S-type", "the store does not know this job type")
    return _against_policy(job, fact) or _against_rules(tx, entrance, fact)


def refusal_to_return(tx: Tx, job: Job) -> Refusal | None:
    """Return why a quarantined job may not come back: the rules of an entrance, but for its generation."""
    return refusal_of(tx, Entrance(replace(job, generation=0), origin=job.origin))


def _malformed(job: Job) -> Refusal | None:
    if not JOB_ID.fullmatch(job.id) or not TYPE_NAME.fullmatch(job.type) or not HEX_64.fullmatch(job.operation_key):
        return Refusal("S-format", "id, type or operation key is not well formed", suspicious=True)
    if not all(_is_name(text) for text in (job.origin, job.actor, job.request_id, job.policy_sha256)):
        return Refusal("S-format", "origin, actor or request id is too long or has control characters", suspicious=True)
    if not 0 <= job.priority <= PRIORITY_MAX or job.generation:
        return Refusal("S-format", f"priority is 0 to {PRIORITY_MAX}, generation 0", suspicious=True)
    if not 0 <= job.available_at <= INSTANT_MAX or not 0 <= job.expires_at <= INSTANT_MAX:
        return Refusal("S-format", "available_at or expires_at is out of range", suspicious=True)
    if sha256_hex(job.payload) != job.payload_sha256:
        return Refusal("S-digest", "the payload has another digest", suspicious=True)
    if len(job.envelope) > ENVELOPE_BYTES_MAX or not _fits(job.summary, SUMMARY_BYTES_MAX):
        return Refusal("S-limit", "envelope or summary is too large", suspicious=True)
    return _malformed_refs(job)


def _malformed_refs(job: Job) -> Refusal | None:
    keys = job.refs.resources
    if len(keys) > RESOURCES_MAX:
        return Refusal("S-resources", f"more than {RESOURCES_MAX} resources. Fan out: one job each")
    if list(keys) != sorted(set(keys)) or not all(_is_resource(key) for key in keys):
        return Refusal("S-resources", "resources are sorted, distinct `kind:value` keys", suspicious=True)
    names = [*job.refs.targets, *(part for ref in job.refs.artifacts for part in (ref.id, ref.sha256))]
    if len(names) > REFS_MAX or not all(_is_name(name) for name in names):
        return Refusal("S-format", "targets or artifacts are too many or not well formed", suspicious=True)
    return None


def _against_policy(job: Job, fact: TypeFact) -> Refusal | None:
    if fact.policy is None or job.policy_sha256 != fact.sha256:
        return Refusal("S-policy", "the job was judged by another policy than the store's. Apply the policy, try again")
    if job.tier is not fact.policy.tier:
        return Refusal("S-policy", "the job has another tier than its type", suspicious=True)
    if len(job.payload) > fact.policy.limits.payload_bytes_max:
        return Refusal("S-limit", f"the payload is larger than {fact.policy.limits.payload_bytes_max} bytes")
    return None


def _against_rules(tx: Tx, entrance: Entrance, fact: TypeFact) -> Refusal | None:
    job = entrance.job
    if not may_speak(tx, origin=entrance.origin, actor=job.actor, type_name=job.type):
        return Refusal("S-speaks", "the origin may not enqueue this type for this actor", suspicious=True)
    over = control.strictest(tx, type_name=job.type, origin=entrance.origin, pool=fact.pool)
    if over.mode is ControlMode.HALT:
        return Refusal("S-control", f"{over.scope} {over.name} is halted: {over.reason}")
    if entrance.entry not in ENTRY:
        return Refusal("S-format", "a job enters ready, held or quarantined", suspicious=True)
    return None


def _is_name(text: str) -> bool:
    return text.isprintable() and _fits(text, NAME_BYTES_MAX)


def _is_resource(key: str) -> bool:
    kind, _, value = key.partition(":")
    return bool(kind and value) and _is_name(key)


def _fits(text: str, bytes_max: int) -> bool:
    try:
        return len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False
