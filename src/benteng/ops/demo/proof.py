"""The last step: the audit tells all that happened, nothing that it must not tell, and can be checked by anybody.

The life of each job is followed through its records and compared with the tables of `lifecycle` and with what the
ledger says now; every leaf is computed again; and a secret that handlers met is searched for in everything written.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from benteng.audit import verify_page
from benteng.job import sha256_hex
from benteng.lifecycle import TRANSITIONS, State
from benteng.merkle import Frontier
from benteng.ops.demo.report import Step
from benteng.ops.demo.stage import Numbered, Stage, contents


def prove_audit(stage: Stage, step: Step) -> None:
    """Every transition is recorded, the tree holds, and no secret is in any record, log, line or ledger file."""
    records = stage.records()
    states = stage.states()
    findings = verify_page(stage.rows, 1, Frontier())
    lives = {job_id: [n for n in records if n.record.job_id == job_id] for job_id in states}

    step.expect("there are jobs and records", held=0 < len(states) < len(records))
    step.equal("numbers have no gap, and each body is the one its leaf commits to", (), findings.problems)
    step.equal("all bodies were checked", len(records), findings.verified)
    step.equal("every transition of every job is recorded", [], list(_broken_lives(lives, states)))
    step.equal("no secret was written down", [], list(_leaks(stage)))
    step.where = f"{len(records)} records"
    step.said = f"{len(states)} jobs followed, leaves computed again, root {findings.frontier.root().hex()[:16]}…"
    step.audit = [records[-1].seq] if records else []


def root_of(stage: Stage) -> tuple[int, str]:
    """Return how many records there are and the root of their tree (hex)."""
    records = stage.records()
    return len(records), verify_page(stage.rows, 1, Frontier()).frontier.root().hex()


def _broken_lives(lives: dict[str, list[Numbered]], states: dict[str, State]) -> Iterator[str]:
    """Yield what is missing or impossible in the recorded lives of jobs."""
    for job_id, life in lives.items():
        at = ""
        for numbered in life:
            record = numbered.record
            if not record.state_to or record.state_from == record.state_to:
                continue
            if record.state_from != at or not _may_follow(at, record.state_to):
                yield f"#{numbered.seq} {record.event}: {record.state_from} -> {record.state_to}, but it was {at}"
            at = record.state_to
        if at != states[job_id]:
            yield f"{job_id} is {states[job_id]}, the audit ends with {at or 'nothing'}"


def _may_follow(before: str, after: str) -> bool:
    return before == "" or State(after) in TRANSITIONS[State(before)].values()


def _leaks(stage: Stage) -> Iterator[str]:
    """Yield where the canary or a private key was found. The world is left out: there handlers meet the canary."""
    secrets = [stage.site.canary.encode()]
    for path, key in contents(stage.site.keys):
        if path.suffix == ".key":
            secrets += [key.strip(), base64.b64decode(key)]
    places = [*contents(stage.site.ledger.parent), *contents(stage.site.logs), *_bodies(stage)]
    for place, content in places:
        if any(secret in content for secret in secrets):
            yield f"{place} ({sha256_hex(content)[:8]})"


def _bodies(stage: Stage) -> Iterator[tuple[str, bytes]]:
    for row in stage.rows:
        yield f"record #{row.seq}", row.body or b""
