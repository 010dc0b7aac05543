"""How attempts end: what handlers return and raise, through real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.waiting import until


def test_a_low_job_runs_in_a_wide_cell(shared):
    """A function is called with the fields of its payload, and its result is kept."""
    job = shared.enqueue("greet@1", name="dunia")

    status = shared.ended(job)

    assert ("completed", b'"Halo, dunia"') == (status.state, status.result)


def test_an_async_job_runs_on_the_loop(shared):
    """`async def` handlers share one event loop."""
    jobs = shared.enqueue_many("agreet@1", [{"name": f"n{n}"} for n in range(8)])

    results = {shared.ended(job).result for job in jobs}

    assert {f'"Halo, n{n}"'.encode() for n in range(8)} == results


def test_the_directory_of_a_low_attempt_goes_when_it_ends(shared):
    """The cell lives on, and what a handler left in `ctx.scratch` does not."""
    directory = Path(json.loads(shared.ended(shared.enqueue("notes@1", name="a")).result))

    until(lambda: not directory.exists())
    assert directory.parent.exists()


def test_a_medium_cell_is_used_again_and_each_attempt_has_an_empty_home(shared):
    """The process is the same; working directory and HOME are one directory, in which nothing of another is left."""
    first, second = (json.loads(shared.ended(shared.enqueue("medium@1", name=name)).result) for name in ("a", "b"))

    assert first["pid"] == second["pid"]
    assert first["cwd"] == first["home"]
    assert second["cwd"] == second["home"]
    assert [[], []] == [first["found"], second["found"]]
    assert second["fence"] > first["fence"]


def test_a_high_cell_is_used_once(shared):
    """Each HIGH job has a process of its own."""
    jobs = [shared.enqueue("high@1", name=name, host="web-1") for name in ("a", "b")]

    pids = {json.loads(shared.ended(job).result)["pid"] for job in jobs}

    assert 2 == len(pids)


@pytest.mark.parametrize(
    "name,state,reason,attempts",
    [
        ("plain", "completed", None, 1),
        ("retry", "quarantined", "exhausted", 2),
        ("permanent", "quarantined", "permanent", 1),
        ("suspicious", "quarantined", "suspicious", 1),
        ("snooze", "quarantined", "exhausted", 2),
        ("exit", "quarantined", "exhausted", 2),
    ],
)
def test_how_a_handler_ends_is_how_its_job_ends(shared, name, state, reason, attempts):
    """Only what is transient runs again, within its bounds; SystemExit is one more unknown exception."""
    job = shared.enqueue("says@1", name=name)

    status = shared.ended(job)

    assert (state, reason) == (status.state, status.reason)
    assert attempts == shared.count(f"says {name} ")


@pytest.mark.parametrize("name", ["nan", "large", "object"])
def test_finished_work_is_not_lost_by_its_result(shared, name):
    """A result that cannot be written as JSON completes all the same, with a marker (cases.md C87)."""
    status = shared.ended(shared.enqueue("says@1", name=name))

    assert "completed" == status.state
    assert ["unserialisable"] == list(json.loads(status.result))


def test_secrets_do_not_leave_the_attempt(shared):
    """What looks like a secret is in no error, event or audit record."""
    job = shared.enqueue("says@1", name="secret")

    status = shared.ended(job)

    said = json.dumps(shared.workers[0].events) + status.error + shared.audit().decode()
    assert "ValueError" in status.error
    assert "sk_live_1234567890" not in said
    assert "hunter2hunter2" not in said


def test_the_cell_judges_again(shared):
    """A check that refuses in the cell keeps the handler from being called."""
    job = shared.enqueue("quarrel@1", name="later")

    status = shared.ended(job)

    assert ("quarantined", "refused") == (status.state, status.reason)
    assert 0 == shared.count("quarrel later")
    assert 0 == shared.show(job).starts


def test_a_crash_while_judging_is_handed_back_and_ends(shared):
    """Judging never spends an attempt, but code that always crashes there comes to an end."""
    job = shared.enqueue("quarrel@1", name="crash")

    status = shared.ended(job)

    view = shared.show(job)
    assert "quarantined" == status.state
    assert 0 == shared.count("quarrel crash")
    assert view.handbacks >= 1


def test_a_successor_is_added_by_the_completing_commit(shared):
    """It speaks for the same actor and runs like any other job."""
    job = shared.enqueue("parent@1", name="listed")
    shared.ended(job)

    shared.effect("greet successor")

    successor = next(
        line for line in shared.jobs() if line.type == "greet@1" and line.actor == "svc:test" and line.job_id != job
    )
    assert "svc:test" == successor.actor


def test_an_unlisted_successor_is_refused(shared):
    """The handler gets an error; nothing is added."""
    status = shared.ended(shared.enqueue("parent@1", name="unlisted"))

    assert "quarantined" == status.state
    assert "W-successor" in status.error
