"""Compare what a tier requires with what there is: of this host before a worker starts, of each cell before it works.

The table is sandbox/layers.py. A pool whose layers are missing starts nowhere; what `dev` may do without is said aloud.
Trust: what the kernel shows; a cell's own word only for what cannot be seen.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benteng.errors import PolicyError
from benteng.policy import Tier
from benteng.worker.pool import Pool
from benteng.worker.sandbox import basic, layers, probe, programs, roots
from benteng.worker.sandbox.layers import LAYERS, Seen
from benteng.worker.say import Say

VIOLATION: Final = "the kernel ended the cell for a violation (SIGSYS)"
PROCESSES: Final = "pid_namespace"
NOEXEC: Final = "noexec_scratch"
COVERS: Final = "mount_namespace"
ARRANGED: Final = frozenset({"environment", "store_unreadable", "sized_scratch", "fork_per_job"})
"""Layers that the supervisor makes by the way it works; `check` looks whether the store is out of reach."""


NURSED: Final = frozenset({"egress_broker", "landlock_tcp"})
"""Layers that the cells of a pool with `egress` have from their zygote, which is not let import without them."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a worker is about to run.

    tiers    of the pool's types;  dev: whether the environment is `dev`
    read     directories that its cells may read as a whole: the artifacts'; of the app's not all
    secrets  files that no cell may read: the store's, password files, keys
    covers   what is laid over with something empty for LOW jobs; None: they need what lies beside it
    """

    pool: Pool
    tiers: frozenset[Tier]
    dev: bool
    read: tuple[str, ...]
    secrets: tuple[Path, ...]
    covers: tuple[str, ...] | None = ()

    @property
    def contained(self) -> frozenset[Tier]:
        """The tiers whose cells cannot leave: all but LOW."""
        return self.tiers - {Tier.LOW}


def lacking(tier: Tier, said: frozenset[str], visible: frozenset[str], pool: Pool) -> tuple[str, ...]:
    """Return the layers that a tier requires and a cell does not have, but for those that `dev` is loud about.

    `said` by the cell, `visible` from outside of it: what can be seen counts only if it is seen.
    """
    egress = bool(pool.egress)
    there = {name for name in said if LAYERS.get(name) is not None and LAYERS[name].seen is Seen.CELL}
    if egress and "seccomp" in visible:  # its zygote had no app before the broker had its filter's listener
        there |= NURSED
    found = layers.missing(tier, there | visible | ARRANGED | layers.waived(pool.waive), egress=egress)
    return tuple(name for name in found if not layers.is_loud_only(name))


def is_violation(status: int) -> bool:
    """Whether a wait status means that the filter ended the process."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS


def shut(tiers: Iterable[Tier]) -> bool:
    """Whether a zygote can be shut in before it imports the app: when no type of the pool is LOW."""
    wanted = frozenset(tiers)
    return bool(wanted) and Tier.LOW not in wanted


def held(pool: Pool, *, contained: bool) -> frozenset[str]:
    """Return the layers that hold on this host, each tried for real; for LOW alone those that it has."""
    if contained or pool.egress:
        found = frozenset(probe.probe()) - {"own_uid"}
    else:
        found = frozenset(basic.probe()) | ({COVERS} if probe.holds(probe.TRIALS[COVERS]) else set[str]())
    return found | {"own_uid"} if pool.uid is not None and os.getuid() == 0 else found


def check(site: Site, say: Say, elsewhere: frozenset[str] | None = None) -> frozenset[str]:
    """Return the layers that hold where the cells are; warn of what `dev` may lack.

    `elsewhere`: those that another host has; None: the cells are made here.
    Raises PolicyError when the pool's cells could not be held as their tiers require.
    """
    _check_mix(site, say)
    _check_waivers(site, say)
    _check_roots(site)
    watched = site.tiers if site.pool.egress else site.contained
    there = held(site.pool, contained=bool(site.contained)) if elsewhere is None else elsewhere
    _check_programs(site, there, say)
    _check_store(site, there, say)
    for tier in sorted(watched, key=lambda tier: tier.rank):
        _check_broker(site, tier, there, here=elsewhere is None)
        _check_layers(site, tier, there, say)
    return there


def _check_mix(site: Site, say: Say) -> None:
    if Tier.LOW not in site.tiers or len(site.tiers) == 1:
        return
    text = f"pool {site.pool.name} mixes LOW with other tiers, so its application is imported without walls"
    fix = "move the LOW types to a pool of their own"
    if not site.dev:
        raise PolicyError("W-mixed", text, fix=fix)
    say("warning", rule="W-mixed", why=f"{text}; each MEDIUM and HIGH cell has its own all the same. To end it: {fix}")


def _check_waivers(site: Site, say: Say) -> None:
    if not site.pool.waive or not site.contained:
        return
    names = ", ".join(sorted(site.pool.waive))
    if not site.dev:
        raise PolicyError("W-waive", f"pool {site.pool.name} waives {names}", fix="waivers are for dev: take them out")
    say("warning", rule="W-waive", why=f"pool {site.pool.name} runs without {names}: its jobs are not contained")


def _check_roots(site: Site) -> None:
    """No cell above LOW may read a secret: Landlock cannot take back what lies below a granted directory."""
    if not site.contained:
        return
    given = (*roots.readable(site.read), *site.pool.read, *site.pool.write)
    if any(roots.exposes(root, secret) for root in given for secret in site.secrets):
        text = f"what opens the store, or a key, lies in a directory that cells of pool {site.pool.name} may read"
        raise PolicyError("W-roots", text, fix="move it out of the application's, artifacts' and readable directories")


def needs(pool: Pool, holding: frozenset[str], covers: Iterable[str]) -> dict[Tier, frozenset[str]]:
    """Return the layers that cells must have beside what their tier requires, as far as the host has them."""
    low = frozenset({COVERS} if covers else ()) & holding
    other = frozenset({PROCESSES, NOEXEC} if pool.exec else ()) & holding
    return {Tier.LOW: low, Tier.MEDIUM: other, Tier.HIGH: other}


def _check_store(site: Site, there: frozenset[str], say: Say) -> None:
    """LOW jobs must not read what opens the store either: a uid of their own hides it, or a cover."""
    if Tier.LOW not in site.tiers or "own_uid" in there or not site.secrets:
        return
    if site.covers is not None and COVERS in there:
        return
    near = "; it lies beside what they need: give it a directory of its own" if site.covers is None else ""
    text = f"LOW jobs of pool {site.pool.name} can read what opens the store{near}"
    fix = "start the worker as root and give the pool uid and gid, or as a user who may make user namespaces"
    if not site.dev:
        raise PolicyError("W-store", text, fix=fix)
    say("warning", rule="W-store", why=f"{text}; prod refuses that. To end it: {fix}")


def _check_programs(site: Site, there: frozenset[str], say: Say) -> None:
    """What a pool may start must be there, and what it starts must end with its cell."""
    pool = site.pool
    if not pool.exec:
        return
    if not site.contained:
        fix = "take `exec` out, or give the types a higher tier"
        raise PolicyError("W-exec", f"pool {pool.name} has LOW types alone, which start what they like", fix=fix)
    programs.check(pool.name, pool.exec)
    if PROCESSES in there:
        return
    text = f"what jobs of pool {pool.name} start may outlive them for a moment: this host has no {PROCESSES}"
    if not site.dev:
        raise PolicyError("W-layers", text, fix="let the worker's user make user namespaces, or take `exec` out")
    say("warning", rule="W-layers", why=f"{text}; prod refuses that")


def _absent(site: Site, tier: Tier, there: frozenset[str]) -> tuple[str, ...]:
    given = _there(site.pool, there) | layers.waived(site.pool.waive)
    return layers.missing(tier, given, egress=bool(site.pool.egress))


def _check_broker(site: Site, tier: Tier, there: frozenset[str], *, here: bool) -> None:
    """A broker works where the cells are, or not at all. `here`: that is this host."""
    if not site.pool.egress or not NURSED.intersection(_absent(site, tier, there)):
        return
    from benteng.worker.egress import trial

    host, fix = "the host of its cells", "run `benteng isolation report` there, as their user"
    host, fix = ("this host", trial.reason()) if here else (host, fix)
    raise PolicyError("W-egress", f"pool {site.pool.name} has egress, and {host} can have no egress broker", fix=fix)


def _check_layers(site: Site, tier: Tier, there: frozenset[str], say: Say) -> None:
    absent = _absent(site, tier, there)
    if site.dev:
        loud = [name for name in absent if layers.is_loud_only(name)]
        if loud:
            say("warning", rule="W-layers", why=f"{tier} jobs run without {', '.join(loud)}; prod refuses that")
        absent = tuple(name for name in absent if name not in loud)
    if absent:
        text = f"{tier} jobs of pool {site.pool.name} need what this host does not have: {', '.join(absent)}"
        raise PolicyError("W-layers", text, fix="benteng isolation report says what is missing and why")


@dataclass(frozen=True, slots=True)
class Report:
    """What this host can do for a tier. `in_force`: the layers that its cells would have; `missing`: required ones."""

    tier: Tier
    in_force: tuple[str, ...]
    missing: tuple[str, ...]


def report(pool: Pool, tier: Tier, holding: frozenset[str]) -> Report:
    """Return what cells of a tier would have in this pool, on a host on which these layers hold."""
    egress, there = bool(pool.egress), _there(pool, holding)
    if tier is Tier.LOW and not there & {"own_uid", COVERS}:
        there -= {"store_unreadable"}
    there &= layers.used(tier, egress=egress)
    return Report(tier, tuple(name for name in LAYERS if name in there), layers.missing(tier, there, egress=egress))


def _there(pool: Pool, holding: frozenset[str]) -> frozenset[str]:
    return (holding | ARRANGED) - layers.waived(pool.waive)
