"""Configuration: where each value comes from, and what it is. Read once, when it is first needed.

Highest first: arguments, `BENTENG_*` variables, `benteng.toml` found upwards from the working directory, defaults.
Unknown keys are errors. Never a password in code or argv; the file may only tighten what the code declared (DESIGN
section 5). Trust: the file's owner. One that others may write is refused.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from benteng.errors import PolicyError
from benteng.policy import POOL_DEFAULT
from benteng.secret import Source
from benteng.store.durability import Durability
from benteng.store.records import Facet

FILE_NAME = "benteng.toml"
LOCK_NAME = "benteng.lock"
KEYS_NAME = ".benteng"
FILE_BYTES_MAX = 1 << 20
VARIABLES = {
    "BENTENG_ENVIRONMENT": "environment",
    "BENTENG_DSN": "dsn",
    "BENTENG_APP": "app",
    "BENTENG_LOCK": "lock",
    "BENTENG_KEYS": "keys",
    "BENTENG_ARTIFACTS": "artifacts",
}
"""Environment variables and the setting each one sets."""


class Environment(StrEnum):
    """`dev` is loud and convenient; `prod` refuses what is not safe. The default for the embedded store is `dev`."""

    DEV = "dev"
    PROD = "prod"


class PoolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One pool: `[pool.NAME]`.

    concurrency          attempts at the same time
    types                the only job types that this host's workers of the pool accept, as name@major; none: all
    starts_per_minute    how many attempts each worker may start within any 60 seconds; 0: no bound
    start                "fork" a cell from the zygote, or "exec" each one (for code that starts threads at import)
    env                  names of environment variables that handlers may see; never secrets
    secrets              where each secret comes from that job types name: {file}, {env} or {credential}
    uid, gid             whom zygote and cells become when the worker is root; with `cell`, who they are
    supervisor_uid, supervisor_gid
                         whom the supervisor becomes under `benteng supervise`
    cell                 where zygote and cells are when they are elsewhere: "unix:/path", the socket of `benteng cell`
    read, write          full paths that MEDIUM and HIGH cells may read, or write, beside what all may
    exec                 full paths of the programs that MEDIUM and HIGH cells may start
    egress               what handlers may connect to: "host:port", "*.example.org:443", "10.0.0.5:5432 private"
    egress_connects_per_job  how many connects an attempt may make
    broker_uid, broker_gid   whom the egress broker becomes when the worker is root
    waive                layers of isolation that `dev` does without; `prod` refuses MEDIUM and HIGH then
    drain_seconds        how long running attempts may finish after SIGTERM
    dsn                  the store's address with this pool's own login; empty: that of the consumer
    """

    concurrency: int = 4
    types: tuple[str, ...] = ()
    starts_per_minute: int = 0
    start: str = "fork"
    env: tuple[str, ...] = ()
    secrets: dict[str, Source] = {}
    uid: int | None = None
    gid: int | None = None
    supervisor_uid: int | None = None
    supervisor_gid: int | None = None
    cell: str = ""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    exec: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    egress_connects_per_job: int = 1_000
    broker_uid: int | None = None
    broker_gid: int | None = None
    waive: frozenset[str] = frozenset()
    drain_seconds: float = 10.0
    dsn: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    environment: Environment = Environment.DEV
    dsn: str | dict[Facet, str] = ""
    app: str = ""
    lock: str = ""
    keys: str = ""
    artifacts: str = ""
    durability: Durability = Durability.D0
    poll_seconds: float = 0.5
    pool: dict[str, PoolSettings] = {}


@dataclass(frozen=True, slots=True)
class Config:
    """The effective settings. Paths are absolute; `sources` says where each value came from.

    dsns       the store's address for each facet that this host may open; none: the embedded store in the user's state
               directory. A database login has one facet, so a host lists only what its services need
    app        `module:attribute` of the Benteng object
    lock       the reviewed policies of this host;  keys: directory of trust roots and private keys
    artifacts  directory that holds artifact files, named by their sha256
    durability  the class that the ledger must have for jobs of this host: enqueue refuses a lower one
    """

    environment: Environment = Environment.DEV
    dsns: Mapping[Facet, str] = field(default_factory=dict[Facet, str])
    app: str = ""
    root: Path = field(default_factory=Path)
    lock: Path = field(default_factory=Path)
    keys: Path = field(default_factory=Path)
    artifacts: Path = field(default_factory=Path)
    durability: Durability = Durability.D0
    poll_seconds: float = 0.5
    pools: Mapping[str, PoolSettings] = field(default_factory=dict[str, PoolSettings])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_embedded(self) -> bool:
        """Whether the ledger is the embedded store: nobody named another one, for no facet and for no pool."""
        return not self.dsns and not any(pool.dsn for pool in self.pools.values())

    def dsn(self, facet: Facet, pool: str = "") -> str:
        """Return the address for a facet, for a consumer of a pool the pool's own; empty: the embedded store.

        Raises PolicyError when this host has addresses, but none for that facet.
        """
        own = self.pool(pool).dsn if pool else ""
        if own or self.is_embedded:
            return own
        if facet not in self.dsns:
            raise PolicyError("N-dsn", f"this host has no address for a {facet}", fix=f"set dsn.{facet} in {FILE_NAME}")
        return self.dsns[facet]

    def pool(self, name: str) -> PoolSettings:
        """Return the settings of a pool; the defaults when the file does not mention it."""
        return self.pools.get(name, PoolSettings())


def load(start: Path | None = None, environ: Mapping[str, str] = os.environ, **arguments: str) -> Config:
    """Read the configuration as seen from a directory. Raises PolicyError naming the key, the rule and the fix."""
    here = (start or Path.cwd()).resolve()
    path = find_file(here)
    values: dict[str, Any] = {} if path is None else _read(path)
    _refuse_passwords(_convert(values))
    sources = dict.fromkeys(values, str(path))
    for variable, key in VARIABLES.items():
        if variable in environ:
            values[key], sources[key] = environ[variable], variable
    for key, value in arguments.items():
        if value:
            values[key], sources[key] = value, "argument"
    return _effective(_convert(values), here if path is None else path.parent, sources)


def find_file(start: Path) -> Path | None:
    """Return the nearest `benteng.toml` upwards, or None."""
    return next((d / FILE_NAME for d in (start, *start.parents) if (d / FILE_NAME).is_file()), None)


def _effective(found: _File, root: Path, sources: Mapping[str, str]) -> Config:
    app = found.app or ("jobs:app" if (root / "jobs.py").is_file() else "")
    keys = root / (found.keys or KEYS_NAME)
    return Config(
        environment=found.environment,
        dsns=_dsns(found.dsn, root),
        app=app,
        root=root,
        lock=root / (found.lock or LOCK_NAME),
        keys=keys,
        artifacts=root / (found.artifacts or "artifacts"),
        durability=found.durability,
        poll_seconds=found.poll_seconds,
        pools={name: _absolute(pool, root) for name, pool in found.pool.items()} or {POOL_DEFAULT: PoolSettings()},
        sources=sources,
    )


def _dsns(found: str | Mapping[Facet, str], root: Path) -> dict[Facet, str]:
    """Return the address for each facet: one text is the address for all of them."""
    if isinstance(found, str):
        return dict.fromkeys(Facet, _absolute_dsn(found, root)) if found else {}
    return {facet: _absolute_dsn(dsn, root) for facet, dsn in found.items()}


def _absolute(pool: PoolSettings, root: Path) -> PoolSettings:
    return msgspec.structs.replace(pool, dsn=_absolute_dsn(pool.dsn, root))


def _absolute_dsn(dsn: str, root: Path) -> str:
    relative = "sqlite:///"
    if dsn.startswith(relative) and not dsn.startswith(relative + "/"):
        return f"{relative}{root / dsn.removeprefix(relative)}"
    return dsn


def _read(path: Path) -> dict[str, Any]:
    info = path.stat()
    if stat.S_IMODE(info.st_mode) & (stat.S_IWGRP | stat.S_IWOTH) or info.st_uid not in (os.getuid(), 0):
        raise PolicyError(
            "N-mode", f"{path.name} may be written by others", fix=f"chown it to you and: chmod go-w {path}"
        )
    if info.st_size > FILE_BYTES_MAX:
        raise PolicyError("N-size", f"{path.name} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError("N-format", f"{path.name} is not TOML: {error}") from None


def _refuse_passwords(found: _File) -> None:
    """The file lies beside the code: cells, backups and the repository have it too."""
    dsns = [found.dsn] if isinstance(found.dsn, str) else [*found.dsn.values()]
    for dsn in (*dsns, *(pool.dsn for pool in found.pool.values())):
        parts = urlsplit(dsn)
        if parts.password is not None or "password" in parse_qs(parts.query):
            fix = "keep it in ~/.pgpass, or name a file by ?passfile="
            raise PolicyError("N-password", "the file holds a password", field="dsn", fix=fix)


def _convert(values: dict[str, Any]) -> _File:
    known = _File.__struct_fields__
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise PolicyError("N-unknown", "unknown setting", field=key[:64], fix=hint)
    try:
        return msgspec.convert(values, _File)
    except msgspec.ValidationError as error:
        raise PolicyError("N-value", str(error)) from None
