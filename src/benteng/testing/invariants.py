"""The invariants of a ledger, from the outside: what the store shows, its audit log, and what clients were told.

Numbers are those of reference/reliability.md section 3. Nothing here knows a table: everything is read through the
operator's and the auditor's facets, and the log is replayed record by record against the life cycle's tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benteng.audit import verify_page
from benteng.lifecycle import ENTRY, TERMINAL, TRANSITIONS, OperationState, QuarantineReason, State
from benteng.merkle import Frontier
from benteng.policy import Tier
from benteng.store.contract import Operator
from benteng.store.records import AuditRow, JobView, Query
from benteng.testing.bench import audit_rows, records
from benteng.testing.journal import Journal
from benteng.testing.ledger import Ledger

PAGE = 200
HELD_KEYS = frozenset(set(OperationState) - {OperationState.FREED})
STEPS: frozenset[tuple[str, str]] = frozenset(
    (state.value, after.value) for state, events in TRANSITIONS.items() for after in events.values()
)
"""Every step (from, to) that the life cycle has."""


class BrokenLedgerError(AssertionError):
    """At least one invariant does not hold. The message has one line for each violation."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a ledger shows to whoever may see everything.

    twice    jobs that are listed more than once
    purged   jobs that ended and whose retention is over
    """

    jobs: dict[str, JobView]
    twice: list[str]
    rows: list[AuditRow]
    records: list[dict[str, Any]]
    purged: frozenset[str]


def check_ledger(ledger: Ledger, journal: Journal | None = None) -> None:
    """Raise BrokenLedgerError unless every invariant holds that can be seen from outside."""
    found = list(violations(contents(ledger), journal or Journal()))
    if found:
        raise BrokenLedgerError("\n".join(found))


def contents(ledger: Ledger) -> Contents:
    """Read everything that the operator and the auditor may see."""
    with closing(ledger.operator()) as operator, closing(ledger.auditor()) as auditor:
        rows = audit_rows(auditor)
        views, log = list(_views(operator)), records(rows)
    listed = Counter(job_id for job_id, _ in views)
    twice = [job_id for job_id, count in listed.items() if count > 1]
    return Contents(dict(views), twice, rows, log, _purged(log) - listed.keys())


def _purged(log: Iterable[dict[str, Any]]) -> frozenset[str]:
    """Return the jobs that may be gone: ended before a purge that left its record."""
    ended, purged = list[str](), 0
    for record in log:
        if record["state_to"] in TERMINAL:
            ended.append(record["job_id"])
        elif record["event"] == "purged":
            purged = len(ended)
    return frozenset(ended[:purged])


def _views(operator: Operator) -> Iterator[tuple[str, JobView]]:
    after = ""
    while True:
        page = operator.find(Query(after=after, limit=PAGE))
        for line in page.lines:
            view = operator.show(line.job_id)
            assert view is not None, f"listed but not shown: {line.job_id}"
            yield line.job_id, view
        if not page.next:
            return
        after = page.next


def violations(seen: Contents, journal: Journal) -> Iterator[str]:
    """Yield one line for each broken invariant, starting with its number."""
    yield from _conservation(seen, journal)
    yield from _no_phantom(seen, journal)
    yield from _fences(seen, journal)
    yield from _bounds(seen)
    yield from _operations(seen, journal)
    yield from _resources(seen)
    yield from _exclusion(seen)
    yield from _log(seen)
    yield from _steps(seen)


def _conservation(seen: Contents, journal: Journal) -> Iterator[str]:
    """I1: what was promised to a client is there, with the digest that was promised."""
    for job_id, digest in journal.admitted.items():
        if job_id in seen.purged:
            continue
        if job_id not in seen.jobs:
            yield f"I1 lost: {job_id} was admitted and is gone"
        elif digest != seen.jobs[job_id].job.payload_sha256:
            yield f"I1 changed: {job_id} has another payload digest than was admitted"
    for job_id in journal.completed:
        if job_id in seen.jobs and seen.jobs[job_id].state is not State.COMPLETED:
            yield f"I1 undone: {job_id} was accepted as completed and is {seen.jobs[job_id].state}"


def _no_phantom(seen: Contents, journal: Journal) -> Iterator[str]:
    """I2: nothing runs that was not admitted, and nothing runs with another payload."""
    claimed = {(record["job_id"], record["fence"]) for record in _of(seen, "claimed")}
    for start in journal.started:
        view = seen.jobs.get(start.job_id)
        if view is None and start.job_id not in seen.purged:
            yield f"I2 phantom: {start.job_id} was started and does not exist"
        elif view is not None and start.payload_sha256 != view.job.payload_sha256:
            yield f"I2 phantom: {start.job_id} was started with another payload"
        if (start.job_id, start.fence) not in claimed:
            yield f"I2 unrecorded: {start.job_id} was granted fence {start.fence} without a record"


def _fences(seen: Contents, journal: Journal) -> Iterator[str]:
    """I3: fences rise strictly in the order of the log, over all jobs; no token is used twice."""
    fences = [record["fence"] for record in _of(seen, "claimed")]
    yield from (f"I3 fence {b} was given after {a}" for a, b in pairwise(fences) if b <= a)
    tokens = Counter(start.token for start in journal.started)
    yield from (f"I3 one token was given {count} times" for count in tokens.values() if count > 1)
    last = {record["job_id"]: record["fence"] for record in _of(seen, "claimed")}
    for job_id, view in seen.jobs.items():
        if view.state is State.RUNNING and view.fence != last.get(job_id, 0):
            yield f"I3 {job_id} runs under fence {view.fence}, the last claim was {last.get(job_id, 0)}"


def _bounds(seen: Contents) -> Iterator[str]:
    """I7: attempts are claims that were not given back, and never go below zero."""
    claims = Counter(record["job_id"] for record in _of(seen, "claimed"))
    for job_id, view in seen.jobs.items():
        if not 0 <= view.attempts <= claims[job_id] or not 0 <= view.crashes <= view.attempts:
            yield f"I7 {job_id}: {claims[job_id]} claims, {view.attempts} attempts, {view.crashes} crashes"
        if not 0 <= view.starts <= claims[job_id]:
            yield f"I7 {job_id}: {claims[job_id]} claims and {view.starts} starts"
        if view.state is State.RUNNING and view.attempts < 1:
            yield f"I7 {job_id} runs and has spent no attempt"


def _operations(seen: Contents, journal: Journal) -> Iterator[str]:
    """I8: of all jobs of a type's key at most one holds it; epochs are counted; what succeeded, succeeded once."""
    yield from (f"I8 {job_id} is in the ledger twice" for job_id in seen.twice)
    by_key: dict[tuple[str, str], list[JobView]] = defaultdict(list)
    for view in seen.jobs.values():
        by_key[view.job.type.partition("@")[0], view.job.operation_key].append(view)
    for (_, key), views in by_key.items():
        holders = [view.job.id for view in views if view.operation in HELD_KEYS]
        if len(holders) > 1:
            yield f"I8 key {key[:8]} is held by {', '.join(holders)}"
        epochs = Counter(view.epoch for view in views)
        if max(epochs.values()) > 1:
            yield f"I8 key {key[:8]} has an epoch twice"
    yield from (f"I8 {job_id} completed {n} times" for job_id, n in Counter(journal.completed).items() if n > 1)
    for view in seen.jobs.values():
        if view.operation not in _allowed_operations(view):
            yield f"I8 {view.job.id} is {view.state} and its operation is {view.operation}"


def _allowed_operations(view: JobView) -> set[OperationState]:
    """The table of DESIGN section 3, from a job's state to what its operation may be."""
    match view.state:
        case State.COMPLETED:
            return {OperationState.COMPLETED, OperationState.FREED}  # freed: after its retention
        case State.CANCELLED:
            return {OperationState.KEPT if view.starts else OperationState.FREED}
        case State.DISCARDED:
            return {OperationState.KEPT, OperationState.FREED} if view.starts else {OperationState.FREED}
        case State.QUARANTINED if view.reason is QuarantineReason.UNCERTAIN:
            return {OperationState.UNCERTAIN}
        case State.QUARANTINED:
            return {OperationState.KEPT} if view.starts else {OperationState.RESERVED, OperationState.FREED}
        case _:
            return {OperationState.RESERVED}


def _resources(seen: Contents) -> Iterator[str]:
    """I10: one holder per resource, who runs or is uncertain; a running job holds all of its resources."""
    for view in seen.jobs.values():
        for resource in view.resources:
            holder = seen.jobs.get(resource.holder)
            if resource.holder and (holder is None or not _may_hold(holder)):
                yield f"I10 {resource.key} is held by {resource.holder}, which is {holder and holder.state}"
            if view.state is State.RUNNING and resource.holder != view.job.id:
                yield f"I10 {view.job.id} runs without holding {resource.key}"
            if view.state is State.RUNNING and resource.fence != view.fence:
                yield f"I5 {resource.key} has fence {resource.fence}, its holder {view.fence}"
            if resource.closed and (holder is None or holder.state is State.RUNNING):
                yield f"I10 {resource.key} is closed without an uncertain holder"


def _may_hold(view: JobView) -> bool:
    return view.state is State.RUNNING or view.reason is QuarantineReason.UNCERTAIN


def _exclusion(seen: Contents) -> Iterator[str]:
    """I10 over time: in the order of the log no attempt starts on a resource that another one holds."""
    holders: dict[str, str] = {}
    for record in seen.records:
        job_id, view = record["job_id"], seen.jobs.get(record["job_id"])
        if record["event"] == "claimed" and view is not None:
            for key in view.job.refs.resources:
                if holders.get(key, job_id) != job_id:
                    yield f"I10 {job_id} started on {key} while {holders[key]} held it"
                holders[key] = job_id
        elif _lets_go(record, view):
            holders = {key: holder for key, holder in holders.items() if holder != job_id}


def _lets_go(record: dict[str, Any], view: JobView | None) -> bool:
    """Say whether a record ends the holding of its job: it left running, or was resolved; closed at HIGH does not."""
    if record["state_to"] == State.QUARANTINED and record["event"] == "uncertain":
        return view is not None and view.job.tier is not Tier.HIGH
    leaves = {State.RUNNING.value, State.QUARANTINED.value}
    return record["state_from"] in leaves and record["state_to"] not in {"", record["state_from"]}


def _log(seen: Contents) -> Iterator[str]:
    """I12: the log has no gap and every body is the one that its leaf commits to."""
    findings = verify_page(seen.rows, 1, Frontier())
    yield from (f"I12 {problem.rule} at {problem.seq}" for problem in findings.problems)


def _steps(seen: Contents) -> Iterator[str]:
    """I11, I12: each job's records are one unbroken chain of allowed steps that ends where the job is."""
    chains: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for record in seen.records:
        step = (record["state_from"], record["state_to"])
        if record["job_id"] and step[1] and step[0] != step[1]:
            chains[record["job_id"]].append(step)
    for job_id, view in seen.jobs.items():
        yield from _chain(job_id, chains.pop(job_id, []), view.state)
    yield from (f"I12 {job_id} has a history and does not exist" for job_id in chains.keys() - seen.purged)


def _chain(job_id: str, steps: list[tuple[str, str]], end: State) -> Iterator[str]:
    at = ""
    for before, after in steps:
        if before != at:
            yield f"I12 {job_id}: a record says {before} -> {after}, but it was {at or 'nothing'}"
        if not (before == "" and after in set(ENTRY)) and (before, after) not in STEPS:
            yield f"I11 {job_id}: {before} -> {after} is no step of the life cycle"
        at = after
    if at != end.value:
        yield f"I12 {job_id} is {end.value}, its records end at {at or 'nothing'}"


def _of(seen: Contents, event: str) -> Iterable[dict[str, Any]]:
    return (record for record in seen.records if record["event"] == event)
