"""End attempts as their workers ask, within bounds that no worker can move.

Attempts, crashes, hand-backs, snoozes and delays are bounded here again: a hostile worker cannot retry for ever
(DESIGN section 2).  Trust: not the worker; only (id, fence, token, running, own pool) prove an attempt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import assert_never

import msgspec
from msgspec.structs import asdict, replace

from benteng import lifecycle
from benteng.audit import Event
from benteng.clock import Instant
from benteng.decide import Disposition
from benteng.lifecycle import QuarantineReason, State
from benteng.policy import Effect, Limits, Tier, TypePolicy
from benteng.store.records import LeaseProof, Settled, Settlement
from benteng.store.sqlite import admission, moves, refusals
from benteng.store.sqlite.apart import apart, apart_all
from benteng.store.sqlite.entrance import Entrance, Refusal
from benteng.store.sqlite.moves import Completion, Counts, counts_of, with_crash
from benteng.store.sqlite.policies import policy_of
from benteng.store.sqlite.rows import Running
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import as_array, bounded

_SETTLE = statements("settle")

RESULT_TOO_LARGE = b'{"$error":"the result was larger than result_bytes_max"}'
"""Stands for a result that may not be kept: the work was done, so the job completes (cases.md, C87)."""

SUCCESSORS_MAX = 100
USED_MAX = 1_000_000_000
_GOES_BACK = frozenset(set(Disposition) - {Disposition.COMPLETE, Disposition.QUARANTINE})
_STARTED_UNKNOWN = frozenset({Disposition.CRASH, Disposition.INTERRUPT})


class _End(msgspec.Struct, frozen=True, gc=False):
    """One proven attempt, and how its worker wants it to end."""

    row: Running
    asked: Settlement

    @property
    def is_plain(self) -> bool:
        """Whether it only completes."""
        return self.asked.disposition is Disposition.COMPLETE and not self.asked.successors


def settle(tx: Tx, settlements: Sequence[Settlement], *, pool: str) -> list[Settled]:
    """End attempts. What is not returned was fenced off: then only the stale try is recorded.

    Plain completions that follow each other are ended together; of a set with damage the others end all the same.
    """
    settled: list[Settled] = []
    for is_plain, ends in groupby(_proven(tx, settlements, pool), key=attrgetter("is_plain")):
        if is_plain:
            settled += apart_all(tx, partial(_complete, tx), list(ends), partial(_alone, tx))
        else:
            settled += chain.from_iterable(_alone(tx, end) for end in ends)
    return settled


def _proven(tx: Tx, settlements: Sequence[Settlement], pool: str) -> Iterator[_End]:
    """Yield the settlements whose attempt is proven with its row; the first that proves an attempt ends it."""
    proofs = [each.proof for each in settlements]
    ids = [proof.job_id if is_proof(proof) else "" for proof in proofs]
    rows = tx.values(Running, _SETTLE["running"], {"ids": as_array(ids), "pool": pool})
    first = {row.seq: row for row in reversed(rows) if _proves(proofs[row.place], row)}
    by_place = {row.place: row for row in first.values()}
    for place, asked in enumerate(settlements):
        if place in by_place:
            yield _End(by_place[place], asked)
        else:
            _record_stale(tx, asked)


def _proves(proof: LeaseProof, row: Running) -> bool:
    return (proof.fence, proof.token) == (row.fence, row.token)


def _alone(tx: Tx, end: _End) -> list[Settled]:
    answer, _ = apart(tx, lambda: _ended(tx, end), job_id=end.row.id, type_name=end.row.type)
    return [] if answer is None else [answer]


def _ended(tx: Tx, end: _End) -> Settled:
    state, reason = _end(tx, end, policy_of(tx, end.row.type))
    return Settled(end.row.id, state, reason)


def _complete(tx: Tx, ends: Sequence[_End]) -> list[Settled]:
    """Complete attempts together: nothing follows from one of them for another."""
    state = moves.complete(tx, [_completion(tx, end) for end in ends])
    return [Settled(end.row.id, state) for end in ends]


def _completion(tx: Tx, end: _End) -> Completion:
    bytes_max, result_until, keep_until = _retention(tx, end.row.type)
    result = end.asked.result
    kept = result if len(result) <= bytes_max else RESULT_TOO_LARGE
    return Completion(end.row, kept, result_until, keep_until, used=_used(end.asked))


def _retention(tx: Tx, type_name: str) -> tuple[int, Instant, Instant | None]:
    """Return how large a result of a type may be, and until when result and operation are kept from now on."""
    memo = ("retention", type_name)
    if memo not in tx.memo:
        limits = policy_of(tx, type_name).limits
        keep = limits.operation_keep_seconds
        keep_until = None if keep is None else tx.after(keep)
        result_until = tx.after(limits.result_keep_seconds)
        if keep_until is not None:  # purge.sql takes an operation only after its result
            result_until = min(result_until, keep_until)
        tx.memo[memo] = (limits.result_bytes_max, result_until, keep_until)
    return tx.memo[memo]


def is_proof(proof: LeaseProof) -> bool:
    """Return whether the values of a proof can be asked for at all; forged ones of any shape prove nothing."""
    job_id, token = proof.job_id, proof.token
    is_short = len(job_id) <= PROOF_CHARS_MAX and len(token) <= PROOF_CHARS_MAX
    return is_short and job_id.isascii() and token.isascii() and 0 < proof.fence < FENCE_MAX


PROOF_CHARS_MAX = 64
FENCE_MAX = 1 << 62


def clamped(seconds: float, low: float, high: float) -> float:
    """Return the delay within its bounds, whatever number a worker sends: NaN and infinity wait longest."""
    if math.isnan(seconds):
        return high
    return max(low, min(seconds, high))


Ending = tuple[State, QuarantineReason | None]


def _end(tx: Tx, end: _End, policy: TypePolicy) -> Ending:
    row, asked = asdict(end.row), end.asked
    spent = _charged(counts_of(row), asked)
    if asked.disposition in _STARTED_UNKNOWN and policy.effect is Effect.ONCE:
        return _quarantined(tx, row, QuarantineReason.UNCERTAIN, asked, spent)
    if row["cancel_asked"] and asked.disposition in _GOES_BACK:
        return moves.cancel(tx, row, "as asked", counts=_unstarted(spent, asked), used=_used(asked)), None
    limits = policy.limits
    match asked.disposition:
        case Disposition.COMPLETE:
            return _completed(tx, end, policy)
        case Disposition.RETRY:
            return _retried(tx, row, asked, limits)
        case Disposition.CRASH:
            return _crashed(tx, row, asked, spent, limits)
        case Disposition.SNOOZE:
            return _snoozed(tx, row, asked, limits)
        case Disposition.HAND_BACK | Disposition.INTERRUPT:
            return _handed_back(tx, row, asked, limits)
        case Disposition.HOLD:
            return _held(tx, row, asked)
        case Disposition.QUARANTINE:
            return _quarantined(tx, row, asked.reason or QuarantineReason.PERMANENT, asked, _unstarted(spent, asked))
        case _:
            assert_never(asked.disposition)


def _completed(tx: Tx, end: _End, policy: TypePolicy) -> Ending:
    state = moves.complete(tx, [_completion(tx, end)])
    listed: list[Entrance] = []
    for position, successor in enumerate(end.asked.successors):
        entrance = Entrance(successor, origin=end.row.origin, parent=end.row.id)
        refusal = _no_successor(end.row, entrance, policy, position)
        if refusal:
            admission.refuse(tx, entrance, refusal)
        else:
            listed.append(_agreed(entrance))
    admission.enter(tx, listed)
    return state, None


def _no_successor(row: Running, entrance: Entrance, policy: TypePolicy, position: int) -> Refusal | None:
    """Return why a finished job may not add this one: its type, tier, actor, or one too many."""
    job = entrance.job
    if position >= SUCCESSORS_MAX:
        return Refusal("S-successor", f"more than {SUCCESSORS_MAX} successors")
    if job.type not in policy.successors:
        return Refusal("S-successor", "the parent's policy does not list this type", suspicious=True)
    if job.tier.rank > policy.tier.rank:
        return Refusal("S-successor", "the tier is above the parent's", suspicious=True)
    if job.actor != row.actor:
        return Refusal("S-successor", "the actor is not the parent's", suspicious=True)
    return None


def _agreed(entrance: Entrance) -> Entrance:
    if entrance.job.tier is not Tier.HIGH:
        return entrance
    return replace(
        entrance, entry=State.HELD, rule="S-agreement", reason="a successor of tier HIGH waits for agreement"
    )


def _retried(tx: Tx, row: Row, asked: Settlement, limits: Limits) -> Ending:
    spent = counts_of(row)
    if spent.attempts >= limits.attempts_max:
        return _quarantined(tx, row, QuarantineReason.EXHAUSTED, asked, spent)
    due_at = _after(tx, asked, limits)
    return _back(tx, row, Event.RETRIED, lifecycle.Event.RETRY, asked, spent, due_at)


def _crashed(tx: Tx, row: Row, asked: Settlement, spent: Counts, limits: Limits) -> Ending:
    if spent.crashes >= limits.crashes_max or spent.attempts >= limits.attempts_max:
        return _quarantined(tx, row, QuarantineReason.CRASHED, asked, spent)
    due_at = _after(tx, asked, limits)
    return _back(tx, row, Event.RETRIED, lifecycle.Event.RETRY, asked, spent, due_at)


def _snoozed(tx: Tx, row: Row, asked: Settlement, limits: Limits) -> Ending:
    spent = counts_of(row)
    if spent.snoozes >= limits.snoozes_max:
        return _quarantined(tx, row, QuarantineReason.EXHAUSTED, asked, spent)
    after = replace(spent, attempts=spent.attempts - 1, snoozes=spent.snoozes + 1)
    seconds = clamped(asked.delay_seconds, limits.backoff_seconds_min, limits.snooze_seconds_max)
    due_at = tx.after(seconds)
    return _back(tx, row, Event.SNOOZED, lifecycle.Event.SNOOZE, asked, after, due_at)


def _handed_back(tx: Tx, row: Row, asked: Settlement, limits: Limits) -> Ending:
    spent = counts_of(row)
    is_free = spent.handbacks < limits.handbacks_max
    starts = spent.starts - (asked.disposition is Disposition.HAND_BACK)
    after = replace(
        spent,
        attempts=spent.attempts - is_free,
        handbacks=spent.handbacks + 1,
        starts=starts,
    )
    if not is_free and spent.attempts >= limits.attempts_max:
        return _quarantined(tx, row, QuarantineReason.EXHAUSTED, asked, after)
    return _back(tx, row, Event.HANDED_BACK, lifecycle.Event.HAND_BACK, asked, after, None)


def _held(tx: Tx, row: Row, asked: Settlement) -> Ending:
    spent = counts_of(row)
    after = replace(spent, attempts=spent.attempts - 1, starts=spent.starts - 1)
    return _back(tx, row, Event.HELD, lifecycle.Event.HOLD, asked, after, None)


def _quarantined(tx: Tx, row: Row, reason: QuarantineReason, asked: Settlement, counts: Counts) -> Ending:
    ending = moves.quarantine(tx, row, reason, error=asked.error, rule=asked.rule, counts=counts, used=_used(asked))
    return ending, reason


def _back(
    tx: Tx,
    row: Row,
    event: Event,
    step: lifecycle.Event,
    asked: Settlement,
    counts: Counts,
    due_at: Instant | None,
) -> Ending:
    # What was not run has not shown yet whether it was to blame for the crash of its cell.
    alone = asked.alone or bool(row["alone"] and counts.starts < row["starts"])
    state = moves.back(
        tx,
        row,
        event,
        step,
        counts=counts,
        due_at=due_at,
        alone=alone,
        error=asked.error,
        rule=asked.rule,
        used=_used(asked),
    )
    return state, None


def _used(asked: Settlement) -> str:
    """Return what an attempt did with the network, for its record; an error that looks like it does not pass for it."""
    if not (asked.connects or asked.refused or asked.error):
        return ""
    connects, refused = (max(0, min(each, USED_MAX)) for each in (asked.connects, asked.refused))
    if not (connects or refused or asked.error.startswith("egress ")):
        return ""
    return f"egress connects={connects} refused={refused}"


def _charged(spent: Counts, asked: Settlement) -> Counts:
    """Count a crash, also the one that `decide` has seen to be the last and answers with quarantine."""
    is_last = asked.disposition is Disposition.QUARANTINE and asked.reason is QuarantineReason.CRASHED
    return with_crash(spent) if (is_last and asked.started) or asked.disposition is Disposition.CRASH else spent


def _unstarted(spent: Counts, asked: Settlement) -> Counts:
    """Give attempt and start back when the settlement says that no user code was handed the job."""
    unstarted = asked.disposition in {Disposition.HAND_BACK, Disposition.HOLD}
    if asked.disposition is Disposition.QUARANTINE and not asked.started:
        unstarted = True
    if not unstarted:
        return spent
    return replace(spent, attempts=spent.attempts - 1, starts=spent.starts - 1)


def _after(tx: Tx, asked: Settlement, limits: Limits) -> Instant:
    seconds = clamped(asked.delay_seconds, limits.backoff_seconds_min, limits.backoff_seconds_max)
    return tx.after(seconds)


def _record_stale(tx: Tx, asked: Settlement) -> None:
    row = tx.one(_SETTLE["any"], {"id": bounded(asked.proof.job_id)})
    refusals.record(
        tx,
        type_name=row["type"] if row else "",
        origin=row["origin"] if row else tx.origin,
        rule=refusals.STALE,
        reason="a settlement of an attempt that is over was refused",
        job_id=row["id"] if row else "",
        fence=asked.proof.fence if is_proof(asked.proof) else 0,
        detail=str(asked.disposition),
    )
