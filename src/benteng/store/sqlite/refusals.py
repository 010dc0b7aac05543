"""Record what did not enter: an audit record each, up to a rate; beyond it only a tally and one record that sums it up.

So a flood of refusals, duplicates or stale settlements cannot fill the disk (DESIGN section 4), and is still counted
for the breaker by (minute, origin, type, rule).  Trust: not the type's name; unknown ones share one tally.
"""

from __future__ import annotations

import re
from typing import Any

from benteng.audit import Event
from benteng.clock import SECOND
from benteng.store.sqlite.audit import major
from benteng.store.sqlite.policies import type_fact
from benteng.store.sqlite.statements import statements
from benteng.store.sqlite.store import Tx

_REFUSE = statements("refuse")
_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)

RECORDS_PER_MINUTE = 20
"""For one origin, type and rule. The rest of the minute is only counted."""

KINDS_PER_MINUTE = 50
"""Types and rules of one origin that are told apart; an origin that makes up more has them counted as one."""

SUMS_PER_VERB = 100
DUPLICATE = "S-duplicate"
CONFLICT = "S-conflict"
STALE = "S-stale"
_EVENTS = {DUPLICATE: Event.DUPLICATE, CONFLICT: Event.CONFLICT}
_MINUTE = 60 * SECOND


def record(tx: Tx, *, type_name: str, origin: str, rule: str, **said: Any) -> None:
    """Count one refusal, and say it to the audit unless there were too many of its kind in this minute."""
    sum_up(tx)
    kind = _kind(tx, origin, type_name, rule)
    (row,) = tx.changed(_REFUSE["count"], {**kind, "limit": RECORDS_PER_MINUTE})
    event = _EVENTS.get(rule, Event.REFUSED)
    if row["count"] <= RECORDS_PER_MINUTE:
        tx.say(event, type=type_name, contract_version=major(type_name), origin=origin, rule=rule, **said)
    elif row["aggregated"] == 1:
        tx.say(
            event, type=kind["type"], origin=origin, rule=kind["rule"], detail="more in this minute are only counted"
        )


def _kind(tx: Tx, origin: str, type_name: str, rule: str) -> dict[str, Any]:
    """Return what a refusal is counted as; unknown types, odd rules and too many kinds are one."""
    kind = {
        "minute": tx.now // _MINUTE,
        "origin": origin,
        "type": type_name if type_fact(tx, type_name) else "?",
        "rule": rule if _RULE.fullmatch(rule) else "?",
    }
    row = tx.one(_REFUSE["kinds"], kind)
    if row is not None and not row["is_known"] and row["kinds"] >= KINDS_PER_MINUTE:
        return kind | {"type": "?", "rule": "?"}
    return kind


def sum_up(tx: Tx) -> None:
    """Tell the audit how many were only counted in minutes that are over: one record each."""
    if ("summed",) in tx.memo:
        return
    tx.memo["summed",] = True
    for row in tx.all(_REFUSE["untold"], {"minute": tx.now // _MINUTE, "limit": SUMS_PER_VERB}):
        kind = {name: row[name] for name in ("minute", "origin", "type", "rule")}
        tx.run(_REFUSE["told"], kind)
        tx.say(
            _EVENTS.get(row["rule"], Event.REFUSED),
            type=row["type"],
            origin=row["origin"],
            rule=row["rule"],
            detail=f"{row['more']} more in the minute that began at {row['minute'] * 60} s",
        )
