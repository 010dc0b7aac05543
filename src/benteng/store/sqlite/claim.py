"""Start ready jobs: never more than asked, in order, each with its resources, a fence, a lease and fresh evidence.

What cannot start is put where it belongs and the next one is taken: expired, undecodable and exhausted jobs go to
quarantine, jobs with a busy resource are parked. None of these spends an attempt.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from benteng.audit import Event
from benteng.errors import StoreDamaged
from benteng.evidence import ControlScope
from benteng.job import Attempt, Grant, Job, Lease
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import TypePolicy
from benteng.store.sqlite import control, evidence, moves, resources
from benteng.store.sqlite.apart import apart
from benteng.store.sqlite.policies import type_fact
from benteng.store.sqlite.rows import UndecodableError, decode
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx

_CLAIM = statements("claim")
PAGE = 64
TOKEN_BYTES = 16

Place = tuple[int, int, int]
"""Where a job stands in line: (priority, due_at, seq)."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims: a worker of one pool, and the types its code knows."""

    pool: str
    worker: str
    accepts: tuple[str, ...]


def claim(tx: Tx, n: int, claimant: Claimant) -> list[Grant]:
    """Return up to n grants; n if n jobs can start.

    A job that is woken on the way may stand before those already seen, so the line is walked again until a walk meets
    nobody new. Each job is decided once: what a claim takes or parks stays so until the claim is over.
    """
    grants: list[Grant] = []
    seen: set[int] = set()
    types = _startable(tx, claimant)
    met = -1
    while met < len(seen):
        met = len(seen)
        for seq in _line(tx, types, n):
            if seq in seen:
                continue
            seen.add(seq)
            grants.extend(_tried(tx, seq, claimant))
            if len(grants) == n:
                return grants
    return grants


def _startable(tx: Tx, claimant: Claimant) -> list[str]:
    """Return the accepted types that belong to the pool, are readable, and whose switches let them start."""
    if claimant.pool in control.halted(tx, ControlScope.POOL):
        return []
    halted = set(control.halted(tx, ControlScope.TYPE))
    facts = [type_fact(tx, name) for name in sorted(set(claimant.accepts) - halted)]
    return [fact.name for fact in facts if fact and fact.policy and fact.pool == claimant.pool]


def _line(tx: Tx, types: list[str], n: int) -> Iterator[int]:
    """Yield the ready jobs of the types in order, read page by page."""
    lines = [_line_of(tx, name, min(n, PAGE)) for name in types]
    for _, _, seq in heapq.merge(*lines):
        yield seq


def _line_of(tx: Tx, type_name: str, page: int) -> Iterator[Place]:
    asked = {"type": type_name, "limit": page, "halted_origins": control.not_claimable(tx)["halted_origins"]}
    last: Place = (-1, 0, 0)
    while True:
        rows = tx.all(_CLAIM["candidates"], asked | dict(zip(("priority", "due_at", "seq"), last, strict=True)))
        for row in rows:
            last = (row["priority"], row["due_at"], row["seq"])
            yield last
        if len(rows) < page:
            return


def _tried(tx: Tx, seq: int, claimant: Claimant) -> list[Grant]:
    """Return the grant of one job, or none. A damaged one is set apart alone; if even that fails it stays as it is."""
    row = tx.one(_CLAIM["load"], {"seq": seq})
    if row is None:
        return []
    named = {"job_id": row["id"], "type_name": row["type"]}
    grant, is_whole = apart(tx, lambda: _decide(tx, row, claimant), **named)
    if not is_whole:
        apart(tx, lambda: moves.quarantine(tx, row, QuarantineReason.UNDECODABLE, error="damaged"), **named)
    return [grant] if grant else []


def _decide(tx: Tx, row: Row, claimant: Claimant) -> Grant | None:
    try:
        job = decode(row)
    except UndecodableError as error:
        moves.quarantine(tx, row, QuarantineReason.UNDECODABLE, error=str(error))
        return None
    policy = _policy(tx, job)
    if job.expires_at and job.expires_at < tx.now:
        moves.quarantine(tx, row, QuarantineReason.EXPIRED, error="not started in time")
        return None
    if row["attempts"] >= policy.limits.attempts_max:
        moves.quarantine(tx, row, QuarantineReason.EXHAUSTED, error="no attempt is left")
        return None
    busy = resources.busy(tx, job.refs.resources)
    if busy:
        resources.park(tx, row, busy, job.refs.resources)
        return None
    return _start(tx, row, job, policy, claimant)


def _start(tx: Tx, row: Row, job: Job, policy: TypePolicy, claimant: Claimant) -> Grant:
    fence = tx.draw_fence()
    resources.take(tx, job.refs.resources, job_id=job.id, fence=fence)
    seconds = policy.limits.lease_seconds
    lease = Lease(job.id, fence, secrets.token_hex(TOKEN_BYTES), seconds)
    started = {
        "seq": row["seq"],
        "fence": fence,
        "token": lease.token,
        "pool": claimant.pool,
        "worker": claimant.worker,
        "lease_until": tx.after(seconds),
    }
    if tx.run(_CLAIM["start"], started) != 1:
        raise StoreDamaged("a job has a fence from the future. Stop, and look for an older copy of the ledger")
    attempt = Attempt(row["attempts"] + 1, row["crashes"], row["handbacks"], row["snoozes"])
    tx.note(
        Event.CLAIMED,
        row,
        state_from=State.READY,
        state_to=State.RUNNING,
        worker=claimant.worker,
        resources=job.refs.resources,
        attempt=attempt.number,
        fence=fence,
    )
    return Grant(job, attempt, lease, evidence.of_job(tx, job), alone=bool(row["alone"]))


def _policy(tx: Tx, job: Job) -> TypePolicy:
    fact = type_fact(tx, job.type)
    if fact is None or fact.policy is None:  # _startable has seen both
        raise StoreDamaged("a policy vanished inside a transaction")
    return fact.policy
