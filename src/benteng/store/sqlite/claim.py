"""Start ready jobs: never more than asked, in order, each with its resources, a fence, a lease and fresh evidence.

What cannot start is put where it belongs and the next one is taken: expired, undecodable and exhausted jobs go to
quarantine, jobs with a busy resource are parked. None of these spends an attempt. Jobs are loaded together, and those
without resources are started together; of a set with a damaged job the others start all the same.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec
from msgspec.structs import asdict

from benteng.audit import Event
from benteng.clock import Instant
from benteng.errors import StoreDamaged
from benteng.evidence import ControlScope
from benteng.job import Attempt, Grant, Job, Lease, sha256_hex
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import TypePolicy
from benteng.store.sqlite import control, evidence, moves, resources
from benteng.store.sqlite.apart import apart, apart_all
from benteng.store.sqlite.policies import type_facts
from benteng.store.sqlite.rows import Ready, UndecodableError, decode
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Tx
from benteng.store.sqlite.text import as_array

_CLAIM = statements("claim")
PAGE_MIN, PAGE_MAX = 16, 256
TOKEN_BYTES = 16
TOKEN_CHARS = 2 * TOKEN_BYTES


class Claimant(msgspec.Struct, frozen=True, gc=False):
    """Who claims: a worker of one pool, and the types its code knows."""

    pool: str
    worker: str
    accepts: tuple[str, ...]


class _Terms(msgspec.Struct, frozen=True, gc=False):
    """What the policy of a type says about each start of it."""

    attempts_max: int
    lease_seconds: float
    lease_until: Instant


class _Start(msgspec.Struct, frozen=True, gc=False):
    """A job that may start now if its resources are free."""

    row: Ready
    job: Job
    terms: _Terms


def claim(tx: Tx, n: int, claimant: Claimant) -> list[Grant]:
    """Return up to n grants; n if n jobs can start.

    A job that is woken on the way may stand before those already seen, so the line is walked again until a walk meets
    nobody new. Each job is decided once: what a claim takes or parks stays so until the claim is over.
    """
    grants: list[Grant] = []
    seen: set[int] = set()
    types = _startable(tx, claimant)
    while len(grants) < n:
        new = (seq for seq in _line(tx, types, n) if seq not in seen)
        met = list(islice(new, n - len(grants)))
        if not met:
            break
        seen.update(met)
        grants.extend(_tried(tx, met, claimant, types))
    return grants


def _startable(tx: Tx, claimant: Claimant) -> dict[str, _Terms]:
    """Return the accepted types that belong to the pool, are readable, and whose switches let them start."""
    fact = ("startable", claimant.pool, *claimant.accepts)
    if fact not in tx.facts:
        tx.facts[fact] = _policies(tx, claimant)
    return {policy.name: _terms(tx, policy) for policy in tx.facts[fact]}


def _policies(tx: Tx, claimant: Claimant) -> list[TypePolicy]:
    if claimant.pool in control.halted(tx, ControlScope.POOL):
        return []
    halted = set(control.halted(tx, ControlScope.TYPE))
    facts = type_facts(tx, sorted(set(claimant.accepts) - halted))
    return [fact.policy for fact in facts if fact.policy and fact.pool == claimant.pool]


def _terms(tx: Tx, policy: TypePolicy) -> _Terms:
    limits = policy.limits
    return _Terms(limits.attempts_max, limits.lease_seconds, tx.after(limits.lease_seconds))


def _line(tx: Tx, types: dict[str, _Terms], n: int) -> Iterator[int]:
    """Yield the ready jobs of the types in order, read page by page."""
    page = max(PAGE_MIN, min(PAGE_MAX, n // max(1, len(types))))
    lines = [_line_of(tx, name, page) for name in types]
    for _, _, seq in lines[0] if len(lines) == 1 else heapq.merge(*lines):
        yield seq


def _line_of(tx: Tx, type_name: str, page: int) -> Iterator[tuple[int, int, int]]:
    """Yield where the ready jobs of a type stand in line: (priority, due_at, seq)."""
    asked = {"type": type_name, "limit": page, "halted_origins": control.not_claimable(tx)["halted_origins"]}
    priority, due_at, seq = -1, 0, 0
    while True:
        places = tx.tuples(_CLAIM["candidates"], {**asked, "priority": priority, "due_at": due_at, "seq": seq})
        yield from places
        if len(places) < page:
            return
        priority, due_at, seq = places[-1]


def _tried(tx: Tx, seqs: list[int], claimant: Claimant, types: dict[str, _Terms]) -> list[Grant]:
    """Return the grants of some jobs, in order. A damaged one is set apart; if even that fails it stays as it is."""
    rows = {row.seq: row for row in tx.values(Ready, _CLAIM["load"], {"seqs": as_array(seqs)})}
    grants: list[Grant] = []
    free: list[_Start] = []
    start = partial(_start, tx, claimant=claimant)
    alone = partial(_start_alone, tx, claimant=claimant)
    for row in (rows[seq] for seq in seqs if seq in rows):
        ready = _decided(tx, row, types[row.type])
        if ready is None:
            continue
        if ready.job.refs.resources:
            grants += [*apart_all(tx, start, free, alone), *alone(ready)]
            free = []
        else:
            free.append(ready)
    return grants + apart_all(tx, start, free, alone)


def _decided(tx: Tx, row: Ready, terms: _Terms) -> _Start | None:
    """Return what may start; what may not is quarantined."""
    try:
        job = _whole(row)
    except UndecodableError as error:
        return _set_apart(tx, row, QuarantineReason.UNDECODABLE, str(error))
    if job.expires_at and job.expires_at < tx.now:
        return _set_apart(tx, row, QuarantineReason.EXPIRED, "not started in time")
    if row.attempts >= terms.attempts_max:
        return _set_apart(tx, row, QuarantineReason.EXHAUSTED, "no attempt is left")
    return _Start(row, job, terms)


def _whole(row: Ready) -> Job:
    job = decode(row)
    if sha256_hex(job.payload) != job.payload_sha256:
        raise UndecodableError("the payload has another digest")
    return job


def _set_apart(tx: Tx, row: Ready, reason: QuarantineReason, error: str) -> None:
    whole = apart(
        tx, lambda: moves.quarantine(tx, asdict(row), reason, error=error), job_id=row.id, type_name=row.type
    )[1]
    if not whole and reason is not QuarantineReason.UNDECODABLE:
        _set_apart(tx, row, QuarantineReason.UNDECODABLE, "damaged")


def _start_alone(tx: Tx, ready: _Start, claimant: Claimant) -> list[Grant]:
    """Start one job, or park it behind a busy resource."""
    row = ready.row
    grants, whole = apart(tx, lambda: _start_or_park(tx, ready, claimant), job_id=row.id, type_name=row.type)
    if not whole:
        _set_apart(tx, row, QuarantineReason.UNDECODABLE, "damaged")
    return grants or []


def _start_or_park(tx: Tx, ready: _Start, claimant: Claimant) -> list[Grant]:
    busy = resources.busy(tx, ready.job.refs.resources)
    if busy:
        resources.park(tx, asdict(ready.row), busy, ready.job.refs.resources)
        return []
    return _start(tx, [ready], claimant)


def _start(tx: Tx, ready: Sequence[_Start], claimant: Claimant) -> list[Grant]:
    """Start jobs whose resources are free. Each fence is drawn after that was decided."""
    by_terms: dict[_Terms, list[_Start]] = {}
    for each in ready:
        by_terms.setdefault(each.terms, []).append(each)
    grants = {
        grant.job.id: grant for terms, same in by_terms.items() for grant in _start_same(tx, same, terms, claimant)
    }
    return [grants[each.job.id] for each in ready]


def _start_same(tx: Tx, ready: Sequence[_Start], terms: _Terms, claimant: Claimant) -> list[Grant]:
    tokens = secrets.token_hex(TOKEN_BYTES * len(ready))
    grants = [
        _grant(tx, each, tokens[at : at + TOKEN_CHARS])
        for at, each in zip(range(0, len(tokens), TOKEN_CHARS), ready, strict=True)
    ]
    asked = {
        "seqs": as_array([each.row.seq for each in ready]),
        "fence": grants[0].lease.fence,
        "tokens": tokens,
        "token_chars": TOKEN_CHARS,
        "lease_until": terms.lease_until,
        "pool": claimant.pool,
        "worker": claimant.worker,
    }
    if tx.run(_CLAIM["start"], asked) != len(ready):
        raise StoreDamaged("a job has a fence from the future. Stop, and look for an older copy of the ledger")
    for each, grant in zip(ready, grants, strict=True):
        _note(tx, each, grant, claimant)
    return grants


def _grant(tx: Tx, ready: _Start, token: str) -> Grant:
    row, job = ready.row, ready.job
    fence = tx.draw_fence()
    resources.take(tx, job.refs.resources, job_id=job.id, fence=fence)
    attempt = Attempt(row.attempts + 1, row.crashes, row.handbacks, row.snoozes)
    lease = Lease(job.id, fence, token, ready.terms.lease_seconds)
    return Grant(job, attempt, lease, evidence.of_job(tx, job), alone=bool(row.alone))


def _note(tx: Tx, ready: _Start, grant: Grant, claimant: Claimant) -> None:
    said = (
        ("state_from", State.READY),
        ("state_to", State.RUNNING),
        ("worker", claimant.worker),
        ("resources", grant.job.refs.resources),
    )
    tx.note_of(Event.CLAIMED, ready.row, said, attempt=grant.attempt.number, fence=grant.lease.fence)
