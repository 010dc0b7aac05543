"""Count the calls of verbs that one job costs, by tier: enqueued alone or many by one call, worked off by some slots.

.venv/bin/python bench/round_trips.py --jobs 100 --slots 1 4 16
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.servers import PostgresServer  # noqa: E402 - the checkout, when this is run as a file
from tests.support.site import Site, registry_of  # noqa: E402

JOBS = ROOT / "tests" / "worker" / "apps" / "jobs.py"
TYPES = {"low": "greet@1", "medium": "medium@1", "high": "high@1"}
ENTRY, WORK = ("evidence", "admit"), ("claim", "settle", "turn")


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    print("tier    slots  alone: in  many: in  out  extend  together (alone)")
    with PostgresServer.launch(settings={"track_functions": "pl"}) as server:
        for tier in TYPES:
            for slots in options.slots:
                with tempfile.TemporaryDirectory() as root, closing(site_at(Path(root), server)) as site:
                    print(line(tier, slots, measured(site, tier, options.jobs, slots)), flush=True)
    return 0


def site_at(root: Path, server: PostgresServer) -> Site:
    """Return a ledger whose worker may run."""
    root.chmod(0o755)
    return Site(root, server, registry_of(JOBS), JOBS)


def line(tier: str, slots: int, found: dict[str, float]) -> str:
    """Return one line of the table: calls a job."""
    together = found["alone"] + found["out"]
    return (
        f"{tier:<7} {slots:>5} {found['alone']:>10.2f} {found['many']:>9.2f} {found['out']:>4.2f}"
        f" {found['extend']:>7.2f} {together:>17.2f}"
    )


def measured(site: Site, tier: str, jobs: int, slots: int) -> dict[str, float]:
    """Enqueue half of the jobs alone and half by one call, work them off, and return the calls a job."""
    half = jobs // 2
    payloads = [payload(tier, n) for n in range(jobs)]
    for each in payloads[:half]:
        site.enqueue(TYPES[tier], **each)
    alone = calls(site)
    site.enqueue_many(TYPES[tier], payloads[half:])
    many = calls(site)
    worker = site.worker("default", "--concurrency", str(slots))
    site.until(lambda: site.count(TYPES[tier].partition("@")[0]) >= jobs)
    site.until(lambda: completed(site) == jobs)
    worker.stop()
    out = calls(site)
    return {
        "alone": sum(alone.get(verb, 0) for verb in ENTRY) / half,
        "many": sum(many.get(verb, 0) - alone.get(verb, 0) for verb in ENTRY) / (jobs - half),
        "out": sum(out.get(verb, 0) for verb in WORK) / jobs,
        "extend": out.get("extend", 0) / jobs,
    }


def payload(tier: str, number: int) -> dict[str, object]:
    """Return the payload of one job; each on a host of its own."""
    host = {"host": f"h{number}"} if tier == "high" else {}
    return {"name": f"n{number}", **host}


def completed(site: Site) -> int:
    """Return how many jobs are done."""
    with site.superuser() as owner:
        found = owner.execute("select count(*) from benteng.operation where ended = 'completed'").fetchone()
    return int(found[0]) if found else 0


def calls(site: Site) -> dict[str, int]:
    """Return the calls of each verb so far, when the server has heard of all of them."""
    site.producer.status([])  # a later call of the same session brings the counts of the earlier ones along
    with site.superuser() as owner:
        owner.execute("select pg_sleep(1.1)")  # a session tells its counts once a second at most
        site.producer.status([])
        query = "select funcname, calls from pg_stat_user_functions where schemaname = 'benteng_v1'"
        return dict(owner.execute(query).fetchall())


if __name__ == "__main__":
    sys.exit(main())
