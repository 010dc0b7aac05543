"""The policy of a job type as the ledger has it, parsed once for each digest.

Trust: not the bytes in `job_type`; somebody may have written them by hand. What cannot be read grants nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from benteng.job import sha256_hex
from benteng.policy import Effect, Limits, Tier, TypePolicy
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Tx

_JOB_TYPE = statements("job_type")

STRICTEST = TypePolicy(
    name="unreadable@1",
    tier=Tier.HIGH,
    effect=Effect.ONCE,
    limits=Limits(attempts_max=1, crashes_max=1, handbacks_max=0, snoozes_max=0),
)
"""What counts for a running job whose policy cannot be read: nothing is free, and nothing runs twice."""


@dataclass(frozen=True, slots=True)
class TypeFact:
    """One row of `job_type`. `policy` is None when its bytes are not a policy of that name and digest."""

    name: str
    pool: str
    sha256: str
    policy: TypePolicy | None


def type_fact(tx: Tx, name: str) -> TypeFact | None:
    """Return what the ledger knows of a type, or None."""
    memo = ("type", name)
    if memo not in tx.memo:
        row = tx.one(_JOB_TYPE["one"], {"name": name})
        tx.memo[memo] = row and TypeFact(name, row["pool"], row["sha256"], _parsed(name, row["policy"], row["sha256"]))
    return tx.memo[memo]


def policy_of(tx: Tx, name: str) -> TypePolicy:
    """Return the policy that bounds a job of this type; the strictest one when it cannot be read."""
    fact = type_fact(tx, name)
    return STRICTEST if fact is None or fact.policy is None else fact.policy


@lru_cache(maxsize=4096)
def _parsed(name: str, policy: bytes, sha256: str) -> TypePolicy | None:
    try:
        parsed = msgspec.json.decode(policy, type=TypePolicy)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return parsed if (parsed.name, sha256_hex(policy)) == (name, sha256) else None
