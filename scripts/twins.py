"""Break the store on purpose, one guard at a time, and see that a test of the suite fails for each.

A broken twin is a copy of `src` with one text replaced; only the tests that ought to notice run against it. A twin that
survives means that a promise has no test. A text that is not found means that the code moved: move the twin with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SUITE = "tests/store/test_conformance_sqlite.py"
STORE = "benteng/store/sqlite"
SECONDS_MAX = 120


class Twin(NamedTuple):
    """One deliberate break: in `file`, `old` becomes `new`, and a test chosen by `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    suite: str = SUITE


TWINS = (
    # -- fencing
    Twin("fence-not-compared", f"{STORE}/queries/settle.sql", "  and fence = :fence\n", "", "forged"),
    Twin("token-not-compared", f"{STORE}/queries/settle.sql", "  and token = :token\n", "", "forged or old_fence"),
    Twin("pool-not-compared", f"{STORE}/queries/settle.sql", "\n  and pool = :pool;", ";", "forged"),
    Twin("extend-fence", f"{STORE}/queries/extend.sql", "  and fence = :fence\n", "", "forged_proofs"),
    Twin("extend-token", f"{STORE}/queries/extend.sql", "  and token = :token\n", "", "forged_proofs"),
    Twin("extend-after-end", f"{STORE}/queries/extend.sql", "  and lease_until > :now", "", "after_the_lease_end"),
    Twin(
        "stale-unrecorded", f"{STORE}/settle.py", "        _record_stale(tx, settlement)\n", "", "stale_settlement_is"
    ),
    Twin("token-weak", f"{STORE}/claim.py", "secrets.token_hex(TOKEN_BYTES)", '"0" * 32', "tokens_are_never"),
    # -- leases and counts
    Twin("attempt-not-at-claim", f"{STORE}/queries/claim.sql", "attempts = attempts + 1, ", "", "spent_at_the_claim"),
    Twin("reclaim-by-nothing", f"{STORE}/queries/reclaim.sql", "  and lease_until <= :now\n", "", "lease_that_runs"),
    Twin("crash-not-counted", f"{STORE}/moves.py", "crashes=counts.crashes + 1", "crashes=counts.crashes", "poison"),
    Twin(
        "attempts-unbounded",
        f"{STORE}/settle.py",
        "    spent = counts_of(row)\n    if spent.attempts >= limits.attempts_max:",
        "    spent = counts_of(row)\n    if spent.attempts < 0:",
        "new_policy_applies",
    ),
    Twin("snoozes-unbounded", f"{STORE}/settle.py", "spent.snoozes >= limits.snoozes_max", "False", "snoozes_are"),
    Twin("handbacks-free", f"{STORE}/settle.py", "spent.handbacks < limits.handbacks_max", "True", "hand_backs_are"),
    Twin(
        "delay-believed",
        f"{STORE}/settle.py",
        "max(low, min(seconds, high))",
        "max(0.0, min(seconds, 1e9))",
        "backoff_is",
    ),
    Twin("once-run-again", f"{STORE}/keeper.py", "policy.effect is Effect.ONCE", "False", "once_is_uncertain"),
    Twin("cancel-forgotten", f"{STORE}/settle.py", 'row["cancel_asked"] and', "False and", "cancel_wins"),
    Twin(
        "clock-goes-back",
        f"{STORE}/store.py",
        'max(ledger.place.clock(), row["now"])',
        "ledger.place.clock()",
        "going_back",
    ),
    # -- resources
    Twin(
        "first-key-only", f"{STORE}/claim.py", "resources.busy(tx, job.refs.resources)", "None", "all_or_none or excl"
    ),
    Twin(
        "no-wake",
        f"{STORE}/resources.py",
        '        release(tx, row["id"])\n',
        '        tx.all(_RESOURCE["release"], {"job_id": row["id"]})\n',
        "wakes_the_next",
    ),
    Twin(
        "baton-dropped",
        f"{STORE}/resources.py",
        'elif row["state"] == State.READY and row["waits_for"]:',
        "elif False:",
        "baton",
    ),
    Twin(
        "baton-lost-at-park",
        f"{STORE}/resources.py",
        'if row["waits_for"] and row["waits_for"] != key:',
        "if False:",
        "two_keys",
    ),
    Twin(
        "never-closed", f"{STORE}/moves.py", 'policy_of(tx, row["type"]).closes', "False", "keeps_its_resource_closed"
    ),
    Twin(
        "resource-fence-old",
        f"{STORE}/queries/resource.sql",
        "set holder = :job_id, fence = :fence",
        "set holder = :job_id, fence = :fence - 1",
        "fence_rises_per",
    ),
    # -- operations
    Twin(
        "digest-not-compared",
        f"{STORE}/admission.py",
        'owner["payload_sha256"] != job.payload_sha256',
        "False",
        "other_digest",
    ),
    Twin(
        "origin-not-compared", f"{STORE}/admission.py", 'owner["origin"] != entrance.origin', "False", "other_origin_is"
    ),
    Twin(
        "freed-after-start",
        "benteng/lifecycle.py",
        "OperationState.KEPT if started else OperationState.FREED",
        "OperationState.FREED",
        "same_digest",
    ),
    Twin(
        "epoch-not-counted",
        f"{STORE}/queries/admit.sql",
        "1 + coalesce((select max(epoch)",
        "1 + 0 * coalesce((select max(epoch)",
        "epoch",
    ),
    # -- admission and switches
    Twin(
        "origin-believed", f"{STORE}/admission.py", "if job.origin != entrance.origin:", "if False:", "foreign_origin"
    ),
    Twin("policy-not-compared", f"{STORE}/admission.py", "job.policy_sha256 != fact.sha256", "False", "other_policy"),
    Twin("halt-lets-in", f"{STORE}/admission.py", "over.mode is ControlMode.HALT", "False", "halt_refuses"),
    Twin(
        "halt-lets-start",
        f"{STORE}/claim.py",
        "halted = set(control.halted(tx, ControlScope.TYPE))",
        "halted = set()",
        "kill_switch or tighten_against",
    ),
    Twin(
        "tighten-loosens", f"{STORE}/switches.py", "asked.mode.rank < _mode(tx, asked).rank", "False", "never_loosens"
    ),
    Twin(
        "accepts-ignored",
        f"{STORE}/claim.py",
        "set(claimant.accepts) - halted",
        '{*claimant.accepts, "t.low@2"} - halted',
        "only_accepted",
    ),
    Twin("order-by-age", f"{STORE}/queries/claim.sql", "order by priority, due_at, seq", "order by seq", "order_is"),
    # -- successors
    Twin("successor-unlisted", f"{STORE}/settle.py", "job.type not in policy.successors", "False", "successor_that_is"),
    Twin("successor-tier", f"{STORE}/settle.py", "job.tier.rank > policy.tier.rank", "False", "successor_that_is"),
    Twin("successor-actor", f"{STORE}/settle.py", 'job.actor != row["actor"]', "False", "successor_that_is"),
    # -- audit and atomicity
    Twin(
        "wake-unrecorded",
        f"{STORE}/resources.py",
        "    tx.note(Event.WOKEN, row",
        "    tx.memo.get(()) or (lambda *a, **k: None)(Event.WOKEN, row",
        "wakes_the_next",
    ),
    Twin("one-salt", f"{STORE}/audit.py", "token_bytes(SALT_BYTES)", "bytes(SALT_BYTES)", "salted"),
    Twin(
        "bare-digest",
        f"{STORE}/audit.py",
        'keyed(audit_key, row["payload_sha256"].encode())',
        'row["payload_sha256"]',
        "digests_are_keyed",
    ),
    Twin(
        "audit-after-commit",
        f"{STORE}/store.py",
        "            tx.finish(changes)\n            self._check_file()\n",
        '            connection.execute("commit")\n            connection.execute("begin immediate")\n'
        "            tx.finish(changes)\n            self._check_file()\n",
        "killed and settle-end",
    ),
    Twin(
        "claim-in-two",
        f"{STORE}/claim.py",
        "    seconds = policy.limits.lease_seconds\n",
        "    seconds = policy.limits.lease_seconds\n"
        '    tx._connection.execute("commit"), tx._connection.execute("begin immediate")\n',
        "killed and claim",
    ),
    # -- the pure core
    Twin(
        "claim-of-scheduled",
        "benteng/lifecycle.py",
        "Event.STAGE: State.READY,",
        "Event.STAGE: State.READY,\n        Event.CLAIM: State.RUNNING,",
        "running_is",
        "tests/test_lifecycle.py",
    ),
    Twin(
        "refused-keeps-key",
        "benteng/lifecycle.py",
        "{QuarantineReason.REFUSED, QuarantineReason.EXPIRED}",
        "{QuarantineReason.EXPIRED}",
        "never_started",
        "tests/test_lifecycle.py",
    ),
    Twin(
        "verdict-is-true", "benteng/verdict.py", "raise TypeError(msg)", "return True", "truth", "tests/test_verdict.py"
    ),
    Twin(
        "one-attempt-more",
        "benteng/decide.py",
        "if attempt.number >= policy.limits.attempts_max:",
        "if attempt.number > policy.limits.attempts_max:",
        "last_attempt",
        "tests/test_decide.py",
    ),
    Twin(
        "one-crash-more",
        "benteng/decide.py",
        "attempt.crashes + 1 >=",
        "attempt.crashes >=",
        "crash_is",
        "tests/test_decide.py",
    ),
    Twin(
        "once-retried",
        "benteng/decide.py",
        "policy.effect is Effect.ONCE and not outcome.explicit",
        "False",
        "once",
        "tests/test_decide.py",
    ),
    Twin(
        "once-crash-retried",
        "benteng/decide.py",
        "    if policy.effect is Effect.ONCE:\n        return _quarantine(QuarantineReason.UNCERTAIN, outcome.how)\n",
        "",
        "unclear",
        "tests/test_decide.py",
    ),
    Twin(
        "once-drain-retried",
        "benteng/decide.py",
        'return _quarantine(QuarantineReason.UNCERTAIN, "killed by a drain")',
        'return Decision(Disposition.INTERRUPT, error="killed by a drain")',
        "unclear",
        "tests/test_decide.py",
    ),
    Twin("no-jitter", "benteng/decide.py", "rng.uniform(0.0, ceiling)", "ceiling", "spread", "tests/test_decide.py"),
    Twin(
        "any-retry-explicit",
        "benteng/outcome.py",
        "return Transient(text)",
        "return Transient(text, explicit=True)",
        "unknown",
        "tests/test_outcome.py",
    ),
    Twin(
        "defaults-first", "benteng/outcome.py", "(table, ERRORS)", "(ERRORS, table)", "table", "tests/test_outcome.py"
    ),
    Twin(
        "base-first",
        "benteng/outcome.py",
        "in raised.__mro__",
        "in reversed(raised.__mro__)",
        "derived",
        "tests/test_outcome.py",
    ),
    Twin(
        "major-in-key",
        "benteng/job.py",
        'type_name.partition("@")[0]',
        "type_name",
        "major or golden",
        "tests/test_job.py",
    ),
    Twin("key-by-order", "benteng/job.py", ', order="deterministic"', "", "order", "tests/test_job.py"),
    Twin("type-name-loose", "benteng/policy.py", "@[1-9][0-9]{0,3}", "@[0-9]*", "type_name", "tests/test_job.py"),
    Twin(
        "digest-unsorted",
        "benteng/policy.py",
        'msgspec.json.encode(self, order="sorted")',
        "msgspec.json.encode(self)",
        "digest",
        "tests/test_policy.py",
    ),
    Twin(
        "floor-attempts",
        "benteng/policy.py",
        "Tier.HIGH: 5}",
        "Tier.HIGH: 25}",
        "floor",
        "tests/test_policy.py",
    ),
    Twin(
        "floor-once",
        "benteng/policy.py",
        "p.tier is not Tier.LOW or p.effect is Effect.REPEATABLE",
        "True",
        "floor",
        "tests/test_policy.py",
    ),
    Twin("lock-size", "benteng/policy.py", "len(data) > LOCK_BYTES_MAX", "False", "bad_lock", "tests/test_policy.py"),
)


def main() -> int:
    """Run the chosen twins; 0 when each was caught."""
    parser = argparse.ArgumentParser(description="Broken twins of the store, and the tests that catch them.")
    parser.add_argument("names", nargs="*", help="only these twins")
    chosen = [twin for twin in TWINS if not (names := parser.parse_args().names) or twin.name in names]
    for suite in sorted({twin.suite for twin in chosen}):
        code, said = _run(None, " or ".join(f"({twin.tests})" for twin in chosen if twin.suite == suite), suite)
        if code:
            print(f"twins: {suite} fails without any break: {said}", file=sys.stderr)
            return 1
    survivors = [twin.name for twin in chosen if not _is_caught(twin)]
    print(f"twins: {len(chosen) - len(survivors)} of {len(chosen)} caught", *survivors)
    return 1 if survivors or not chosen else 0


def _is_caught(twin: Twin) -> bool:
    code, said = _run(twin, twin.tests, twin.suite)
    print(f"{twin.name:24} {'caught by ' + said if code == 1 else f'SURVIVED (pytest exit {code})'}", flush=True)
    return code == 1


def _run(twin: Twin | None, tests: str, suite: str) -> tuple[int, str]:
    """Run the tests against a copy of the source, broken by the twin if there is one."""
    with tempfile.TemporaryDirectory(prefix="twin-") as directory:
        source = Path(directory) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if twin:
            _break(source / twin.file, twin)
        return _test(source, tests, suite)


def _break(path: Path, twin: Twin) -> None:
    text = path.read_text()
    if twin.old not in text:
        raise SystemExit(f"twins: {twin.name}: the text to break is not in {twin.file} any more. Move the twin with it")
    path.write_text(text.replace(twin.old, twin.new))


def _test(source: Path, tests: str, suite: str) -> tuple[int, str]:
    """Return pytest's exit code (1: a test failed) and the name of the first test that failed."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", suite, "-k", tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    failed = [line.partition("::")[2] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ran.returncode, failed[0].partition(" - ")[0] if failed else ran.stdout[-500:]


if __name__ == "__main__":
    raise SystemExit(main())
