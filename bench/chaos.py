"""Kill and freeze real workers under load, and count what the handlers' own journal says was lost, doubled or stale.

Each attempt appends begin, middle and end (long work: ticks) with its fence to a file that the store does not know,
each with an fsync. Some cells kill themselves, supervisors are SIGKILLed and replaced, others are SIGSTOPped past their
lease and continued; with PostgreSQL sessions are ended and the server is restarted as after a crash. Afterwards
journal, ledger and audit are compared. Exit 1 when a promise is broken.

    .venv/bin/python bench/chaos.py                            # small: 3 workers, 200 jobs
    .venv/bin/python bench/chaos.py --store postgres --terminate 20 --restart 1
    .venv/bin/python bench/chaos.py --workers 6 --jobs 2000 --json bench/results/chaos.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import msgspec
from chaos_jobs import LEASE_SECONDS, POOL, Line, app
from chaos_stores import STORES, Place

from benteng.audit import AuditRecord, Event, Frontier, verify_page
from benteng.clock import system_clock
from benteng.gate import JobSpec
from benteng.keyring import generate
from benteng.ops.demo.crew import Crew, Member
from benteng.ops.demo.site import without_ours
from benteng.store.open import open_auditor

SCHEMA = "benteng.bench.chaos/1"
BATCH = 100
LOOK_SECONDS = 0.1
FREEZE_SECONDS_MAX = 15.0
OVERTAKEN_NANOSECONDS = 500_000_000
SETTINGS = """\
environment = "dev"
app = "chaos_jobs:app"
poll_seconds = 0.2
{ledger}

[pool.{pool}]
concurrency = {concurrency}
env = ["CHAOS_JOURNAL", "CHAOS_WORK_SECONDS", "CHAOS_DIES_PERCENT"]
write = ["{journal}"]
drain_seconds = 5.0
"""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A worker that was stopped: when, and its open tries then (number of the work -> fence)."""

    member: Member
    since: float
    tries: dict[int, int]


@dataclass(slots=True)
class Run:
    """One run: where its files are, its processes, and the faults that were put in."""

    options: argparse.Namespace
    root: Path
    crew: Crew
    place: Place
    killed: list[Frozen] = field(default_factory=list[Frozen])
    faults: Counter[str] = field(default_factory=Counter[str])
    frozen: list[Frozen] = field(default_factory=list[Frozen])
    exits: dict[str, int] = field(default_factory=dict[str, int])
    started: int = 0

    @property
    def journal(self) -> Path:
        """What the handlers wrote."""
        return self.root / "journal.jsonl"

    def start_worker(self) -> Member:
        """Start one more worker."""
        self.started += 1
        return self.crew.start(f"worker-{self.started}", ["worker", "chaos_jobs:app", "--pool", POOL, "--no-keeper"])

    def workers(self) -> list[Member]:
        """Return the workers that are alive and not frozen."""
        frozen = {each.member.pid for each in self.frozen}
        return [m for m in self.crew.alive() if m.name.startswith("worker") and m.pid not in frozen]

    def completed(self) -> int:
        """Count the completed operations; 0 while the ledger is away."""
        with contextlib.suppress(Exception):  # whatever its driver says
            return self.place.completed()
        return 0


# --- the run ----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Run, report, and return 1 when a promise was broken."""
    options = arguments()
    root = Path(tempfile.mkdtemp(prefix="benteng-chaos-")).resolve()
    try:
        result = measured(options, root)
    finally:
        if options.keep:
            print(f"kept: {root}", file=sys.stderr)
        else:
            shutil.rmtree(root)
    print(table(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["kept"] else 1


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=list(STORES), default="sqlite")
    parser.add_argument("--terminate", type=int, default=0, help="sessions of the server that are ended (postgres)")
    parser.add_argument("--restart", type=int, default=0, help="crashes of the server (postgres)")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--resources", type=int, default=40)
    parser.add_argument("--concurrency", type=int, default=4, help="attempts at a time in each worker")
    parser.add_argument("--work-seconds", type=float, default=0.01, help="how long an attempt works")
    parser.add_argument("--dies-percent", type=int, default=5, help="jobs whose first cell is SIGKILLed")
    parser.add_argument("--long-percent", type=int, default=2, help="jobs that work longer than a lease")
    parser.add_argument("--kill", type=int, default=2, help="supervisors that are SIGKILLed and replaced")
    parser.add_argument("--freeze", type=int, default=2, help="supervisors that are SIGSTOPped past their lease")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--limit-seconds", type=float, default=600.0)
    parser.add_argument("--keep", action="store_true", help="leave the run's directory")
    parser.add_argument("--json", default="", metavar="PATH", help="write the result there")
    return parser.parse_args()


def measured(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Furnish the directory, play the run, and return what is found afterwards."""
    with contextlib.closing(STORES[options.store](root, POOL)) as place:
        return measured_at(place, options, root)


def measured_at(place: Place, options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """The same, where the ledger is."""
    home = furnish(place, options, root)
    environ = without_ours(os.environ) | {
        "TMPDIR": str(root / "tmp"),
        "CHAOS_JOURNAL": str(root / "journal.jsonl"),
        "CHAOS_WORK_SECONDS": str(options.work_seconds),
        "CHAOS_DIES_PERCENT": str(options.dies_percent),
    }
    run = Run(options, root, Crew(home, root / "logs", environ), place)
    for name in [name for name in os.environ if name.startswith("BENTENG_")]:
        del os.environ[name]
    with contextlib.chdir(home), contextlib.closing(app):
        load = os.getloadavg()[0]
        times = play(run)
        return result_of(run, times, load)


def furnish(place: Place, options: argparse.Namespace, root: Path) -> Path:
    """Make the directories, keys and configuration of the run; return the workers' working directory."""
    home = root / "site"
    for directory in (root / "logs", root / "tmp", home, home / "artifacts"):
        directory.mkdir(mode=0o700)
    generate(home / ".benteng", origin=place.origin, now=system_clock())
    settings = home / "benteng.toml"
    journal = root / "journal.jsonl"
    ledger, concurrency = place.settings(), options.concurrency
    settings.write_text(SETTINGS.format(ledger=ledger, pool=POOL, concurrency=concurrency, journal=journal))
    settings.chmod(0o600)
    journal.touch()  # what cells write must be there when they are shut in
    shutil.copy(Path(__file__).with_name("chaos_jobs.py"), home)
    return home


def play(run: Run) -> dict[str, float]:
    """Admit all jobs, work them off under faults, and return the times (seconds)."""
    began = time.monotonic()
    admit(run.options)
    admitted = time.monotonic()
    run.crew.start("keeper", ["keeper"])
    for _ in range(run.options.workers):
        run.start_worker()
    try:
        work_off(run, time.monotonic() + run.options.limit_seconds)
    finally:
        ended = time.monotonic()
        codes = run.crew.end()
        run.exits = {name: code for name, code in codes.items() if code != 0}
    return {"admit": admitted - began, "work": ended - admitted}


def admit(options: argparse.Namespace) -> None:
    """Let all jobs in, some hundred by one commit."""
    rng = random.Random(options.seed)
    long = long_jobs(options)
    specs = [
        JobSpec(
            "chaos.work",
            {
                "resource": f"r{rng.randrange(options.resources)}",
                "number": n,
                "dies": rng.randrange(100),
                "long": n in long,
            },
            actor="svc:chaos",
        )
        for n in range(options.jobs)
    ]
    for start in range(0, len(specs), BATCH):
        refused = [each for each in app.enqueue_many(specs[start : start + BATCH]) if isinstance(each, Exception)]
        if refused:
            raise refused[0]


def long_jobs(options: argparse.Namespace) -> set[int]:
    """Return the numbers of the jobs that work longer than a lease, spread evenly."""
    return set(range(0, options.jobs, 100 // options.long_percent)) if options.long_percent else set()


def work_off(run: Run, end: float) -> None:
    """Watch until all is done, and put the faults in at even distances on the way."""
    schedule = faults(run.options)
    pause = threading.Event()
    while (done := run.completed()) < run.options.jobs and time.monotonic() < end:
        thaw(run)
        while schedule and done >= schedule[0][0]:
            put_in(run, schedule.pop(0)[1])
        pause.wait(LOOK_SECONDS)
    thaw(run, everybody=True)
    run.faults["not_put_in"] = len(schedule)


def faults(options: argparse.Namespace) -> list[tuple[int, str]]:
    """Return (after how many completed jobs, which fault), the kinds in turn."""
    kinds = ("kill", "freeze", "terminate", "restart")
    pairs = zip_longest(*([kind] * getattr(options, kind) for kind in kinds))
    chosen = [kind for pair in pairs for kind in pair if kind is not None]
    step = options.jobs / (len(chosen) + 2)
    return [(int(step * (i + 1)), kind) for i, kind in enumerate(chosen)]


def put_in(run: Run, kind: str) -> None:
    """Kill one supervisor and replace it, freeze one until its leases are over, or hurt the server."""
    busy = run.workers()
    run.faults[kind] += 1
    if kind in {"terminate", "restart"}:
        run.place.hurt(kind)
    elif kind == "kill":
        victim = busy[run.faults["kill"] % len(busy)]
        run.killed.append(Frozen(victim, time.monotonic(), tries_of(run, victim)))
        victim.process.send_signal(signal.SIGKILL)  # the supervisor alone: its zygote and cells must notice
        victim.process.wait()
        run.start_worker()
    else:
        victim = at_long_work(run) or busy[0]
        freeze(run, victim)
        run.frozen.append(Frozen(victim, time.monotonic(), tries_of(run, victim)))


def open_tries(run: Run) -> list[Line]:
    """Return the tries that the journal saw begin and not go on: the beginning of each."""
    begun: dict[int, Line] = {}
    for line in read_journal(run.journal):
        if line.what == "begin":
            begun[line.fence] = line
        elif line.what != "tick":
            begun.pop(line.fence, None)
    return list(begun.values())


def tries_of(run: Run, member: Member) -> dict[int, int]:
    """Return the open tries of one worker."""
    family = member.family()
    return {line.number: line.fence for line in open_tries(run) if line.pid in family}


def at_long_work(run: Run) -> Member | None:
    """Return a worker that is in the middle of work longer than its lease, if there is one now."""
    long, free = long_jobs(run.options), {member.pid for member in run.workers()}
    for line in open_tries(run):
        member = run.crew.of(line.pid) if line.number in long else None
        if member is not None and member.pid in free:
            run.faults["freeze_in_long_work"] += 1
            return member
    return None


def freeze(run: Run, member: Member) -> None:
    """Stop a process where it keeps nobody from writing."""
    while True:
        member.stop()
        if run.place.is_free():
            return
        member.go_on()
        run.faults["freeze_retried"] += 1


def thaw(run: Run, *, everybody: bool = False) -> None:
    """Continue those who were overtaken: when somebody else is at what they had, so that their words could do harm."""
    for each in list(run.frozen):
        seconds = time.monotonic() - each.since
        overtaken = seconds > LEASE_SECONDS and is_overtaken(run, each)
        if everybody or overtaken or seconds > FREEZE_SECONDS_MAX:
            run.faults["overtaken"] += overtaken
            each.member.go_on()
            run.frozen.remove(each)


def is_overtaken(run: Run, frozen: Frozen) -> bool:
    """Return whether an open try has for a while been at work that the frozen one had, with a higher fence."""
    settled_in = time.monotonic_ns() - OVERTAKEN_NANOSECONDS
    tries = [line for line in open_tries(run) if line.at < settled_in]
    return any(line.fence > frozen.tries.get(line.number, line.fence) for line in tries)


# --- what is found afterwards -----------------------------------------------------------------------------------------


def result_of(run: Run, times: dict[str, float], load: float) -> dict[str, Any]:
    """Compare journal, ledger and audit, and return the whole result."""
    lines = list(read_journal(run.journal))
    rows, records = read_audit(run.place.dsn("auditor"))
    promises = judge(run, lines, records) | {"audit_problems": len(verify_page(rows, 1, Frontier()).problems)}
    return {
        "schema": SCHEMA,
        "options": {k: v for k, v in vars(run.options).items() if k not in {"json", "keep"}},
        "kept": not any(promises.values()),
        "promises": promises,
        "seen": seen(run, lines, records),
        "seconds": {name: round(value, 2) for name, value in times.items()},
        "jobs_per_second": round(run.options.jobs / times["work"], 1),
        "transactions_per_job": round(len({r.at_us for r in records}) / run.options.jobs, 3),
        "verb_calls": run.place.calls(),
        "recovery": recovery(run, lines),
        "machine": machine(load) | {"ledger": run.place.version},
    }


def judge(run: Run, lines: list[Line], records: list[AuditRecord]) -> dict[str, int]:
    """Count broken promises; each must be 0."""
    completions = [r for r in records if r.event is Event.COMPLETED]
    ends = {(line.fence) for line in lines if line.what == "end"}
    done = Counter(r.job_id for r in completions)
    admitted = {r.job_id for r in records if r.event is Event.ADMITTED}
    worked = {line.number for line in lines if line.what == "end"}
    return {
        "jobs_lost": len(admitted - done.keys()) + (run.options.jobs - len(admitted)),
        "jobs_without_effect": run.options.jobs - len(worked),
        "operations_with_two_successes": sum(count > 1 for count in done.values()),
        "stale_commits_accepted": len(stale_commits(run, records)),
        "completions_without_an_end_in_the_journal": sum(r.fence not in ends for r in completions),
        "fences_that_did_not_rise": fences_that_fell(lines),
        "lines_after_a_higher_fence": len(overlaps(lines)),
        "faults_not_put_in": run.faults["not_put_in"],
    }


def stale_commits(run: Run, records: list[AuditRecord]) -> list[str]:
    """Return the settlements that a worker was told were accepted although the lease of that try had been reclaimed."""
    reclaimed = {(r.job_id, r.fence) for r in records if r.event is Event.RECLAIMED}
    stale: list[str] = []
    for log in sorted(run.crew.logs.glob("worker-*.log")):
        fences: dict[str, int] = {}
        for event, said in events_of(log):
            job = said.get("job", "")
            if event == "claimed":
                fences[job] = int(said["fence"])
            elif event == "settled" and (job, fences.get(job)) in reclaimed:
                stale.append(f"{log.name}: {job}")
    return stale


def recovery(run: Run, lines: list[Line]) -> dict[str, float]:
    """Return how long the work of killed supervisors waited until somebody began it again (seconds)."""
    begun: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        if line.what == "begin":
            begun[line.number].append(line)
    waited = [
        min(line.at for line in begun[number] if line.fence > fence) / 1e9 - killed.since
        for killed in run.killed
        for number, fence in killed.tries.items()
        if any(line.fence > fence for line in begun[number])
    ]
    if not waited:
        return {}
    shares = {"p50": 0.5, "p99": 0.99}
    found = {name: round(sorted(waited)[int(share * (len(waited) - 1))], 2) for name, share in shares.items()}
    return {"attempts": len(waited), **found, "max": round(max(waited), 2)}


def events_of(log: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the events that a worker told, with their fields."""
    for line in log.read_text(errors="replace").splitlines():
        event, _, rest = line.partition(" ")
        yield event, dict(field.split("=", 1) for field in rest.split(" ") if "=" in field)


def fences_that_fell(lines: list[Line]) -> int:
    """Count the attempts that began on a resource with a fence not above the one before, by the machine's clock."""
    fell = 0
    for begun in by_resource(line for line in lines if line.what == "begin").values():
        fell += sum(after.fence <= before.fence for before, after in pairwise(begun))
    return fell


def overlaps(lines: list[Line]) -> list[Line]:
    """Return the lines that an attempt wrote on a resource after an attempt with a higher fence had begun there."""
    late: list[Line] = []
    for written in by_resource(lines).values():
        highest = 0
        for line in written:
            if line.fence < highest:
                late.append(line)
            highest = max(highest, line.fence)
    return late


def by_resource(lines: Iterator[Line] | list[Line]) -> dict[str, list[Line]]:
    """Return the lines of each resource in the order of the machine's clock."""
    grouped: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        grouped[line.resource].append(line)
    return {resource: sorted(each, key=lambda line: line.at) for resource, each in grouped.items()}


def seen(run: Run, lines: list[Line], records: list[AuditRecord]) -> dict[str, Any]:
    """Return what happened on the way: that faults were really put in and really met."""
    events = Counter(r.event.value for r in records)
    what = Counter(line.what for line in lines)
    killed = {line.number for line in lines if line.what == "middle" and line.attempt == 1} - {
        line.number for line in lines if line.what == "end" and line.attempt == 1
    }
    return {
        "attempts_begun": what["begin"],
        "attempts_ended": what["end"],
        "first_tries_cut_short": len(killed),
        "supervisors_killed": run.faults["kill"],
        "supervisors_frozen": run.faults["freeze"],
        "sessions_ended": run.faults["terminate"],
        "servers_crashed": run.faults["restart"],
        "frozen_in_work_longer_than_the_lease": run.faults["freeze_in_long_work"],
        "thawed_while_somebody_else_was_at_it": run.faults["overtaken"],
        "freezes_retried_inside_a_transaction": run.faults["freeze_retried"],
        "exit_codes_other_than_0": run.exits,
        "jobs_reclaimed_by_lease": events["reclaimed"],
        "stale_settles_refused": sum(r.rule == "S-stale" for r in records),
        "jobs_blocked": events["blocked"],
        "audit_records": len(records),
        "effects_repeated": what["end"] - len({line.number for line in lines if line.what == "end"}),
    }


def read_journal(path: Path) -> Iterator[Line]:
    """Yield the lines of the journal."""
    for line in path.read_bytes().splitlines():
        yield msgspec.json.decode(line, type=Line)


def read_audit(dsn: str) -> tuple[list[Any], list[AuditRecord]]:
    """Return all rows and records of the audit log."""
    rows: list[Any] = []
    with contextlib.closing(open_auditor(dsn, environment="dev")) as auditor:
        while page := auditor.audit_page(rows[-1].seq if rows else 0):
            rows.extend(page)
    return rows, [msgspec.json.decode(row.body, type=AuditRecord) for row in rows]


def machine(load: float) -> dict[str, Any]:
    """Return what the figures depend on."""
    models = [n.partition(":")[2].strip() for n in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in n]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(load, 2),
    }


def table(result: dict[str, Any]) -> str:
    """Return the result for people."""
    lines = [f"chaos: {'every promise kept' if result['kept'] else 'BROKEN'}"]
    for heading in ("promises", "seen", "seconds", "recovery", "verb_calls", "machine"):
        lines.append(f"\n{heading}")
        lines += [f"  {name.replace('_', ' '):<44} {value}" for name, value in result[heading].items()]
    lines.append(f"\n  {'jobs per second':<44} {result['jobs_per_second']}")
    lines.append(f"  {'transactions that wrote audit, per job':<44} {result['transactions_per_job']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
