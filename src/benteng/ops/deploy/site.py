"""What a deployment of one pool is made from: its names, users, paths and what its cells need of their host."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benteng import lockfile
from benteng.config import Config
from benteng.errors import PolicyError
from benteng.policy import LIMITS, Limits, Tier
from benteng.store.open import is_postgres
from benteng.store.records import Facet
from benteng.worker.lookout import SCRATCH_FILES

BESIDE_CELLS_BYTES: Final = 512 << 20
"""Memory for warden and zygote, and the application that it has imported."""

NEEDS = ("uid", "gid", "supervisor_uid", "supervisor_gid", "cell")


@dataclass(frozen=True, slots=True)
class Site:
    """One pool and its two sides.

    project  directory of benteng.toml and the application;  prefix: where benteng is installed
    socket   where the two sides meet
    network  its LOW cells use the network;  egress: its broker does, for all;  programs: cells may start programs
    memory_bytes  of all its cells together, their scratch included: where /tmp is memory, it counts
    """

    pool: str
    supervisor: tuple[int, int]
    cells: tuple[int, int]
    project: Path
    prefix: Path
    socket: Path
    write: tuple[str, ...]
    drain_seconds: float
    network: bool
    egress: bool
    programs: bool
    memory_bytes: int

    @property
    def stop_seconds(self) -> int:
        """How long a side may take to end: the drain, and what comes after it."""
        return int(self.drain_seconds) + 15


def site_of(config: Config, pool: str, prefix: Path) -> Site:
    """Return what a deployment is made from. Raises PolicyError naming what the settings lack."""
    found = config.pool(pool)
    missing = [name for name in NEEDS if not getattr(found, name)]
    if pool not in config.pools or missing:
        lines = f'uid, gid, supervisor_uid, supervisor_gid and cell = "unix:/run/benteng/{pool}.sock"'
        raise PolicyError("W-deploy", f"pool {pool} has no users or no socket", field="pool", fix=f"set its {lines}")
    if not is_postgres(config.dsn(Facet.CONSUMER, pool)):
        text = "the embedded store has one user, and this deployment has several"
        raise PolicyError("W-deploy", text, field="dsn", fix="set dsn to a PostgreSQL ledger")
    types = [each for each in lockfile.read(config.lock).values() if each.pool == pool]
    return Site(
        pool=pool,
        supervisor=(found.supervisor_uid or 0, found.supervisor_gid or 0),
        cells=(found.uid or 0, found.gid or 0),
        project=config.root,
        prefix=prefix,
        socket=Path(found.cell.removeprefix("unix:")),
        write=found.write,
        drain_seconds=found.drain_seconds,
        network=any(each.tier is Tier.LOW for each in types),
        egress=bool(found.egress),
        programs=bool(found.exec),
        memory_bytes=_memory_bytes([each.limits for each in types], found.concurrency),
    )


def _memory_bytes(limits: Collection[Limits], concurrency: int) -> int:
    """Return what cells may have, one ahead of those that work, each as large as the largest."""
    cell = max(each.memory_bytes_max + SCRATCH_FILES * each.file_bytes_max for each in limits or LIMITS.values())
    return (concurrency + 1) * cell + BESIDE_CELLS_BYTES
