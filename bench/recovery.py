"""Measure how long killed work waits until somebody begins it again, with the limits that nobody wrote down.

In each round one worker has all its slots busy; another is there with as many free ones. The first is SIGKILLed with
its zygote, its cells and its keeper, at a random point between two heartbeats. What counts is the time until the same
job begins again, by the handlers' own journal and CLOCK_MONOTONIC. Exit 1 when a wait was longer than allowed.

    .venv/bin/python bench/recovery.py --store postgres
    .venv/bin/python bench/recovery.py --store sqlite --json bench/results/recovery_sqlite.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from chaos_stores import STORES, Place
from recovery_jobs import POOL, Line, app
from waiting import until

from benteng.clock import system_clock
from benteng.gate import JobSpec
from benteng.keyring import generate
from benteng.ops.demo.crew import Crew, Member
from benteng.ops.demo.site import without_ours
from benteng.policy import LIMITS, Tier

LOOK_SECONDS = 0.05
SETTINGS = """\
environment = "dev"
app = "recovery_jobs:app"
{ledger}

[pool.{pool}]
concurrency = {slots}
env = ["RECOVERY_JOURNAL"]
write = ["{journal}"]
"""


def main() -> int:
    """Measure, print, and return 1 when somebody waited too long."""
    options = arguments()
    root = Path(tempfile.mkdtemp(prefix="benteng-recovery-")).resolve()
    try:
        with contextlib.closing(STORES[options.store](root, POOL)) as place:
            waited = measured(place, options, root)
    finally:
        shutil.rmtree(root)
    result = {
        "store": options.store,
        "lease_seconds": LIMITS[Tier.MEDIUM].lease_seconds,
        "recovery_seconds": summary(waited),
        "machine": {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
    }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return int(max(waited) > options.allowed_seconds)


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=list(STORES), default="postgres")
    parser.add_argument("--rounds", type=int, default=4, help="how many workers are killed")
    parser.add_argument("--slots", type=int, default=16, help="jobs in the hands of each of them")
    parser.add_argument("--allowed-seconds", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    return parser.parse_args()


def measured(place: Place, options: argparse.Namespace, root: Path) -> list[float]:
    """Play the rounds and return how long each killed job waited, in seconds."""
    home, journal = furnish(place, options, root), root / "journal.jsonl"
    environ = without_ours(os.environ) | {"TMPDIR": str(root / "tmp"), "RECOVERY_JOURNAL": str(journal)}
    crew, rng = Crew(home, root / "logs", environ), random.Random(options.seed)
    waited: list[float] = []
    with contextlib.chdir(home), contextlib.closing(app):
        if options.store == "postgres":
            crew.start("keeper", ["keeper"])
        try:
            for number in range(options.rounds):
                waited += round_of(crew, journal, options, number, rng)
        finally:
            crew.end()
    return waited


def furnish(place: Place, options: argparse.Namespace, root: Path) -> Path:
    """Make the directories, keys and configuration; return the workers' working directory."""
    home, journal = root / "site", root / "journal.jsonl"
    for directory in (root / "logs", root / "tmp", home, home / "artifacts"):
        directory.mkdir(mode=0o700)
    generate(home / ".benteng", origin=place.origin, now=system_clock())
    text = SETTINGS.format(ledger=place.settings(), pool=POOL, slots=options.slots, journal=journal)
    (home / "benteng.toml").write_text(text)
    (home / "benteng.toml").chmod(0o600)
    journal.touch()
    shutil.copy(Path(__file__).with_name("recovery_jobs.py"), home)
    return home


def round_of(
    crew: Crew, journal: Path, options: argparse.Namespace, number: int, rng: random.Random
) -> Iterator[float]:
    """Give a worker its fill, kill it while another has nothing to do, and yield how long each job waited."""
    numbers = range(number * options.slots, (number + 1) * options.slots)
    victim = worker(crew, f"victim-{number}")
    app.enqueue_many([JobSpec("recovery.work", {"number": n}, actor="svc:recovery") for n in numbers])
    until(lambda: begun(journal, 1).keys() >= set(numbers), LOOK_SECONDS)
    heir = worker(crew, f"heir-{number}")
    threading.Event().wait(rng.random() * LIMITS[Tier.MEDIUM].lease_seconds / 3)
    victim.kill()
    killed = time.monotonic_ns()
    until(lambda: begun(journal, 2).keys() >= set(numbers), LOOK_SECONDS)
    again = begun(journal, 2)
    heir.ask_to_end()
    heir.end()
    yield from ((again[n] - killed) / 1e9 for n in numbers)


def worker(crew: Crew, name: str) -> Member:
    """Start a worker, and return when it can take work."""
    member = crew.start(name, ["worker", "recovery_jobs:app", "--pool", POOL])
    until(lambda: "\nready " in "\n" + member.log.read_text(errors="replace"), LOOK_SECONDS)
    return member


def begun(journal: Path, attempt: int) -> dict[int, int]:
    """Return when each piece of work began that try."""
    lines = [msgspec.json.decode(line, type=Line) for line in journal.read_bytes().splitlines()]
    return {line.number: line.at for line in lines if line.attempt == attempt}


def summary(waited: list[float]) -> dict[str, Any]:
    """Return what is told of the waits."""
    p99 = statistics.quantiles(waited, n=100)[98]
    found = {"min": min(waited), "p50": statistics.median(waited), "p99": min(p99, max(waited)), "max": max(waited)}
    return {"jobs": len(waited)} | {name: round(value, 2) for name, value in found.items()}


if __name__ == "__main__":
    sys.exit(main())
