"""What each layer of hardening costs a job: each is timed by itself, on real jobs; nothing is switched off anywhere.

The way in is timed in this process, part by part; the ledger's share is `admit` less a bare insert into a table of the
same store. The way through a worker is timed by draining: a tier at a time, and MEDIUM without each of the layers that
`dev` may waive.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from benteng.clock import system_clock
from benteng.envelope import open_envelope
from benteng.gate import Draft, JobSpec
from benteng.guard import SUPERVISOR, Case, Door, judge
from benteng.keyring import TRUST_FILE, load_trust
from benteng.ops.bench.phases import Runner
from benteng.ops.bench.report import Cost
from benteng.policy import PENDING, Tier
from benteng.store.records import Admission
from benteng.worker.sandbox.layers import LAYERS

JOBS = 500
TIMES = 5
DRAINS = 3
"""How often; the best counts, because what disturbs only adds."""

SKEW_US = 5_000_000
WAIVABLE = ("landlock_files", "seccomp")

CELLS = {
    Tier.LOW: "claim, lease and fence; a process without the credential; settle",
    Tier.MEDIUM: "and signature and columns checked again; a walled cell, used again",
    Tier.HIGH: "and a cell for each job",
}


def measure(run: Runner, jobs: int) -> list[Cost]:
    """Time every layer. `jobs`: how many each drain works off."""
    costs: list[Cost] = []
    for tier in Tier:
        run.clear()
        run.tier = tier
        run.say(f"layers of {tier} ...")
        costs += [*(_way_in(run) if tier is not Tier.MEDIUM else []), _work(run, jobs)]
        costs += [_without(run, layer, jobs, costs[-1]) for layer in WAIVABLE] if tier is Tier.MEDIUM else []
    return [*costs, *(Cost(row.floor, row.missing, None, "to come") for row in PENDING)]


def _way_in(run: Runner) -> list[Cost]:
    gate, tier = run.app.gate, run.tier
    shape = gate.registry.find(run.job_type).shape
    specs = _specs(run)
    drafts = _drafts(run, specs)
    found = gate.producer.evidence([draft.question for draft in drafts])
    prepared = [gate.prepare(spec) for spec in specs]
    parse = _timed(lambda: [shape.parse_value(spec.payload) for spec in specs])
    prepare = _timed(lambda: [gate.prepare(spec) for spec in specs])
    evidence = _timed(lambda: gate.producer.evidence([draft.question for draft in drafts]))
    guards = _timed(lambda: [gate.judge(d, {}, e, Door.GATE) for d, e in zip(drafts, found, strict=True)])
    decided = _timed(lambda: gate.decide(prepared))
    bare, stored = _bare(run, drafts), _stored(run, _admissions(run, specs))
    rows = [
        Cost(f"{tier} bare insert", f"id and payload, {JOBS} by a commit: the floor, without any layer", bare),
        Cost(f"{tier} contract", "unknown fields, odd numbers, control characters are refused", parse),
        Cost(f"{tier} identity", "digest, operation key, references, a summary without values", prepare - parse),
        Cost(f"{tier} guards", "every rule in order; an error refuses", guards),
        Cost(f"{tier} ledger", "operation, audit, policy, limits, switches in the same commit", stored - bare),
    ]
    if tier is Tier.LOW:
        return rows
    signature = Cost(f"{tier} signature", "who changes a row in the database is found out", decided - evidence - guards)
    asked = Cost(f"{tier} evidence", "switches, access, approvals by the ledger's clock", evidence)
    return [*rows, asked, signature, _second_judgement(run, specs)]


def _second_judgement(run: Runner, specs: Sequence[JobSpec]) -> Cost:
    gate, trust = run.app.gate, load_trust(Path(".benteng") / TRUST_FILE)
    admissions = _admissions(run, specs)
    found = gate.producer.evidence([draft.question for draft in _drafts(run, specs)])
    policy, now = gate.policies[run.job_type], system_clock()

    def check() -> None:
        for each, evidence in zip(admissions, found, strict=True):
            claims = open_envelope(each.job.envelope, trust, now_us=now, skew_us=SKEW_US)
            judge(Case(each.job, policy, Door.WORKER, claims=claims), evidence, SUPERVISOR)

    return Cost(f"{run.tier} second judgement", "what was changed after the gate does not start", _timed(check))


def _work(run: Runner, jobs: int) -> Cost:
    drains = [_drain(run, jobs) for _ in range(DRAINS)]
    return Cost(f"{run.tier} work", CELLS[run.tier], min(drains), f"concurrency {run.concurrency}")


def _drain(run: Runner, jobs: int) -> float:
    run.drain(jobs)
    return 1e6 / run.report.rows.pop().rate


def _without(run: Runner, layer: str, jobs: int, whole: Cost) -> Cost:
    with _waived(run.tier.value, layer):
        without = _work(run, jobs)
    cost = (whole.microseconds or 0.0) - (without.microseconds or 0.0)
    name, does = f"{run.tier} {layer}", LAYERS[layer].does
    if cost <= 0:
        return Cost(name, does, None, "less than this run's noise")
    return Cost(name, does, cost, "work, less work without it")


def _specs(run: Runner) -> list[JobSpec]:
    return [JobSpec(run.job_type, {"slot": slot}, run.actor) for slot in run.take(JOBS)]


def _drafts(run: Runner, specs: Sequence[JobSpec]) -> list[Draft]:
    return [run.app.gate.draft(spec) for spec in specs]


def _admissions(run: Runner, specs: Sequence[JobSpec]) -> list[Admission]:
    gate = run.app.gate
    decided = gate.decide([gate.prepare(spec) for spec in specs])
    return [said for said in decided if isinstance(said, Admission)]


def _stored(run: Runner, first: Sequence[Admission]) -> float:
    """Time `admit` on new jobs each time: the same ones again would be duplicates."""
    batches = [first, *(_admissions(run, _specs(run)) for _ in range(TIMES - 1))]
    return min(_once(lambda batch=batch: run.app.gate.producer.admit(batch)) for batch in batches)


def _bare(run: Runner, drafts: Sequence[Draft]) -> float:
    batches = [[(draft.job.id, draft.job.payload) for draft in drafts]]
    batches += [
        [(d.job.id, d.job.payload) for d in _drafts(run, [JobSpec(run.job_type, {"slot": 0}, run.actor)] * JOBS)]
        for _ in range(TIMES - 1)
    ]
    return min(_once(lambda batch=batch: run.place.ledger.insert_bare(batch)) for batch in batches)


def _timed(work: Callable[[], object]) -> float:
    """Return the least microseconds a job of several times."""
    return min(_once(work) for _ in range(TIMES))


def _once(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - began) / JOBS


@contextlib.contextmanager
def _waived(pool: str, layer: str) -> Generator[None]:
    """Have workers of a pool go without a layer, as `dev` may, in the benchmark's own configuration."""
    path = Path("benteng.toml")
    before = path.read_text()
    path.write_text(before.replace(f"[pool.{pool}]\n", f'[pool.{pool}]\nwaive = ["{layer}"]\n'))
    try:
        yield
    finally:
        path.write_text(before)
