"""The benchmark's own installation: a scratch ledger, configuration, keys, logs, the witness. All gone afterwards."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benteng.clock import system_clock
from benteng.config import Config
from benteng.keyring import generate
from benteng.ops.bench.marks import VARIABLE, Marks
from benteng.ops.bench.scratch import POOLS, Ledger, scratch

APP = "benteng.ops.bench.jobs:app"
SHARED = Path("/dev/shm")  # noqa: S108 - a private directory is made in it


@dataclass(frozen=True, slots=True)
class Place:
    """Everything that a run needs.

    home     the working directory of benchmark and workers;  logs: what the workers said
    marks    the witness
    """

    ledger: Ledger
    home: Path
    logs: Path
    marks: Marks
    environ: Mapping[str, str]


@contextlib.contextmanager
def place(config: Config, slots: int) -> Generator[Place]:
    """Make the installation and go inside; afterwards remove it."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benteng-bench-")))
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="benteng-bench-", dir=_shared()))
        ledger = scratch(config, root / "passwords")
        stack.callback(ledger.close)
        home, logs, path = root / "home", root / "logs", Path(shared) / "marks"
        for directory in (home, logs):
            directory.mkdir(mode=0o700)
        marks = Marks.make(path, slots)
        origin = f"os:{os.getuid()}" if ledger.name == "sqlite" else _user_of(ledger.addresses()["producer"])
        generate(home / ".benteng", origin=origin, now=system_clock())
        _configure(home, ledger.addresses(), path)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BENTENG_")}
        stack.enter_context(contextlib.chdir(home))
        stack.enter_context(_variables({VARIABLE: str(path)}))
        yield Place(ledger, home, logs, marks, environ | {VARIABLE: str(path)})


def _shared() -> Path | None:
    return SHARED if os.access(SHARED, os.W_OK) else None


def _user_of(dsn: str) -> str:
    return urlsplit(dsn).username or ""


def _configure(home: Path, addresses: Mapping[str, str], marks: Path) -> None:
    """Write benteng.toml: the defaults of `dev`, a pool for each tier, and the file that handlers mark."""
    lines = ['environment = "dev"', f'app = "{APP}"']
    if "" in addresses:
        lines.append(f'dsn = "{addresses[""]}"')
    else:
        lines += ["[dsn]", *(f'{name} = "{dsn}"' for name, dsn in addresses.items() if "." not in name)]
    for pool in POOLS:
        lines += ["", f"[pool.{pool}]", f'env = ["{VARIABLE}"]', f'write = ["{marks}"]']
        if f"consumer.{pool}" in addresses:
            lines.append(f'dsn = "{addresses[f"consumer.{pool}"]}"')
    path = home / "benteng.toml"
    path.write_text("\n".join([*lines, ""]))
    path.chmod(0o600)


@contextlib.contextmanager
def _variables(ours: Mapping[str, str]) -> Generator[None]:
    """Hide the variables that configure benteng, and set the benchmark's own."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("BENTENG_")}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
        os.environ.update(hidden)
