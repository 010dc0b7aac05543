"""Measure how long a real worker needs to stand, and to end a handler that ignores SIGTERM.

A pool of HIGH jobs on an embedded ledger. Start-up: from the exec of `benteng worker` until it says `ready`, with the
import of an application that does nothing. The end: from the deadline of an attempt that ignores what it is asked,
through its grace, until the worker has settled it; the grace is taken off, so what is left is the worker's own time.

    .venv/bin/python bench/ends.py --rounds 5
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from chaos_stores import STORES
from ends_jobs import GRACE_SECONDS, POOL, RUN_SECONDS, app
from waiting import until

from benteng.clock import system_clock
from benteng.keyring import generate
from benteng.ops.demo.crew import Crew, Member
from benteng.ops.demo.site import without_ours

LOOK_SECONDS = 0.005
SETTINGS = """\
environment = "dev"
app = "ends_jobs:app"
{ledger}

[pool.{pool}]
env = ["ENDS_JOURNAL"]
write = ["{journal}"]
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    root = Path(tempfile.mkdtemp(prefix="benteng-ends-")).resolve()
    try:
        started, ended = measured(root, rounds)
    finally:
        shutil.rmtree(root)
    print(f"load {os.getloadavg()[0]:.1f}; {rounds} rounds, median (min to max), seconds")
    for name, values in (("start-up to ready", started), ("deadline to settled, without the grace", ended)):
        print(f"{name:40} {statistics.median(values):6.3f} ({min(values):.3f} to {max(values):.3f})")
    return 0


def measured(root: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Return how long each start and each end took."""
    journal = root / "journal"
    with contextlib.closing(STORES["sqlite"](root, POOL)) as place:
        home = furnish(root, place.settings(), place.origin, journal)
        crew = Crew(home, root / "logs", without_ours(os.environ) | {"ENDS_JOURNAL": str(journal)})
        started, ended = list[float](), list[float]()
        with contextlib.chdir(home), contextlib.closing(app):
            try:
                for number in range(rounds):
                    one, other = round_of(crew, journal, number)
                    started.append(one)
                    ended.append(other)
            finally:
                crew.end()
    return started, ended


def furnish(root: Path, ledger: str, origin: str, journal: Path) -> Path:
    """Make the directories, keys and configuration; return the worker's working directory."""
    home = root / "site"
    for directory in (root / "logs", home, home / "artifacts"):
        directory.mkdir(mode=0o700)
    generate(home / ".benteng", origin=origin, now=system_clock())
    (home / "benteng.toml").write_text(SETTINGS.format(ledger=ledger, pool=POOL, journal=journal))
    (home / "benteng.toml").chmod(0o600)
    journal.touch()
    shutil.copy(Path(__file__).with_name("ends_jobs.py"), home)
    return home


def round_of(crew: Crew, journal: Path, number: int) -> tuple[float, float]:
    """Start a worker, have it end a stubborn handler, and return how long both took."""
    began = time.monotonic()
    worker = crew.start(f"worker-{number}", ["worker", "ends_jobs:app", "--pool", POOL])
    until(lambda: said(worker, "ready "), LOOK_SECONDS)
    stands = time.monotonic() - began
    app.enqueue("ends.stubborn", {"number": number, "host": "h"}, actor="svc:ends")
    until(lambda: said(worker, "settled "), LOOK_SECONDS)
    settled = time.monotonic()
    (handler,) = [float(line.split()[1]) for line in journal.read_text().splitlines() if line.startswith(f"{number} ")]
    worker.ask_to_end()
    worker.end()
    return stands, settled - handler - RUN_SECONDS - GRACE_SECONDS


def said(worker: Member, event: str) -> bool:
    """Whether a worker has said something that begins so."""
    return f"\n{event}" in "\n" + worker.log.read_text(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
