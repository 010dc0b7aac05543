"""`benteng doctor`."""

from __future__ import annotations

import pytest

from benteng.audit import AuditRecord, Event
from benteng.clock import SECOND
from benteng.config import load
from benteng.ops.doctor import CHECKS, Finding, Level, clock_skew, examine, exit_for, run_findings
from benteng.ops.exits import Exit
from benteng.ops.runs import Runs, observed, quantile
from benteng.policy import LIMITS, Tier

SECRETIVE = """

@app.job("ship@1", tier=Tier.MEDIUM, effect=Effect.ONCE, operation=("account",), resources=None,
         secrets=("good", "mail", "none", "wide"))
def ship(payload: Bill) -> None: ...
"""


def levels(project, check):
    """The levels and texts of one check's findings."""
    found = project.call("doctor", "--json").document["findings"]
    return [(each["level"], each["text"]) for each in found if each["check"] == check]


@pytest.mark.parametrize(
    "found,code",
    [
        ([], Exit.OK),
        ([Level.OK, Level.NOTE], Exit.OK),
        ([Level.NOTE, Level.WARNING], Exit.WARNINGS),
        ([Level.WARNING, Level.ERROR], Exit.FAILED),
    ],
    ids=["none", "notes", "warnings", "errors"],
)
def test_the_worst_finding_decides(found, code):
    """0, 3 for warnings only, 1 for an error."""
    assert code is exit_for([Finding("x", level, "") for level in found])


def test_a_dev_installation_has_warnings_and_no_error(project):
    """What dev does without is said, and the exit code tells it from an error."""
    project.call("init", "--keys")
    project.call("policy", "lock")
    project.call("policy", "apply")

    ended = project.call("doctor", "--json")

    assert 3 == ended.code
    assert [] == [each for each in ended.document["findings"] if each["level"] == "error"]
    assert [("ok", "benteng.lock has 4 types, as the code has")] == levels(project, "lock")
    assert any("access *, *, *" in text for _, text in levels(project, "store"))
    assert any("high: there is no quorum" in text for _, text in levels(project, "floors"))


def test_what_only_warns_in_dev_is_an_error_in_prod(project):
    """Pending floors: prod refuses those tiers, and says so before a worker does."""
    project.call("policy", "lock")
    (project.root / "benteng.toml").write_text('app = "jobs:app"\nenvironment = "prod"\n')

    assert {"error"} == {level for level, _ in levels(project, "floors")}
    assert 1 == project.call("doctor").code


def test_missing_keys_are_an_error_only_if_something_must_be_signed(project):
    """HIGH types are signed."""
    unlocked = levels(project, "keys")
    project.call("policy", "lock")

    assert ["note"] == [level for level, _ in unlocked]
    assert ["error"] == [level for level, _ in levels(project, "keys")]


def test_a_key_that_others_can_read_is_an_error(project):
    """And the message says which file."""
    project.call("init", "--keys")
    (project.root / ".benteng/producer.key").chmod(0o644)

    ((level, text),) = levels(project, "keys")

    assert "error" == level
    assert "producer.key" in text


def test_code_that_differs_is_named(project):
    """Each differing type and field is a finding."""
    project.call("policy", "lock")
    jobs = project.root / "jobs.py"
    jobs.write_text(jobs.read_text().replace('"charge@1"', '"charge@2"'))

    assert [
        ("warning", "lock file -> code: charge@1: removed"),
        ("warning", "lock file -> code: charge@2: added (medium)"),
    ] == levels(project, "lock")


def test_one_broken_part_does_not_hide_the_others(project):
    """A lock file that cannot be read, code that cannot be imported, a store that is damaged: each is one error."""
    (project.root / "jobs.py").write_text("raise RuntimeError('boom')")
    store = project.root.parent / "state/benteng"
    store.mkdir(parents=True, mode=0o700)
    (store / "benteng.db").write_bytes(b"no database" * 100)
    (store / "benteng.db").chmod(0o600)

    ended = project.call("doctor", "--json")

    checks = {each["check"] for each in ended.document["findings"]}
    errors = {each["check"] for each in ended.document["findings"] if each["level"] == "error"}
    assert 1 == ended.code
    assert {"lock", "store", "runs"} <= errors
    assert {"python", "environment", "cells"} <= checks


def test_a_check_that_fails_is_a_finding(project, monkeypatch):
    """Never a traceback, never silence; and no words of the error, which may hold a value."""
    monkeypatch.setitem(CHECKS, "versions", lambda _: [][len("canary")])

    (found,) = [each for each in examine(load()) if each.check == "versions"]

    assert (Level.ERROR, "the check itself failed (IndexError)") == (found.level, found.text)


def test_a_password_in_the_environment_is_told_and_not_shown(project, monkeypatch):
    """Secrets belong into a file that only its owner reads."""
    monkeypatch.setenv("BENTENG_DSN", "postgresql://u:canary@db/x")

    ended = project.call("doctor", "--json")

    assert "canary" not in ended.out
    assert "the store's password stands in the environment" in ended.out


def test_each_secret_is_tried_and_none_is_shown(project):
    """A file is read as a worker would; what only the worker's unit has is no error here."""
    (project.root / "jobs.py").write_text((project.root / "jobs.py").read_text() + SECRETIVE)
    (project.root / "benteng.toml").write_text(
        f"""
        app = "jobs:app"
        [pool.default.secrets]
        good = {{file = "{project.root}/good"}}
        wide = {{file = "{project.root}/wide"}}
        mail = {{env = "MAIL_KEY"}}
        idle = {{env = "IDLE"}}
        """
    )
    for name, mode in (("good", 0o400), ("wide", 0o644)):
        (project.root / name).write_text("canary-secret")
        (project.root / name).chmod(mode)
    project.call("policy", "lock")

    found = levels(project, "secrets")

    assert [
        ("ok", "pool default: secret good can be read"),
        ("note", "pool default: secret mail: the worker's variable MAIL_KEY is not set here"),
        ("warning", "pool default: secret none: this pool does not say where it is"),
        ("warning", f"pool default: secret wide: {project.root}/wide is open to others"),
        ("note", "pool default: no type names the secret idle"),
    ] == found


def test_runs_and_silent_leases_are_observed():
    """The longest run by type, and how many leases ended without a word."""

    def record(event, fence, seconds):
        return AuditRecord(at_us=seconds * SECOND, event=event, job_id="j", type="greet@1", fence=fence)

    runs = observed(
        [
            record(Event.CLAIMED, 1, 0),
            record(Event.COMPLETED, 1, 4),
            record(Event.CLAIMED, 2, 10),
            record(Event.RECLAIMED, 2, 40),
            record(Event.CLAIMED, 3, 50),
            record(Event.COMPLETED, 3, 52),
            record(Event.COMPLETED, 9, 90),
        ]
    )

    assert {"greet@1": Runs([4.0, 2.0], [2])} == runs
    assert 4.0 == runs["greet@1"].longest


@pytest.mark.parametrize("count,expected", [(0, 0.0), (1, 1.0), (99, 99.0), (100, 99.0), (200, 198.0)])
def test_p99_is_a_run_that_was_seen(count, expected):
    """The nearest rank: no value that no run had, and one slow run of a hundred does not count."""
    assert expected == quantile([float(number) for number in range(1, count + 1)])


@pytest.mark.parametrize(
    "seconds,lost,expected",
    [
        ([6.0], [], []),
        ([6.1], [], [("leases", Level.NOTE)]),
        ([6.1], [7], [("leases", Level.WARNING), ("leases", Level.WARNING)]),
        ([280.0], [], [("runs", Level.WARNING), ("leases", Level.NOTE)]),
    ],
    ids=["spans-two", "too-short", "too-short-and-lost", "near-the-deadline"],
)
def test_a_lease_is_compared_with_the_runs(seconds, lost, expected):
    """Less than twice p99 is worth a note while workers extend their leases, and a warning once one was lost."""
    limits = LIMITS[Tier.LOW]

    found = list(run_findings("greet@1", Runs(seconds, lost), limits))

    assert expected == [(each.check, each.level) for each in found]


@pytest.mark.parametrize(
    "theirs,level",
    [
        (9.0, Level.OK),
        (14.0, Level.OK),
        (8.9, Level.WARNING),
        (15.1, Level.WARNING),
        (43.9, Level.WARNING),
        (44.1, Level.ERROR),
        (-20.1, Level.ERROR),
    ],
)
def test_only_skew_that_no_slow_answer_explains_is_told(theirs, level):
    """The ledger answered within the 4 s between 10 and 14: only what lies outside of them is skew."""
    found = clock_skew(10 * SECOND, int(theirs * SECOND), 14 * SECOND)

    assert level is found.level


def test_a_demand_that_the_ledger_cannot_meet_is_an_error(project):
    """SQLite is one node's disk: class D1. Every enqueue of this host would be refused."""
    (project.root / "benteng.toml").write_text('app = "jobs:app"\ndurability = "D2"\n')
    project.call("policy", "lock")

    assert ["error"] == [level for level, _ in levels(project, "durability")]


def test_what_a_pool_leaves_alone_is_said(project):
    """A restriction is a note, a slip of the pen in it is an error."""
    project.call("policy", "lock")
    names = sorted(project.call("policy", "show", "--json").document["types"])
    (project.root / "benteng.toml").write_text(
        f'app = "jobs:app"\n[pool.default]\ntypes = ["{names[0]}", "x@1"]\nstarts_per_minute = 5\n'
    )

    found = levels(project, "pools")

    assert ["error", "note", "note"] == [level for level, _ in found]
    assert "x@1" in found[0][1]
    assert names[1] in found[1][1]
    assert names[0] not in found[1][1]
    assert "5 jobs a minute" in found[2][1]
