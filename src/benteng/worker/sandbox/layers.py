"""Which layers hold a cell, and which of them each tier needs: one table, read by worker, docs and `isolation report`.

A cell gets work only when every layer that its tier requires is in force; what is only used when present is reported.
(issue 4; DESIGN section 5)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from benteng.policy import Tier


class Need(StrEnum):
    """What a tier makes of a layer: without it no work; used when present; not used; the last two ask for `egress`."""

    REQUIRED = "R"
    USED = "+"
    UNUSED = "-"
    EGRESS = "R with `egress`"
    USED_EGRESS = "+, R with `egress`"


class Missing(StrEnum):
    """What happens without a required layer: no work; no work in prod, loud in dev; it is only reported."""

    REFUSE = "refuse"
    LOUD_IN_DEV = "refuse; dev: loud"
    REPORT = "report"


class Seen(StrEnum):
    """Who knows whether a layer is in force.

    cell        the cell itself, when it says Hello
    supervisor  the supervisor, which looks at the process or arranges the layer itself
    """

    CELL = "cell"
    SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer: what each tier makes of it, what happens without it, who sees it, and what it does."""

    low: Need
    medium: Need
    high: Need
    missing: Missing
    seen: Seen
    does: str

    def need(self, tier: Tier) -> Need:
        """Return what a tier makes of it."""
        return {Tier.LOW: self.low, Tier.MEDIUM: self.medium, Tier.HIGH: self.high}[tier]


_R, _USED, _NO = Need.REQUIRED, Need.USED, Need.UNUSED
_EGRESS, _USED_EGRESS = Need.EGRESS, Need.USED_EGRESS
_CELL, _SUPERVISOR = Seen.CELL, Seen.SUPERVISOR

LAYERS: Final[Mapping[str, LayerRow]] = MappingProxyType(
    {
        "group": LayerRow(_R, _R, _R, Missing.REFUSE, _CELL, "a session of its own, so that all of it can be killed"),
        "descriptors": LayerRow(_R, _R, _R, Missing.REFUSE, _CELL, "only the line to the supervisor is open"),
        "environment": LayerRow(_R, _R, _R, Missing.REFUSE, _SUPERVISOR, "chosen variables, none a credential"),
        "rlimits": LayerRow(_R, _R, _R, Missing.REFUSE, _CELL, "bounds of memory, file size, open files, no core dump"),
        "no_new_privs": LayerRow(_R, _R, _R, Missing.REFUSE, _SUPERVISOR, "no set-uid program gives anything"),
        "parent": LayerRow(_R, _R, _R, Missing.REFUSE, _CELL, "it dies with its zygote"),
        "store_unreadable": LayerRow(
            _R, _R, _R, Missing.LOUD_IN_DEV, _SUPERVISOR, "the store's file lies outside what the cell may read"
        ),
        "capabilities": LayerRow(_NO, _R, _R, Missing.REFUSE, _SUPERVISOR, "no capability, also not as root"),
        "landlock_files": LayerRow(
            _NO, _R, _R, Missing.REFUSE, _CELL, "reads interpreter, libraries, app and artifacts; writes its scratch"
        ),
        "seccomp": LayerRow(
            _NO,
            _R,
            _R,
            Missing.REFUSE,
            _SUPERVISOR,
            "no processes, programs, kernel objects; no hold on others",
        ),
        "no_network": LayerRow(_NO, _R, _R, Missing.REFUSE, _CELL, "no socket can be made but by the broker, if any"),
        "egress_broker": LayerRow(
            _EGRESS,
            _EGRESS,
            _EGRESS,
            Missing.REFUSE,
            _SUPERVISOR,
            "sockets are made and connected by another process, to what is listed (Linux 5.19)",
        ),
        "landlock_tcp": LayerRow(
            _EGRESS,
            _USED_EGRESS,
            _USED_EGRESS,
            Missing.REPORT,
            _CELL,
            "TCP of its own to nowhere (Linux 6.7), a second wall",
        ),
        "landlock_scopes": LayerRow(
            _NO, _USED, _USED, Missing.REPORT, _CELL, "signals and abstract sockets only within (Linux 6.12)"
        ),
        "network_namespace": LayerRow(_NO, _USED, _USED, Missing.REPORT, _SUPERVISOR, "a network with nothing in it"),
        "ipc_namespace": LayerRow(_NO, _USED, _USED, Missing.REPORT, _SUPERVISOR, "shared memory of its own"),
        "mount_namespace": LayerRow(
            _USED, _NO, _NO, Missing.REPORT, _SUPERVISOR, "an empty directory over the store's, where no uid hides it"
        ),
        "pid_namespace": LayerRow(
            _NO, _USED, _USED, Missing.REPORT, _SUPERVISOR, "in pools with `exec`: what a job starts ends with its cell"
        ),
        "noexec_scratch": LayerRow(
            _NO, _USED, _USED, Missing.REPORT, _SUPERVISOR, "in pools with `exec`: what a job wrote cannot be run"
        ),
        "own_uid": LayerRow(_USED, _USED, _R, Missing.LOUD_IN_DEV, _SUPERVISOR, "a uid that owns nothing else"),
        "sized_scratch": LayerRow(
            _NO, _R, _R, Missing.REFUSE, _SUPERVISOR, "it is measured each second; a cell that filled it is ended"
        ),
        "fork_per_job": LayerRow(_NO, _NO, _R, Missing.REFUSE, _SUPERVISOR, "no process sees two jobs"),
    }
)
"""The layers, in the order in which they are explained. Names as in `Hello` and `isolation report`."""


WAIVABLE: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {"landlock_files": frozenset({"landlock_files"}), "seccomp": frozenset({"seccomp", "no_network"})}
)
"""What `dev` may do without, written out in the pool's settings, and what goes with it. The rest costs nothing."""


def waived(names: Iterable[str]) -> frozenset[str]:
    """Return all layers that are not in force when these are waived."""
    return frozenset(layer for name in names for layer in WAIVABLE[name])


def required(tier: Tier, *, seen: Seen | None = None, egress: bool = False) -> frozenset[str]:
    """Return the layers without which a tier gets no work; only those that `seen` knows of, if given."""
    needs = {Need.REQUIRED, Need.EGRESS, Need.USED_EGRESS} if egress else {Need.REQUIRED}
    rows = LAYERS.items()
    return frozenset(name for name, row in rows if row.need(tier) in needs and (seen is None or row.seen is seen))


def used(tier: Tier, *, egress: bool = False) -> frozenset[str]:
    """Return the layers that a tier's cells have where the host can have them."""
    beside = {Need.USED, Need.USED_EGRESS}
    return required(tier, egress=egress) | {name for name, row in LAYERS.items() if row.need(tier) in beside}


def missing(tier: Tier, in_force: Iterable[str], *, egress: bool = False) -> tuple[str, ...]:
    """Return the required layers that are not in force, in the order of the table."""
    there, needed = frozenset(in_force), required(tier, egress=egress)
    return tuple(name for name in LAYERS if name in needed and name not in there)


def is_loud_only(name: str) -> bool:
    """Whether `dev` goes on without this layer, loudly."""
    return LAYERS[name].missing is Missing.LOUD_IN_DEV


def as_markdown() -> str:
    """Return the table for docs/reference/isolation.md."""
    head = "| layer | LOW | MEDIUM | HIGH | when missing | what it does |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| `{name}` | {row.low} | {row.medium} | {row.high} | {row.missing} | {row.does} |\n"
        for name, row in LAYERS.items()
    )
