"""The policy of a job type as the ledger has it, parsed once for each digest.

Trust: not the bytes in `job_type`; somebody may have written them by hand. What cannot be read grants nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from benteng.job import sha256_hex
from benteng.policy import Effect, Limits, Tier, TypePolicy
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Row, Tx
from benteng.store.sqlite.text import as_array

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
    facts = type_facts(tx, (name,))
    return facts[0] if facts else None


def type_facts(tx: Tx, names: Sequence[str]) -> list[TypeFact]:
    """Return what the ledger knows of some types; what it does not know is left out."""
    unasked = [name for name in names if ("type", name) not in tx.facts]
    if unasked:
        tx.facts |= {("type", name): None for name in unasked}
        rows = tx.all(_JOB_TYPE["some"], {"names": as_array(unasked)})
        tx.facts |= {("type", row["name"]): _fact(row) for row in rows}
    facts = (tx.facts["type", name] for name in names)
    return [fact for fact in facts if fact is not None]


def policy_of(tx: Tx, name: str) -> TypePolicy:
    """Return the policy that bounds a job of this type; the strictest one when it cannot be read."""
    fact = type_fact(tx, name)
    return STRICTEST if fact is None or fact.policy is None else fact.policy


def _fact(row: Row) -> TypeFact:
    return TypeFact(row["name"], row["pool"], row["sha256"], _parsed(row["name"], row["policy"], row["sha256"]))


@lru_cache(maxsize=4096)
def _parsed(name: str, policy: bytes, sha256: str) -> TypePolicy | None:
    try:
        parsed = msgspec.json.decode(policy, type=TypePolicy)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return parsed if (parsed.name, sha256_hex(policy)) == (name, sha256) else None
