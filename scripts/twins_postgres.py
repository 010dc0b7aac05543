"""Break the PostgreSQL verbs on purpose, one guard at a time, and see that a test fails for each. See twins.py.

The breaks are text replacements in the files of functions: the tests install them like any others.
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
FUNCTIONS = "benteng/store/postgres/functions"
SUITE = "tests/store/test_conformance_postgres.py"
ORDER = "tests/store/postgres/test_lock_order.py"
LOG = "tests/store/postgres/test_audit_order.py"
ANSWERS = "tests/store/postgres/test_connection.py"
SECONDS_MAX = 180


class Twin(NamedTuple):
    """One deliberate break: in `file` each `old` becomes `new`, and a test chosen by `tests` in `suite` must fail."""

    name: str
    file: str
    breaks: tuple[tuple[str, str], ...]
    tests: str
    suite: str = SUITE


TWINS = (
    # -- compare-and-set
    Twin("fence-not-compared", "settle.sql", (("      and j.fence = s.fence\n", ""),), "forged or mixed"),
    Twin("token-not-compared", "settle.sql", (("      and j.token = s.token\n", ""),), "forged or old_fence"),
    Twin("extend-token", "extend.sql", (("      and j.token = a.token\n", ""),), "forged_proofs"),
    Twin("extend-after-end", "extend.sql", (("      and j.lease_until > v_now\n", ""),), "after_the_lease_end"),
    Twin(
        "reclaim-without-compare-and-set",
        "reclaim.sql",
        (("    for update skip locked) l;", "    ) l;"),),
        "reclaim_leaves",
        ORDER,
    ),
    Twin(
        "again-by-id",
        "settle.sql",
        (
            ("    and s.fence = coalesce(j.fence, o.fence)\n    and s.token = coalesce(j.token, o.token)\n", ""),
            ("  where s.ordinality <> all (coalesce(p_done, '{}'))\n    and j.state", "  where j.state"),
        ),
        "lost_answer_of_settle",
        ANSWERS,
    ),
    # -- fences
    Twin(
        "fence-before-rows",
        "claim.sql",
        (
            (
                "  v_fences    bigint[];\n",
                (
                    "  v_fences    bigint[];\n"
                    "  v_early     bigint[] := array(select nextval('benteng.fence') from generate_series(1, 100));\n"
                ),
            ),
            ("array_agg(nextval('benteng.fence') order by g.ord)", "array_agg(v_early[g.ord] order by g.ord)"),
        ),
        "fence_is_drawn",
        ORDER,
    ),
    Twin("attempt-not-at-claim", "claim.sql", (("attempts = j.attempts + 1,", "attempts = j.attempts,"),), "spent_at"),
    # -- the lock protocol
    Twin(
        "jobs-unsorted",
        "settle.sql",
        (("    order by j.id\n    for update) l;", "    order by j.id desc\n    for update) l;"),),
        "take_their_jobs",
        ORDER,
    ),
    Twin(
        "resources-unsorted",
        "move_jobs.sql",
        (("    order by r.key\n    for update;", "    order by r.key desc\n    for update;"),),
        "take_their_resources",
        ORDER,
    ),
    Twin(
        "later-rounds-wait",
        "claim.sql",
        (("for update skip locked) h;", "for update) h;"),),
        "second_round or turn_does_not_wait",
        ORDER,
    ),
    Twin(
        "control-read-without-lock",
        "claim.sql",
        (("  lock table benteng.control in row share mode;\n", ""),),
        "tighten_waits",
        ORDER,
    ),
    Twin(
        "wake-in-the-same-snapshot",
        "settle.sql",
        (
            ("  v_keys   text[];\n", "  v_keys   text[];\n  v_sleeps boolean;\n"),
            (
                "  perform benteng.hold_resources(v_ids);\n  v_now",
                (
                    "  v_sleeps := exists (select from benteng.job w where w.state = 'blocked');\n"
                    "  perform benteng.hold_resources(v_ids);\n  v_now"
                ),
            ),
            (
                "  perform benteng.wake(v_keys, v_now);\n",
                "  if v_sleeps then perform benteng.wake(v_keys, v_now); end if;\n",
            ),
        ),
        "release_finds",
        ORDER,
    ),
    Twin(
        "baton-lost-at-park",
        "claim.sql",
        (("p.waits_for <> p.busy_key),", "p.waits_for <> p.busy_key and false),"),),
        "two_keys",
    ),
    Twin(
        "baton-dropped",
        "move_jobs.sql",
        (("m.state_from = 'ready' and m.waits_for is not null) f;", "false) f;"),),
        "baton",
    ),
    # -- idempotency
    Twin(
        "read-check-insert",
        "enter.sql",
        (
            (
                "      order by i.operation_key, i.ordinality\n      on conflict do nothing\n",
                (
                    "        and not exists (\n          select from benteng.operation o\n"
                    "          where o.key = decode(i.operation_key, 'hex') and not o.freed)\n"
                    "      order by i.operation_key, i.ordinality\n"
                ),
            ),
        ),
        "duplicate_waits",
        ORDER,
    ),
    Twin(
        "origin-not-compared",
        "enter.sql",
        (("when o.origin <> p_origins[i.ordinality] then", "when false then"),),
        "other_origin_is",
    ),
    Twin(
        "digest-not-compared",
        "enter.sql",
        (("when o.payload_sha256 <> decode(i.payload_sha256, 'hex') then", "when false then"),),
        "other_digest",
    ),
    # -- bounds that no worker can move
    Twin(
        "attempts-unbounded",
        "settle.sql",
        (
            (
                "k.attempts >= k.attempts_max then 'exhausted'\n        when k.disposition = 'crash'",
                "false then 'exhausted'\n        when k.disposition = 'crash'",
            ),
        ),
        "attempts_are_bounded or new_policy_applies",
    ),
    Twin(
        "once-run-again",
        "reclaim.sql",
        (("when t.effect = 'once' then 'uncertain'", "when false then 'uncertain'"),),
        "once_is_uncertain",
    ),
    Twin(
        "never-closed",
        "move_jobs.sql",
        (("m.reason = 'uncertain' and t.closes, false)", "false, false)"),),
        "keeps_its_resource_closed",
    ),
    Twin(
        "successor-unlisted", "settle.sql", (("when s.type <> all (t.successors)", "when false"),), "successor_that_is"
    ),
    # -- admission
    Twin(
        "origin-believed",
        "judge.sql",
        (("when i.origin <> p_origins[i.ordinality]\n", "when false\n"),),
        "foreign_origin",
    ),
    Twin("digest-believed", "judge.sql", (("when t.sha256 <> i.policy_sha256\n", "when false\n"),), "other_policy"),
    # -- the log
    Twin(
        "log-does-not-wait",
        "audit_page.sql",
        (("    exit when pg_snapshot_xmin(pg_current_snapshot()) >= v_xid;\n", "    exit;\n"),),
        "commits_late",
        LOG,
    ),
    Twin(
        "bare-digest",
        "audit_row.sql",
        (("benteng.keyed(a.payload_sha256)", "encode(a.payload_sha256, 'hex')"),),
        "digests_are_keyed",
    ),
)


def main() -> int:
    """Run the chosen twins; 0 when each was caught."""
    parser = argparse.ArgumentParser(description="Broken twins of the PostgreSQL verbs, and the tests that catch them.")
    parser.add_argument("names", nargs="*", help="only these twins")
    names = parser.parse_args().names
    chosen = [twin for twin in TWINS if not names or twin.name in names]
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
    print(f"{twin.name:32} {'caught by ' + said if code == 1 else f'SURVIVED (pytest exit {code})'}", flush=True)
    return code == 1


def _run(twin: Twin | None, tests: str, suite: str) -> tuple[int, str]:
    """Run the tests against a copy of the source, broken by the twin if there is one."""
    with tempfile.TemporaryDirectory(prefix="twin-") as directory:
        source = Path(directory) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if twin:
            _break(source / FUNCTIONS / twin.file, twin)
        return _test(source, tests, suite)


def _break(path: Path, twin: Twin) -> None:
    text = path.read_text()
    for old, new in twin.breaks:
        if old not in text:
            raise SystemExit(
                f"twins: {twin.name}: a text to break is not in {twin.file} any more. Move the twin with it"
            )
        text = text.replace(old, new)
    path.write_text(text)


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
