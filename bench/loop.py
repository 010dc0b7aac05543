"""What the supervisor's loop adds to the store: a worker that drains no-op jobs beside a bare loop of the same verb.

.venv/bin/python bench/loop.py --jobs 2000 --rounds 5 --json bench/results/loop.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benteng import lockfile  # noqa: E402 - the checkout, when this is run as a file
from benteng.decide import Disposition  # noqa: E402
from benteng.gate import Gate, JobSpec  # noqa: E402
from benteng.store.open import open_consumer, open_operator, open_producer  # noqa: E402
from benteng.store.records import LeaseProof, Settlement  # noqa: E402
from benteng.worker.launch import WorkerSettings, run_worker  # noqa: E402
from benteng.worker.pool import Pool  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402
from tests.support.site import Site, registry_of  # noqa: E402

APP = ROOT / "bench" / "loop_jobs.py"
TYPE = "nothing@1"
SLOTS = (10, 50, 200)
STORES = ("sqlite", "postgres")
ENQUEUE = 1_000


class Bench:
    """A ledger with the type of this benchmark: how jobs come in, and under which address a consumer takes them out."""

    def __init__(self, root: Path, server: PostgresServer | None) -> None:
        self.root = root
        self.stack = ExitStack()
        registry = registry_of(APP)
        self.lock = root / "benteng.lock"
        lockfile.write(self.lock, registry.policies())
        if server is None:
            (root / "store").mkdir(mode=0o700)
            self.dsn = f"sqlite:///{root / 'store' / 'ledger.db'}"
            with closing(open_operator(self.dsn)) as operator:
                operator.apply_types(lockfile.to_rows(registry.policies()), "a benchmark")
            producer = self.stack.enter_context(closing(open_producer(self.dsn)))
            self.gate = Gate(producer, registry, registry.policies(), lambda: None)
        else:
            (root / "site").mkdir(mode=0o755)
            site = self.stack.enter_context(closing(Site(root / "site", server, registry, APP)))
            self.dsn, self.gate = site.dsn("consumer", "default"), site.gate

    def fill(self, jobs: int) -> None:
        """Let jobs in."""
        for first in range(0, jobs, ENQUEUE):
            specs = [JobSpec(TYPE, {"number": n}, actor="a") for n in range(first, min(jobs, first + ENQUEUE))]
            self.gate.enqueue_many(specs)

    def measured(self, way: str, slots: int, jobs: int) -> dict[str, float]:
        """Drain in a process of its own, by the bare loop or by a worker; return jobs a second and its CPU a job."""
        self.fill(jobs)
        asked = {"way": way, "dsn": self.dsn, "root": str(self.root), "slots": slots, "jobs": jobs}
        ran = subprocess.run(
            [sys.executable, __file__, "--drain", json.dumps(asked)], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise SystemExit(f"{way} at {slots} slots failed: {ran.stderr[-2000:]}")
        return json.loads(ran.stdout)


def drain(way: str, dsn: str, root: str, slots: int, jobs: int) -> dict[str, float]:
    """Drain as asked, in this process."""
    return (bare if way == "bare" else worker)(dsn, Path(root), slots, jobs)


def bare(dsn: str, root: Path, slots: int, jobs: int) -> dict[str, float]:
    """Call the verb that settles and claims until all is done."""
    del root
    with closing(open_consumer(dsn, "default")) as consumer:
        watch, left, ended = Watch(), jobs, list[Settlement]()
        while left > 0:
            turn = consumer.turn(ended, min(slots, left), (TYPE,))
            left -= len(turn.settled)
            ended = [
                Settlement(
                    LeaseProof(g.job.id, g.lease.fence, g.lease.token),
                    Disposition.COMPLETE,
                    result=b"null",
                    holds=False,
                )
                for g in turn.grants
            ]
        return watch.stop(jobs)


def worker(dsn: str, root: Path, slots: int, jobs: int) -> dict[str, float]:
    """Run a worker without a keeper; from the first claim to the last settlement."""
    watch: list[Watch] = []
    found: dict[str, float] = {}
    left = jobs

    def say(event: str, /, **fields: object) -> None:
        nonlocal left
        if event not in {"claimed", "settled"}:
            print(event, fields, file=sys.stderr)
        if event == "claimed" and not watch:
            watch.append(Watch())
        left -= event == "settled"
        if not left and not found:
            found.update(watch[0].stop(jobs))
            os.kill(os.getpid(), signal.SIGTERM)

    for name in ("app", "scratch"):
        (root / name).mkdir(exist_ok=True)
    shutil.copy(APP, root / "app")
    settings = WorkerSettings(
        dsn=dsn,
        app=f"{APP.stem}:app",
        lock=lockfile.read(root / "benteng.lock"),
        pool=Pool(concurrency=slots),
        keeper=False,
        cwd=root / "app",
        scratch_parent=root / "scratch",
        say=say,
    )
    if run_worker(settings):
        raise SystemExit("the worker failed")
    return found


class Watch:
    """Measures from its making: time, and the CPU of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, jobs: int) -> dict[str, float]:
        """Return jobs a second, and microseconds of CPU a job."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"per_second": round(jobs / wall), "cpu_us": round(1e6 * cpu / jobs, 1)}


def compared(stores: Sequence[str], slots: Sequence[int], rounds: int, jobs: int) -> dict[str, Any]:
    """Let the bare loop and the worker take turns, round after round, and return medians and ratios."""
    found: dict[str, Any] = {}
    for store in stores:
        with ExitStack() as stack:
            server = stack.enter_context(PostgresServer.launch(durable=True)) if store == "postgres" else None
            for count in slots:
                runs = [one_round(server, count, jobs) for _ in range(rounds)]
                found[f"{store} {count}"] = summary(runs)
                print(f"{store} {count}", found[f"{store} {count}"], flush=True)
    return found


def one_round(server: PostgresServer | None, slots: int, jobs: int) -> dict[str, dict[str, float]]:
    """Measure both on one fresh ledger each."""
    return {way: on_a_fresh_ledger(server, lambda bench, way=way: bench.measured(way, slots, jobs)) for way in WAYS}


WAYS = ("bare", "worker")


def on_a_fresh_ledger(server: PostgresServer | None, act: Callable[[Bench], dict[str, float]]) -> dict[str, float]:
    """Do something with a ledger that nobody has used."""
    with tempfile.TemporaryDirectory(prefix="benteng-loop-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        bench = Bench(root, server)
        try:
            return act(bench)
        finally:
            bench.stack.close()


def summary(runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return the medians of each way, and the ratios of the rates."""
    ratios = sorted(run["worker"]["per_second"] / run["bare"]["per_second"] for run in runs)
    best = max(run["worker"]["per_second"] for run in runs) / max(run["bare"]["per_second"] for run in runs)
    medians = {
        way: {figure: statistics.median(run[way][figure] for run in runs) for figure in ("per_second", "cpu_us")}
        for way in WAYS
    }
    spread = [round(ratios[0], 2), round(ratios[-1], 2)]
    return medians | {"ratio": round(statistics.median(ratios), 2), "ratios": spread, "ratio_of_best": round(best, 2)}


def main() -> int:
    """Measure and print; with --json also write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--slots", type=int, nargs="+", default=SLOTS)
    parser.add_argument("--jobs", type=int, default=2_000, help="how many are drained in each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--drain", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drain:
        print(json.dumps(drain(**asked.drain)))
        return 0
    facts = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
    facts["sqlite"] = sqlite3.sqlite_version
    found = {"machine": facts, "jobs": asked.jobs, "rounds": asked.rounds}
    found["loop"] = compared(asked.stores, asked.slots, asked.rounds, asked.jobs)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
