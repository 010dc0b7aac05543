"""The demo: it passes, says so in both forms, leaves nothing behind, and fails when a promise is broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benteng.ops.demo.report import SCHEMA, Report, Step
from benteng.ops.demo.steps import ACTS
from benteng.ops.demo.world import StaleFence, World

ROOT = Path(__file__).resolve().parents[2]
RUN = (
    "import sys; from pathlib import Path; from benteng.ops.demo import run; sys.exit(run(as_json={json}, keep={keep}))"
)
SECONDS_MAX = 90
"""For a machine that does other things at the same time; the demo's own promise is 30 s on an idle one."""


def demo(tmp_path, *, as_json=True, keep=None, source=ROOT / "src"):
    """Run the demo of a source tree in a process of its own, with a temporary directory of its own."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    code = RUN.format(json=as_json, keep="None" if keep is None else f"Path({str(keep)!r})")
    environ = os.environ | {
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": str(source),
        "PYTHONIOENCODING": "utf-8",
        "BENTENG_DSN": f"sqlite:///{tmp_path}/the-users-own.db",
        "BENTENG_ENVIRONMENT": "prod",
        "BENTENG_KEYS": "/nonexistent",
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX if source == ROOT / "src" else 3 * SECONDS_MAX,
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One run with --json, and what was in its directory afterwards."""
    place = tmp_path_factory.mktemp("demo")
    done = demo(place)
    return done, place


@pytest.mark.timeout(SECONDS_MAX + 10)
def test_every_expectation_holds(played):
    """The demo exits 0, and only because every step looked at something and found it as promised."""
    done, _ = played

    document = json.loads(done.stdout)

    assert [] == [(s["title"], e) for s in document["steps"] for e in s["expectations"] if not e["held"]]
    assert (0, True) == (done.returncode, document["ok"])
    assert all(step["expectations"] for step in document["steps"])


def test_the_document_has_its_schema_and_all_steps(played):
    """`--json` is one document with the schema's name, every step, and the root of the audit tree."""
    done, _ = played

    document = json.loads(done.stdout)

    assert SCHEMA == document["schema"]
    assert [act.title for act in ACTS] == [step["title"] for step in document["steps"]]
    assert 64 == len(document["root"])
    assert document["records"] > len(ACTS)


def test_nothing_is_left_and_nothing_of_the_user_is_touched(played):
    """The directory is gone, and a configured ledger of the user was neither opened nor made."""
    _, place = played

    left = [path.name for path in place.rglob("*") if path.name != "tmp"]

    assert [] == left


def test_a_step_that_looked_at_nothing_has_not_passed():
    """Only stated expectations count."""
    step = Step(1, "done", "nothing")

    passed = step.ok

    assert passed is False


def test_one_expectation_that_does_not_hold_fails_the_report():
    """The report names what was expected and what was found, and is not ok."""
    lines = []
    report = Report(lines.append)
    good, bad = Step(1, "done", "good"), Step(2, "done", "bad")
    good.equal("one is one", 1, 1)
    bad.equal("one is one", 1, 1)
    bad.equal("one is two", 2, 1)

    report.add(good)
    report.add(bad)

    assert report.ok is False
    assert "expected: one is two; found: 1, not 2" in lines[-1]


def test_a_report_without_steps_is_not_ok():
    """A demo that did nothing has shown nothing."""
    report = Report(lambda line: None)

    assert report.ok is False


def test_a_host_refuses_a_lower_fence(tmp_path):
    """The demo's hosts check the fence: a late write with a lower one changes nothing."""
    world = World(tmp_path / "world")
    world.make()
    world.write_host("web-7", b"new", 9)

    with pytest.raises(StaleFence):
        world.write_host("web-7", b"late", 8)

    assert b"new" == world.host("web-7").read_bytes()


SETTLE, CLAIM = "store/sqlite/queries/settle.sql", "store/sqlite/claim.py"
TWINS = {
    "fence and token": (
        "zombie fenced off",
        [(SETTLE, "  and fence = :fence\n", ""), (SETTLE, "  and token = :token\n", "")],
    ),
    "lease at reclaim": (
        "worker killed",
        [("store/sqlite/queries/reclaim.sql", "  and lease_until <= :now\n", "  and :now > 0\n")],
    ),
    "duplicates": (
        "duplicate suppressed",
        [
            ("store/sqlite/admission.py", "    if owner:\n", "    if owner and not owner:\n"),
            ("store/sqlite/schema.sql", "create unique index operation_key", "create index operation_key"),
        ],
    ),
    "resource locks": (
        "one host, two jobs",
        [
            (CLAIM, "    if busy:\n", "    if busy and not busy:\n"),
            ("store/sqlite/resources.py", "    if taken != len(keys):\n", "    if taken > len(keys):\n"),
        ],
    ),
    "kill switch at the claim": ("kill switch", [(CLAIM, "set(claimant.accepts) - halted", "set(claimant.accepts)")]),
    "once at the reclaim": (
        "uncertain effect",
        [("store/sqlite/keeper.py", "policy.effect is Effect.ONCE", "policy.effect is None")],
    ),
    "crash budget": (
        "poison job",
        [
            ("store/sqlite/settle.py", "if spent.crashes >= limits.crashes_max or ", "if "),
            ("decide.py", "if attempt.crashes + 1 >= policy.limits.crashes_max or ", "if "),  # the worker's own bound
        ],
    ),
    "one audit record": (
        "audit",
        [("store/sqlite/resources.py", "    tx.note(Event.BLOCKED, row,", "    _ = (Event.BLOCKED, row) or dict(")],
    ),
}
"""What is taken out of the store -> the step that must notice (others may, too), and the edits that take it out."""


@pytest.mark.long
@pytest.mark.timeout(4 * SECONDS_MAX)
@pytest.mark.parametrize("name", TWINS)
def test_a_broken_store_fails_the_demo(tmp_path, name):
    """With one protection taken out of a copy of the store, the demo exits 1, and the step that is about it says so."""
    noticing, edits = TWINS[name]
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source)
    for file, old, new in edits:
        path = source / "benteng" / file
        assert old in path.read_text(), f"{file} has changed: mend the twin"
        path.write_text(path.read_text().replace(old, new))

    done = demo(tmp_path, source=source)

    failed = [step["title"] for step in json.loads(done.stdout)["steps"] if not step["ok"]]
    assert 1 == done.returncode
    assert noticing in failed
