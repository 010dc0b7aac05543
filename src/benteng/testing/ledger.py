"""A ledger to test: what a store's harness must offer, and the job types and jobs that the tests use.

A harness opens a fresh ledger and gives real connections to it. Whatever a test must do that no facet may do (damage a
row, give a job to a foreign origin) is a hook of the harness, so that the tests know no table of any store.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from benteng.job import Job, Refs, new_job_id, operation_key, own_operation_key, sha256_hex
from benteng.policy import LIMITS, Effect, KeyPath, Limits, Tier, TypePolicy
from benteng.store.contract import Auditor, Keeper, Operator, StepwiseConsumer, StepwiseProducer
from benteng.store.records import TypeRow
from benteng.testing.clock import TestClock
from benteng.testing.trap import Trap

POOL = "default"
OTHER_POOL = "other"
ACTOR = "svc:tester"


class Ledger(Protocol):
    """One fresh `dev` installation in which the producer's origin may speak for every actor on every target.

    Each facet method makes a new, real connection; `close` ends the ledger and whatever it opened.
    """

    @property
    def clock(self) -> TestClock:
        """The store's clock, the same for every connection, also in other processes."""
        ...

    def producer(self) -> StepwiseProducer:
        """Open the producer facet; every call has the same origin."""
        ...

    def consumer(self, pool: str = POOL) -> StepwiseConsumer:
        """Open the consumer facet of one pool."""
        ...

    def keeper(self) -> Keeper:
        """Open the keeper facet."""
        ...

    def operator(self) -> Operator:
        """Open the operator facet."""
        ...

    def auditor(self) -> Auditor:
        """Open the auditor facet."""
        ...

    def close(self) -> None:
        """End the ledger. Safe to call twice."""
        ...


class Twin(Ledger, Protocol):
    """What else the whole suite needs of a harness: other processes, other installations, and hands inside."""

    @property
    def recipe(self) -> tuple[str, str]:
        """`module:function` and an address: `function(address)` opens this same ledger in another process."""
        ...

    def copy(self) -> Twin:
        """Return a ledger of its own with the same content and time."""
        ...

    def production(self) -> Ledger:
        """Return a fresh, empty installation whose environment is `prod`."""
        ...

    def trap(self, kill_at: int) -> Trap:
        """Install a trap in this process: it steps before each statement that a store opened from now on runs."""
        ...

    def give_away(self, job_id: str, origin: str) -> None:
        """Make a job look as if another origin had admitted it."""
        ...

    def damage(self, job_id: str) -> None:
        """Make the stored row of a job undecodable, as a disk or a bug would."""
        ...

    def swap_payload(self, job_id: str) -> None:
        """Put another payload into the stored row of a job, and leave its digest."""
        ...


def make_limits(tier: Tier = Tier.LOW, **changes: Any) -> Limits:
    """Return small, round limits that tests can count to, with changes."""
    small = {
        "attempts_max": 3,
        "crashes_max": 2,
        "handbacks_max": 2,
        "snoozes_max": 2,
        "snooze_seconds_max": 600.0,
        "backoff_seconds_base": 1.0,
        "backoff_seconds_min": 0.5,
        "backoff_seconds_max": 60.0,
        "lease_seconds": 30.0,
        "result_keep_seconds": 3_600.0,
    }
    return msgspec.structs.replace(LIMITS[tier], **(small | changes))


def make_policy(
    name: str,
    tier: Tier = Tier.LOW,
    effect: Effect = Effect.REPEATABLE,
    *,
    limits: dict[str, Any] | None = None,
    **fields: Any,
) -> TypePolicy:
    """Return a policy that keeps its tier's floors. `limits` are changes of `make_limits`, `fields` of the policy."""
    identity: dict[str, Any] = {"operation": ("x",), "signed": tier is Tier.HIGH} if tier is not Tier.LOW else {}
    return TypePolicy(
        name=name,
        tier=tier,
        effect=effect,
        limits=make_limits(tier, **(limits or {})),
        **(identity | fields),
    )


LOW = make_policy("t.low@1")
MEDIUM = make_policy("t.medium@1", Tier.MEDIUM, resources=(KeyPath("r", "host"),), artifacts=("a",))
ONCE = make_policy("t.once@1", Tier.MEDIUM, Effect.ONCE, resources=(KeyPath("r", "host"),))
HIGH = make_policy("t.high@1", Tier.HIGH, Effect.ONCE, resources=(KeyPath("r", "host"),))
ELSEWHERE = make_policy("t.elsewhere@1", pool=OTHER_POOL)
PARENT = make_policy("t.parent@1", Tier.MEDIUM, successors=("t.low@1", "t.medium@1", "t.high@1"))
CHIEF = make_policy("t.chief@1", Tier.HIGH, successors=("t.low@1", "t.high@1"))
BRIEF = make_policy("t.brief@1", limits={"operation_keep_seconds": 86_400.0, "expires_seconds": 60.0})

TYPES: tuple[TypePolicy, ...] = (LOW, MEDIUM, ONCE, HIGH, ELSEWHERE, PARENT, CHIEF, BRIEF)
"""The job types of the suite. All are in the pool `default` but ELSEWHERE."""

ACCEPTS: tuple[str, ...] = tuple(policy.name for policy in TYPES)


def type_row(policy: TypePolicy) -> TypeRow:
    """Return the row of `job_type` for a policy."""
    return TypeRow(policy.name, msgspec.json.encode(policy, order="sorted"), policy.sha256)


def make_job(
    policy: TypePolicy,
    *,
    origin: str,
    operation: str | None = None,
    payload: bytes | None = None,
    resources: tuple[str, ...] = (),
    **changes: Any,
) -> Job:
    """Return a job as a gate would make it.

    operation  the value of its operation's field; None: an operation of its own
    payload    its bytes; by default they follow from `operation`
    changes    of any field of Job, after everything else was computed
    """
    job_id = new_job_id(0, os.urandom(10))
    body = msgspec.json.encode({"x": operation}) if payload is None else payload
    own = own_operation_key(job_id)
    job = Job(
        id=job_id,
        type=policy.name,
        tier=policy.tier,
        payload=body,
        payload_sha256=sha256_hex(body),
        operation_key=own if operation is None else operation_key(policy.name, {"x": operation}),
        origin=origin,
        actor=ACTOR,
        request_id="req-1",
        refs=Refs(resources=tuple(sorted(resources))),
        policy_sha256=policy.sha256,
        envelope=b"envelope" if policy.signed else b"",
    )
    return replace(job, **changes)
