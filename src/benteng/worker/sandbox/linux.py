"""Shut a zygote in before it imports the app, and each cell once more after its fork: the composition of the layers.

The pool layer holds what every cell of the pool may do, the job layer takes away what one job does not need. The job
layer is whole in itself where there is no pool layer, in a pool that mixes LOW with other tiers: its cells are held all
the same. With a pool layer the kernel asks both, so what that refuses is not said again for each cell.
Trust: what runs afterwards is hostile. Whatever cannot be put in force raises, and the process ends.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from benteng.policy import Tier
from benteng.worker.sandbox import capabilities, landlock, namespaces, processes, roots, seccomp, syscalls, system
from benteng.worker.sandbox.seccomp import Filter, Layer

PROCESSES_MAX: Final = 1024
"""Processes and threads of a pool that has a uid of its own, all its cells together."""

NO_LISTENER: Final = -1


@dataclass(frozen=True, slots=True)
class Walls:
    """What a pool's processes may touch.

    read       what all may read;  listed: directories of which only the names are known
    write      what all may write, beside each cell's scratch: from the pool's settings
    scratch    the directory in which the cells' scratch directories are made
    own_uid    the uid has no other files than the pool's
    shut       the zygote is behind the pool layer: a cell's own layer only goes beyond it
    programs   what cells may start, with its loaders; what they may read has no other program in it then
    interpreter  what the zygote may start: its own interpreter, for cells that are exec'd
    names      texts that stand for the host's files of names: the pool has `egress`, and a broker makes its sockets
    waive      layers that the pool's settings do without, in `dev`
    """

    read: tuple[str, ...]
    listed: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    scratch: str = ""
    own_uid: bool = False
    shut: bool = False
    programs: tuple[str, ...] = ()
    interpreter: str = ""
    waive: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def egress(self) -> bool:
        """Whether the pool has `egress`."""
        return bool(self.names)


def leave_host(walls: Walls) -> None:
    """Leave the host's network and IPC and the right to any capability. Before the change of uid.

    Where the pool has `egress` its files of names are put in place; raises OSError where that cannot be.
    """
    if walls.egress:
        place = Path(walls.scratch) / "names"
        place.mkdir()
        namespaces.enter_with_files(walls.names, str(place))
        place.rmdir()
    else:
        namespaces.enter()
    capabilities.limit()


def enter_pool(walls: Walls) -> int:
    """Shut this zygote in, for ever. After the change of uid, before the app. Raises OSError.

    Returns the listener on which the pool's broker is to answer for its sockets; -1 where it has no `egress`.
    """
    _give_up(walls)
    version = landlock.abi()
    given = list(roots.grants((*walls.read, _own_proc()), (*walls.write, walls.scratch), walls.listed))
    own = (walls.interpreter, *roots.LOADERS) if walls.interpreter else ()
    given += _executable((*own, *walls.programs))
    wanted = Filter(
        Layer.POOL,
        execute=bool(own or walls.programs),
        processes=bool(walls.programs),
        own_uid=walls.own_uid,
        egress=walls.egress,
        landlock_abi=version,
    )
    if not walls.egress:
        _put_up(walls, given, wanted)
        return NO_LISTENER
    landlock.restrict(given, version)
    return seccomp.listen(wanted)


def enter_open_pool(walls: Walls) -> int:
    """Leave this zygote, whose pool has LOW types and `egress`, no network but its broker; return the listener."""
    _give_up(walls)
    landlock.nowhere(landlock.abi())
    return seccomp.listen(Filter(Layer.OPEN_POOL, egress=True))


def enter_open_job() -> tuple[str, ...]:
    """Keep this LOW cell, whose pool has `egress`, from answering for its own sockets; return the layers."""
    return seccomp.install(Filter(Layer.OPEN_JOB))


def _give_up(walls: Walls) -> None:
    if not walls.programs:  # else one capability is left, which reaches nothing of the host: see processes.py
        capabilities.drop()
    if not system.no_new_privileges():
        raise OSError("the kernel does not confirm no_new_privs")
    if walls.own_uid or walls.programs:
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES_MAX, PROCESSES_MAX))


def enter_job(walls: Walls, tier: Tier, scratch: str) -> tuple[str, ...]:
    """Shut this cell in, for ever, with only its own scratch to write; return the layers. Raises OSError."""
    layers = [*capabilities.drop()]
    version = landlock.abi()
    given = (*_readable(walls), *roots.grants((), (*walls.write, scratch)), *_executable(walls.programs))
    return (*layers, *_put_up(walls, given, job_filter(walls, tier, version)))


def _readable(walls: Walls) -> tuple[landlock.Grant, ...]:
    """Return what a cell's own layer lets it read: where the pool's holds it to that, more, by fewer rules."""
    if not walls.shut:
        return roots.grants(walls.read, (), walls.listed)
    return _coarse(walls.read, walls.listed, (walls.scratch, "/proc"))


_coarse = lru_cache(maxsize=1)(roots.coarse)


def _executable(paths: Iterable[str]) -> list[landlock.Grant]:
    return [landlock.Grant(path, landlock.Access.EXECUTE) for path in paths]


def _put_up(walls: Walls, given: Iterable[landlock.Grant], wanted: Filter) -> tuple[str, ...]:
    """Put Landlock and then the filter in force: the filter forbids to add another."""
    layers: tuple[str, ...] = ()
    if "landlock_files" not in walls.waive:
        layers += landlock.restrict(given, wanted.landlock_abi)
    if walls.programs and wanted.layer is Layer.JOB:
        processes.start_first()
    if "seccomp" not in walls.waive:
        layers += (*seccomp.install(wanted), "no_network")
    return layers


def job_filter(walls: Walls, tier: Tier, version: int) -> Filter:
    """Return the filter of a cell. At HIGH a violation ends it, so that it is known for certain."""
    return Filter(
        Layer.JOB,
        kill=tier is Tier.HIGH,
        execute=bool(walls.programs),
        processes=bool(walls.programs),
        own_uid=walls.own_uid,
        egress=walls.egress,
        landlock_abi=version,
        on_pool=walls.shut,
        pid=os.getpid() if version < landlock.ABI_SCOPE else 0,
    )


def prepare(walls: Walls) -> None:
    """Assemble the cells' rules and filters before any cell is forked."""
    _readable(walls)
    version = landlock.abi()
    if version >= landlock.ABI_SCOPE and syscalls.this_arch() is not None:
        for tier in (Tier.MEDIUM, Tier.HIGH):
            seccomp.prepared(job_filter(walls, tier, version))


def _own_proc() -> str:
    """Return this process's directory in /proc, pinned: its children are found there, and the rule must stay true."""
    path = f"/proc/{os.getpid()}"
    os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # kept open for ever: the kernel may else forget the entry
    return path
