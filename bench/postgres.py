"""What the verbs of the PostgreSQL ledger cost in a crowd, and while a transaction keeps old rows from being removed.

One client on one machine, by the socket, through the least logins, on a durable cluster of its own. Prints medians and
99th percentiles in milliseconds, and the ratio of the claim's p99 in a retry storm with a pinned horizon to before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benteng.decide import Disposition  # noqa: E402 - the root must be found first
from benteng.store.records import Admission  # noqa: E402
from benteng.testing.bench import Bench, proof, settlement  # noqa: E402
from benteng.testing.crowd import Crowd, fill  # noqa: E402
from benteng.testing.ledger import ACCEPTS, LOW, TYPES, make_policy  # noqa: E402
from benteng.testing.postgres import PostgresLedger, fresh, superuser  # noqa: E402
from tests.support.servers import PostgresServer  # noqa: E402

SIZES = (1_000, 100_000, 1_000_000)
FINISHED = 200_000
SLOTS = 50
CALLS = 100
STORM = make_policy("t.storm@1", limits={"attempts_max": 25, "backoff_seconds_min": 0.05, "backoff_seconds_max": 0.05})
CLOCK = (
    "create or replace function benteng.now() returns timestamptz language sql volatile as 'select clock_timestamp()'"
)
TABLES = "select relname, pg_total_relation_size(relid) from pg_stat_user_tables where relname in ('job', 'operation')"


class Times:
    """How long calls took, in milliseconds."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def call(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        """Call and note how long it took."""
        started = time.perf_counter()
        answer = verb(*arguments)
        self.taken.append(1e3 * (time.perf_counter() - started))
        return answer

    def summary(self) -> dict[str, float]:
        """Return p50 and p99."""
        p99 = statistics.quantiles(self.taken, n=100)[98]
        return {"p50": round(statistics.median(self.taken), 2), "p99": round(p99, 2), "calls": len(self.taken)}


def ledger_with(server: PostgresServer, crowd: Crowd) -> tuple[PostgresLedger, psycopg.Connection[Any]]:
    """Return a ledger with a crowd and the server's own clock, and a session of the superuser."""
    ledger = fresh(server.dsn)
    Bench(ledger, types=(*TYPES, STORM)).elsewhere.close()
    owner = superuser(ledger.site)
    owner.execute(CLOCK.encode())
    fill(owner, crowd)
    owner.execute("checkpoint")
    return ledger, owner


class Place:
    """A ledger in which so many are ready, and how long its verbs took."""

    def __init__(self, server: PostgresServer, ready: int) -> None:
        self.ledger, self.owner = ledger_with(server, Crowd(ready, FINISHED))
        self.bench = Bench(self.ledger, types=())
        self.times = {name: Times() for name in ("claim", "extend", "settle", "admit_500", "stage", "reclaim")}

    def work(self) -> None:
        """Let some in, start them, renew them and complete them."""
        self.bench.admit(*(self.bench.job(LOW) for _ in range(SLOTS)))
        grants = self.times["claim"].call(self.bench.consumer.claim, SLOTS, ACCEPTS)
        self.times["extend"].call(self.bench.consumer.extend, [proof(each) for each in grants])
        self.times["settle"].call(self.bench.consumer.settle, [settlement(each) for each in grants])

    def enter(self) -> None:
        """Let 500 in, and let the keeper look."""
        admissions = [Admission(self.bench.job(LOW)) for _ in range(500)]
        self.times["admit_500"].call(self.bench.producer.admit, admissions)
        self.times["stage"].call(self.bench.stage)
        self.times["reclaim"].call(self.bench.reclaim)


def crowded(server: PostgresServer, sizes: list[int], calls: int) -> dict[str, Any]:
    """Measure ledgers of several sizes by turns, so that whatever else the machine does meets all of them."""
    places = {size: Place(server, size) for size in sizes}
    for verb, times in ((Place.work, calls), (Place.enter, 10)):
        for _ in range(times):
            for place in places.values():
                verb(place)
    for place in places.values():
        place.owner.close()
        place.ledger.remove()
    return {f"{size} ready": {verb: t.summary() for verb, t in place.times.items()} for size, place in places.items()}


def running(server: PostgresServer, count: int) -> dict[str, Any]:
    """Measure the keeper where so many run, each renewed three times."""
    ledger, owner = ledger_with(server, Crowd(100_000, 1_000, count))
    for _ in range(3):
        owner.execute("update benteng.job set lease_until = lease_until + interval '1 hour' where state = 'running'")
    bench, times = Bench(ledger, types=()), {"stage": Times(), "reclaim": Times()}
    for _ in range(20):
        times["stage"].call(bench.stage)
        times["reclaim"].call(bench.reclaim)
    owner.close()
    ledger.remove()
    return {name: each.summary() for name, each in times.items()}


def storm(server: PostgresServer, finished: int, seconds: float) -> dict[str, Any]:
    """Measure claims while every job fails again and again, before and while a transaction pins the horizon."""
    ledger, owner = ledger_with(server, Crowd(0, finished, 0))
    bench = Bench(ledger, types=())
    bench.admit(*(bench.job(STORM) for _ in range(500)))
    before = _fail_for(bench, seconds)
    sizes = dict(owner.execute(TABLES).fetchall())
    pin = superuser(ledger.site)
    pin.execute("begin isolation level repeatable read")
    pin.execute("select 1 from benteng.job limit 1")
    during = _fail_for(bench, seconds)
    grown = dict(owner.execute(TABLES).fetchall())
    pin.execute("rollback")
    after = _fail_for(bench, seconds)
    pin.close()
    owner.close()
    ledger.remove()
    return {
        "before": before.summary(),
        "pinned": during.summary(),
        "after": after.summary(),
        "p99_ratio": round(during.summary()["p99"] / before.summary()["p99"], 2),
        "grown": {name: round(grown[name] / sizes[name], 2) for name in sizes},
        "bytes": grown,
    }


def _fail_for(bench: Bench, seconds: float) -> Times:
    times, end = Times(), time.monotonic() + seconds
    while time.monotonic() < end:
        grants = times.call(bench.consumer.claim, SLOTS, (STORM.name,))
        fails = [settlement(each, Disposition.RETRY, error="an error") for each in grants]
        quarantined = len([each for each in bench.consumer.settle(fails) if each.state == "quarantined"])
        bench.admit(*(bench.job(STORM) for _ in range(quarantined)))
        bench.stage(1_000)
    return times


def main() -> None:
    """Measure and print; with --json also write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="how many jobs are ready")
    parser.add_argument("--calls", type=int, default=CALLS, help="how many claims of 50 for each")
    parser.add_argument("--running", type=int, default=20_000, help="how many run, for the keeper")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each part of the storm is")
    parser.add_argument("--finished", type=int, default=1_000_000, help="finished jobs beside the storm")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    asked = parser.parse_args()
    found: dict[str, Any] = {
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()},
        "milliseconds": {},
    }
    with PostgresServer.launch(
        durable=True, settings={"shared_buffers": "256MB", "autovacuum_naptime": "10s"}
    ) as server:
        found["machine"]["postgres"] = server.version()
        found["milliseconds"] |= crowded(server, asked.sizes, asked.calls)
        print(found["milliseconds"], flush=True)
        found["milliseconds"][f"{asked.running} running"] = running(server, asked.running)
        print(found["milliseconds"][f"{asked.running} running"], flush=True)
        found["storm"] = storm(server, asked.finished, asked.seconds)
        print(found["storm"])
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
