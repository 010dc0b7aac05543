"""From what a rehearsal saw to the list that a person reviews: what is granted already, what is to be, what never.

PURE. A line to paste holds only what was wanted and is not granted; nothing that opens the store or is a key, however
it was reached for. A list is a proposal: who pastes it without reading gives the handler what it asked for.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from benteng.policy import Tier
from benteng.worker.pool import ENV_ALWAYS, is_credential
from benteng.worker.rehearsal.sight import Kind, Sight
from benteng.worker.sandbox import roots

SETTINGS: Final = (Kind.READ, Kind.WRITE, Kind.EXECUTE, Kind.CONNECT, Kind.VARIABLE)
"""The kinds that a pool has a setting for, by the setting's name."""

KERNEL: Final = ("/proc", "/sys")
NAME_FILES: Final = frozenset(
    f"/etc/{name}"
    for name in ("hosts", "nsswitch.conf", "resolv.conf", "host.conf", "gai.conf", "services", "protocols")
)
"""What names are looked up in. A pool with `egress` has its own."""

OWN: Final = ("HOME", "TMPDIR")


class State(StrEnum):
    """granted: cells of the pool have it; review: a line of the settings would give it; never: nothing gives it."""

    GRANTED = "granted"
    REVIEW = "review"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Pool:
    """What a pool gives its cells now.

    read, write, listed  files and directories, with what all cells have
    lists                the settings by name, as they stand
    set                  names of the variables that are set where the rehearsal ran
    secrets, store       what opens the store or is a key: files, and `host:port` of its server
    """

    name: str
    tier: Tier
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    set: frozenset[str] = frozenset()
    secrets: tuple[Path, ...] = ()
    store: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was wanted, and what is to be done with it. value: what the setting would hold."""

    kind: Kind
    what: str
    state: State
    why: str = ""
    value: str = ""
    grave: bool = False


def rows(sights: Iterable[Sight], pool: Pool) -> list[Row]:
    """Return one row for each thing, what nothing may give first, then what is to be reviewed."""
    found = dict.fromkeys(_row(each, pool) for each in sights)
    order = (State.NEVER, State.REVIEW, State.GRANTED)
    return sorted(
        found, key=lambda row: (order.index(row.state), SETTINGS.index(row.kind) if row.kind in SETTINGS else 9)
    )


def paste(found: Iterable[Row], pool: Pool) -> list[str]:
    """Return the lines of `[pool.NAME]` that would give what is to be reviewed, with what stands there now."""
    lines = list[str]()
    wanted = [row for row in found if row.state is State.REVIEW]
    for kind in SETTINGS:
        new = _outermost(kind, {row.value for row in wanted if row.kind is kind})
        if new:
            whole = [*pool.lists.get(kind.value, ()), *new]
            lines.append(f"{kind.value} = [{', '.join(json.dumps(each) for each in dict.fromkeys(whole))}]")
    return [f"[pool.{pool.name}]", *lines] if lines else []


def _outermost(kind: Kind, values: set[str]) -> list[str]:
    """Return the values in order; of files only those that do not lie in another one."""
    files = values if kind in (Kind.READ, Kind.WRITE) else set[str]()
    return sorted(value for value in values if not _below(value, files - {value}))


def _row(seen: Sight, pool: Pool) -> Row:
    match seen.kind:
        case Kind.READ:
            return _read(seen, pool)
        case Kind.WRITE:
            return _write(seen, pool)
        case Kind.EXECUTE:
            return _listed(seen, pool, seen.what)
        case Kind.CONNECT:
            return _connect(seen, pool)
        case Kind.VARIABLE:
            return _variable(seen, pool)
        case Kind.PROCESS:
            return _processes(seen, pool)
        case Kind.CALL:
            return Row(seen.kind, seen.what, State.NEVER, f"refused to a {pool.tier} cell, also in this run")


def _processes(seen: Sight, pool: Pool) -> Row:
    if pool.tier is Tier.LOW or pool.lists.get(Kind.EXECUTE.value):
        return Row(seen.kind, seen.what, State.GRANTED)
    return Row(seen.kind, seen.what, State.REVIEW, "a cell may, when its pool has a list of programs")


def _read(seen: Sight, pool: Pool) -> Row:
    if _is_secret(seen.what, pool):
        return _secret(seen)
    if _is_kernel(seen.what) and pool.tier is not Tier.LOW:
        return Row(seen.kind, seen.what, State.NEVER, "it tells of the host and of other processes")
    if pool.tier is Tier.LOW or _below(seen.what, (*pool.read, *pool.write)) or seen.what in pool.listed:
        return Row(seen.kind, seen.what, State.GRANTED)
    if seen.what in NAME_FILES:
        return Row(seen.kind, seen.what, State.GRANTED, "it comes with egress")
    if any(roots.exposes(seen.what, secret) for secret in pool.secrets):
        return Row(seen.kind, seen.what, State.NEVER, "what opens the store, or a key, lies in it", grave=True)
    return Row(seen.kind, seen.what, State.REVIEW, value=seen.what)


def _write(seen: Sight, pool: Pool) -> Row:
    if _is_secret(seen.what, pool):
        return _secret(seen)
    if pool.tier is Tier.LOW or _below(seen.what, pool.write) or seen.what in roots.DEVICES:
        return Row(seen.kind, seen.what, State.GRANTED)
    if _is_kernel(seen.what):
        return Row(seen.kind, seen.what, State.NEVER, "it changes the host")
    given = str(Path(seen.what).parent) if seen.made else seen.what
    kept = (*pool.secrets, *map(Path, pool.listed))
    if given == "/" or any(roots.exposes(given, each) for each in kept):
        why = f"{given} holds code or secrets: use a directory of its own"
        return Row(seen.kind, seen.what, State.NEVER, why)
    return Row(seen.kind, seen.what, State.REVIEW, "made: its directory is given" if seen.made else "", given)


def _connect(seen: Sight, pool: Pool) -> Row:
    host, _, port = seen.what.rpartition(":")
    named = f"{seen.named}:{port}" if seen.named else seen.what
    value = f"{named} private" if _is_private(host) else named
    what = f"{named} ({host})" if seen.named and seen.named != host else named
    if {seen.what, named} & pool.store:
        return Row(seen.kind, what, State.NEVER, "it is the store's server", grave=True)
    if pool.tier is Tier.LOW and not pool.lists.get(seen.kind.value):
        return Row(seen.kind, what, State.GRANTED)
    if host == "unix" or seen.what.startswith("unix:"):
        return Row(seen.kind, what, State.NEVER, "no setting gives a local socket")
    return _listed(seen, pool, value, what)


def _variable(seen: Sight, pool: Pool) -> Row:
    if seen.what in (*ENV_ALWAYS, *OWN, *pool.lists.get(seen.kind.value, ())):
        return Row(seen.kind, seen.what, State.GRANTED)
    if is_credential(seen.what):
        return Row(seen.kind, seen.what, State.NEVER, "it looks like a credential: make it a secret of the pool")
    if seen.what not in pool.set:
        return Row(seen.kind, seen.what, State.GRANTED, "not set where this ran: absent in the cell too")
    return Row(seen.kind, seen.what, State.REVIEW, value=seen.what)


def _listed(seen: Sight, pool: Pool, value: str, what: str = "") -> Row:
    is_there = value in pool.lists.get(seen.kind.value, ())
    if is_there or (pool.tier is Tier.LOW and seen.kind is Kind.EXECUTE):
        return Row(seen.kind, what or value, State.GRANTED)
    return Row(seen.kind, what or value, State.REVIEW, value=value)


def _secret(seen: Sight) -> Row:
    return Row(seen.kind, seen.what, State.NEVER, "it opens the store, or is a key; it was refused", grave=True)


def _is_secret(path: str, pool: Pool) -> bool:
    return any(roots.exposes(str(secret), Path(path)) for secret in pool.secrets)


def _is_private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_global
    except ValueError:
        return False


def _is_kernel(path: str) -> bool:
    return _below(path, KERNEL)


def _below(path: str, places: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(place) for place in places)
