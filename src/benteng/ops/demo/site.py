"""The demo's own installation: one private directory with ledger, keys, artifacts, configuration and logs.

Nothing of the user's own installation is read or written: while the demo is inside, the working directory is the
site's and no `BENTENG_*` variable is set.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benteng.clock import system_clock
from benteng.errors import PolicyError
from benteng.keyring import generate
from benteng.ops.demo import world
from benteng.ops.demo.jobs import POOL
from benteng.ops.demo.world import World

APP = "benteng.ops.demo.jobs:app"
UNLISTED = "DEMO_UNLISTED"
"""A variable of the workers' environment that is not on the pool's list: handlers must not see it."""

SETTINGS = """\
environment = "dev"
dsn = "{dsn}"
app = "{app}"
artifacts = "artifacts"
poll_seconds = 0.1

[pool.{pool}]
concurrency = 4
env = ["{world}"]
write = ["{outside}"]
drain_seconds = 2.0
"""


@dataclass(frozen=True, slots=True)
class Site:
    """The directory, and a secret that was put where handlers meet it and that must turn up nowhere else."""

    root: Path
    canary: str

    @property
    def ledger(self) -> Path:
        """The SQLite file. It lies outside the workers' directory: a pool must not be able to read it."""
        return self.root / "ledger" / "benteng.db"

    @property
    def dsn(self) -> str:
        """The ledger's address."""
        return f"sqlite:///{self.ledger}"

    @property
    def home(self) -> Path:
        """Where the configuration is, and the working directory of producer and workers."""
        return self.root / "site"

    @property
    def artifacts(self) -> Path:
        """Artifact files, named by their sha256."""
        return self.home / "artifacts"

    @property
    def keys(self) -> Path:
        """Private keys and trust roots."""
        return self.home / ".benteng"

    @property
    def logs(self) -> Path:
        """What the processes said."""
        return self.root / "logs"

    @property
    def scratch(self) -> Path:
        """Where processes put temporary files: a killed worker leaves its cells' directories behind."""
        return self.root / "tmp"

    @property
    def world(self) -> World:
        """The outside world."""
        return World(self.root / "world")

    def environ(self) -> dict[str, str]:
        """Return the environment of the demo's processes: nothing of benteng's; a secret that no handler may see."""
        ours = {world.VARIABLE: str(self.world.root), UNLISTED: self.canary, "TMPDIR": str(self.scratch)}
        return without_ours(os.environ) | ours


def without_ours(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that configure benteng."""
    return {name: value for name, value in environ.items() if not name.startswith("BENTENG_")}


@contextlib.contextmanager
def site(keep: Path | None) -> Generator[Site]:
    """Make the installation and go inside; afterwards remove it, unless it was asked for by name."""
    root = _kept(keep) if keep is not None else Path(tempfile.mkdtemp(prefix="benteng-demo-"))
    try:
        made = Site(root.resolve(), secrets.token_hex(16))
        _furnish(made)
        with contextlib.chdir(made.home), _without_variables():
            yield made
    finally:
        if keep is None:
            shutil.rmtree(root)


def _kept(keep: Path) -> Path:
    try:
        keep.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise PolicyError("N-keep", "the directory exists already", fix="name a new one, or remove it") from None
    return keep


def _furnish(site: Site) -> None:
    for directory in (site.ledger.parent, site.home, site.artifacts, site.logs, site.scratch):
        directory.mkdir(mode=0o700)
    site.world.make()
    (site.world.root / "feed.url").write_text(f"https://reader:{site.canary}@feed.example/daily")
    generate(site.keys, origin=f"os:{os.getuid()}", now=system_clock())
    settings = site.home / "benteng.toml"
    values = {"app": APP, "pool": POOL, "world": world.VARIABLE, "outside": site.world.root}
    settings.write_text(SETTINGS.format(dsn=site.dsn, **values))
    settings.chmod(0o600)


@contextlib.contextmanager
def _without_variables() -> Generator[None]:
    ours = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("BENTENG_")}
    try:
        yield
    finally:
        os.environ.update(ours)
