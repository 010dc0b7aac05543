"""`benteng jobs` and `benteng kill`."""

from __future__ import annotations

import os

import pytest

from benteng.decide import Disposition
from benteng.lifecycle import QuarantineReason

CANARY = "canary-name"


def test_a_list_goes_by_pages_and_never_shows_a_payload(project):
    """Newest first; the cursor leads on; values that the contract does not mark are hidden."""
    ids = [project.enqueue("greet", name=f"{CANARY}{n}") for n in range(3)]

    first = project.call("jobs", "list", "--limit", "2", "--json").document
    rest = project.call("jobs", "list", "--limit", "2", "--after", first["next"], "--json").document

    assert ids[::-1] == [job["job"] for job in first["jobs"] + rest["jobs"]]
    assert ("benteng.jobs/1", "") == (first["schema"], rest["next"])
    assert CANARY not in project.call("jobs", "list", "--jsonl").out


@pytest.mark.parametrize(
    "words,matching",
    [
        (["--state", "ready"], 2),
        (["--state", "running", "--state", "held"], 0),
        (["--type", "bill@1"], 1),
        (["--actor", "svc:test"], 2),
        (["--actor", "svc:other"], 0),
        (["--resource", "target:web-1"], 1),
    ],
    ids=lambda value: "" if isinstance(value, int) else " ".join(value),
)
def test_filters_are_the_stores(project, words, matching):
    """Each filter narrows the list."""
    project.enqueue("greet", name="a")
    project.enqueue("bill", account="a", host="web-1")

    assert matching == len(project.call("jobs", "list", "--json", *words).document["jobs"])


def test_a_job_is_shown_without_payload_token_and_envelope(project):
    """Also while it runs, when the lease has a secret."""
    job_id = project.enqueue("greet", name=CANARY)
    grant = project.claim("greet@1")

    ended = project.call("jobs", "show", job_id, "--json")

    assert "running" == ended.document["state"]
    assert CANARY not in ended.out
    assert grant.lease.token not in ended.out
    assert grant.lease.token not in project.call("jobs", "show", job_id).out


@pytest.mark.parametrize(
    "words",
    [["jobs", "show"], ["why"], ["quarantine", "show"], ["audit", "show"], ["jobs", "watch"]],
    ids=" ".join,
)
def test_an_unknown_job_exits_4(project, words):
    """Not found is not a fault."""
    assert 4 == project.call(*words, "0190b8e0-0000-7000-8000-000000000000").code


def test_cancelling_needs_a_reason_and_says_what_became_of_each(project):
    """A waiting job is cancelled, a running one is asked, an unknown one is exit 4."""
    running = project.enqueue("greet", name="a")
    project.claim("greet@1")
    waiting = project.enqueue("greet", name="b")

    assert 2 == project.call("jobs", "cancel", waiting).code
    assert 2 == project.call("jobs", "cancel", waiting, "--reason", " ").code
    done = project.call("jobs", "cancel", waiting, running, "--reason", "stop", "--json")

    assert {waiting: "cancelled", running: "running"} == {each["job"]: each["state"] for each in done.document["jobs"]}
    assert 4 == project.call("jobs", "cancel", waiting, "--reason", "again").code


def test_watch_ends_with_the_job(project):
    """The last line is the end."""
    job_id = project.quarantined("greet@1", QuarantineReason.PERMANENT, name="a")

    assert ["quarantined"] == [line["state"] for line in project.call("jobs", "watch", job_id, "--jsonl").lines]


def test_watch_gives_up_in_time(project):
    """A job that stays ready ends the watch with 27."""
    ended = project.call("jobs", "watch", project.enqueue("greet", name="a"), "--timeout", "0.1", "--jsonl")

    assert 27 == ended.code
    assert ["benteng.job/1", "benteng.error/1"] == [line["schema"] for line in ended.lines]


def test_after_kill_no_job_starts(project):
    """When the command has returned the switch is closed; opened again the job starts."""
    job_id = project.enqueue("greet", name="a")

    closed = project.call("kill", "greet", "--reason", "bad deploy", "--json")
    stopped = project.claim("greet@1")
    opened = project.call("kill", "--open", "greet", "--reason", "mended")
    started = project.claim("greet@1")

    assert (0, 0) == (closed.code, opened.code)
    assert [("type", "greet@1", "halt")] == [(c["scope"], c["name"], c["mode"]) for c in closed.document["controls"]]
    assert stopped is None
    assert job_id == started.job.id


def test_the_switches_are_listed_with_their_reasons(project):
    """Who finds a closed switch learns why."""
    project.enqueue("greet", name="a")
    project.call("kill", "--pool", "default", "--mode", "hold", "--reason", "one")
    project.call("kill", "--origin", "os:1", "--reason", "two")

    listed = project.call("kill", "--list", "--json").document["controls"]

    assert {("pool", "default", "hold", "one"), ("origin", "os:1", "halt", "two")} == {
        tuple(c.values()) for c in listed
    }


@pytest.mark.parametrize(
    "words,code",
    [
        (["gret", "--reason", "x"], 4),
        (["--pool", "nothing", "--reason", "x"], 4),
        (["--open", "greet", "--reason", "x"], 4),
        (["greet"], 2),
        (["--reason", "x"], 2),
        (["greet", "--pool", "default", "--reason", "x"], 2),
    ],
    ids=["typo", "no-pool", "not-closed", "no-reason", "no-name", "two-names"],
)
def test_a_switch_that_would_stop_nothing_is_refused(project, words, code):
    """A mistyped name never looks like a closed switch."""
    project.enqueue("greet", name="a")

    assert code == project.call("kill", *words).code
    assert [] == project.call("kill", "--list", "--json").document["controls"]


def test_a_full_origin_is_told_to_come_again(project):
    """Beyond the depth that somebody set `enqueue` ends with 75 and names the rule; with room again it goes on."""
    origin = f"os:{os.getuid()}"
    first = project.enqueue("greet", name="a")
    set_to = project.call("depth", origin, 1, "--reason", "careful", "--json").document

    full = project.call("enqueue", "greet", "name=b")
    deeper = project.call("depth", origin, 100_000, "--reason", "enough", "--json").document

    assert [{"origin": origin, "jobs_max": 1}] == set_to["depths"]
    assert (75, "") == (full.code, full.out)
    assert "S-depth" in full.talk
    assert ([], 100_000) == (deeper["depths"], deeper["default"])
    assert 0 == project.call("enqueue", "greet", "name=b").code
    assert first


@pytest.mark.parametrize(
    "words,code",
    [
        ((), 0),
        (("os:1",), 2),
        (("os:1", "7"), 2),
        (("os:1", "0", "--reason", "x"), 20),
        (("os:1", "10000001", "--reason", "x"), 20),
        (("os:1", "many", "--reason", "x"), 2),
    ],
    ids=["list", "no-number", "no-reason", "none", "too-many", "no-number-at-all"],
)
def test_a_depth_is_a_number_with_a_reason(project, words, code):
    """What is no depth changes nothing."""
    assert code == project.call("depth", *words).code
    assert [] == project.call("depth", "--json").document["depths"]


def test_kill_tells_how_many_jobs_go_on(project):
    """The switch stops starts, not what runs."""
    project.enqueue("greet", name="a")
    project.claim("greet@1")

    assert "1 running job of greet@1 may go on" in project.call("kill", "greet", "--reason", "x").talk


def test_a_held_job_is_released_with_a_reason(project):
    """Below HIGH one person agrees; the job is then ready, and its history says why."""
    project.enqueue("greet@1", name="first")
    project.call("kill", "greet@1", "--mode", "hold", "--reason", "look first")
    job = project.enqueue("greet@1", name="second")
    held = project.call("jobs", "release", job, "--reason", "agreed")
    project.call("kill", "--open", "greet@1", "--reason", "looked")

    done = project.call("jobs", "release", job, "--reason", "agreed", "--json")
    again = project.call("jobs", "release", job, "--reason", "agreed")

    assert 23 == held.code
    assert "S-control" in held.talk
    assert 0 == done.code
    assert [{"job": job, "state": "ready"}] == done.document["jobs"]
    assert 4 == again.code


@pytest.mark.parametrize("words", [("jobs", "release"), ("quarantine", "resolve", "--happened"), ("replay",)])
def test_at_high_nobody_acts_alone(project, words):
    """Releasing, resolving and replaying a HIGH job answer that they need an Action."""
    project.call("init", "--keys")
    job = project.enqueue("patch@1", host="web-7")
    if words[0] != "jobs":
        grant = project.claim("patch@1")
        project.settle(grant, Disposition.QUARANTINE, reason=QuarantineReason.UNCERTAIN)

    done = project.call(*words, job, "--reason", "alone")

    assert 26 == done.code
    assert "needs an Action" in done.talk
