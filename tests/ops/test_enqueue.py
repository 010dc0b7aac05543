"""`benteng enqueue`."""

from __future__ import annotations

import json

import pytest

from benteng.lifecycle import State


def test_a_job_enters_and_its_id_is_data(project):
    """Stdout is the receipt and nothing else; what dev does by itself is talk."""
    ended = project.run("enqueue", "greet", "name=dunia", "times=2", "loud=true", "--request-id", "req-1")

    job_id, state = ended.out.split()
    assert (0, "ready") == (ended.code, state)
    assert "dev: locked greet@1" in ended.talk
    assert b'{"loud":true,"name":"dunia","times":2}' == project.claim("greet@1").job.payload
    assert [job_id] == [
        j["job"] for j in project.call("jobs", "list", "--request-id", "req-1", "--json").document["jobs"]
    ]


def test_the_receipt_as_json(project):
    """One document with a schema."""
    ended = project.call("enqueue", "greet", "name=x", "--receipt-json")

    assert {"schema", "job", "state", "duplicate"} == ended.document.keys()
    assert ("benteng.receipt/1", False) == (ended.document["schema"], ended.document["duplicate"])


@pytest.mark.parametrize("wanted,code,jobs", [("D1", 0, 1), ("D2", 78, 0)])
def test_a_demanded_durability_is_met_or_nothing_is_stored(project, wanted, code, jobs):
    """A file on one disk is of class D1."""
    ended = project.call("enqueue", "greet", "name=x", "--durability", wanted)

    assert code == ended.code, ended.talk
    assert ("S-durability" in ended.talk) == (jobs == 0)
    assert jobs == len(project.call("jobs", "list", "--json").document["jobs"])


@pytest.mark.parametrize("by_file", [True, False])
def test_a_payload_as_json_from_a_file_or_stdin(project, by_file):
    """Never from the command line itself, which every process of the host may read."""
    data = json.dumps({"name": "dunia"}).encode()
    (project.root / "payload.json").write_bytes(data)

    ended = project.call("enqueue", "greet", "--json", "@payload.json" if by_file else "-", stdin=data)

    assert 0 == ended.code
    assert b'"name":"dunia"' in project.claim("greet@1").job.payload


@pytest.mark.parametrize(
    "words",
    [
        ["greet", "--json", '{"name": "x"}'],
        ["greet", "name=x", "--json", "-"],
        ["greet", "name"],
        ["greet", "name=x", "name=y"],
    ],
    ids=["inline", "twice", "no-value", "field-twice"],
)
def test_a_wrong_payload_option_is_a_usage_error(project, words):
    """Exit 2; nothing was sent."""
    assert 2 == project.call("enqueue", *words).code
    assert [] == project.call("jobs", "list", "--json").document["jobs"]


@pytest.mark.parametrize(
    "words,rule",
    [
        (["greet", "nam=dunia"], "P-unknown"),
        (["greet", "name=x", "times=many"], "P-type"),
        (["nothing", "x=y"], "T-unknown"),
        (["bill", "account=a", "host=web-1"], "X-actor"),
        (["bill", "account=closed", "host=web-1", "--actor", "svc:x"], "U-closed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refused_job_says_the_rule_and_exits_20(project, words, rule):
    """The rule is in the message and in the audit log; no value of the payload is."""
    ended = project.call("enqueue", *words)

    assert (20, "") == (ended.code, ended.out)
    assert f"[{rule}]" in ended.talk
    records = project.call("audit", "tail", "--jsonl").lines
    assert [rule] == [record["rule"] for record in records if record["event"] == "refused"]


def test_the_same_operation_again_exits_21_and_another_payload_25(project):
    """A duplicate gets the first receipt; a conflict names the rule."""
    words = ["enqueue", "bill", "account=a", "host=web-1", "--actor", "svc:x"]

    first, again = project.call(*words), project.call(*words)
    other = project.call("enqueue", "bill", "account=a", "host=web-2", "--actor", "svc:x")

    assert (0, 21, 25) == (first.code, again.code, other.code)
    assert again.out.split() == [first.out.split()[0], "ready", "duplicate"]
    assert "[S-conflict]" in other.talk


@pytest.mark.parametrize(
    "mode,code,state", [("halt", 23, None), ("hold", 22, State.HELD), ("divert", 23, State.QUARANTINED)]
)
def test_a_closed_switch_has_its_codes(project, mode, code, state):
    """Halted: refused. Held: waits for agreement. Diverted: in quarantine."""
    project.enqueue("greet", name="first")
    project.call("kill", "greet", "--mode", mode, "--reason", "test")

    dry = project.call("enqueue", "greet", "name=x", "--dry-run")
    real = project.call("enqueue", "greet", "name=x")

    assert (code, code) == (dry.code, real.code)
    assert state == (real.out.split()[1] if real.out else None)


def test_a_dry_run_asks_every_guard_and_leaves_nothing(project):
    """All verdicts, not only the first; no job, no record of a refusal."""
    ended = project.call(
        "enqueue", "bill", "account=closed", "host=web-1", "--dry-run", "--actor", "svc:x", "--receipt-json"
    )

    verdicts = {each["guard"]: (each["verdict"], each["rule"]) for each in ended.document["verdicts"]}
    assert 20 == ended.code
    assert ("refuse", "U-closed") == verdicts["semantic"]
    assert {"contract", "schema", "security", "integrity", "approval", "access", "control"} < verdicts.keys()
    assert [] == project.call("jobs", "list", "--json").document["jobs"]
    assert "refused" not in [r["event"] for r in project.call("audit", "tail", "--jsonl").lines]


def test_a_dry_run_tells_a_conflict(project):
    """What the store would answer to the operation is part of it."""
    project.enqueue("bill", account="a", host="web-1")

    same = project.call("enqueue", "bill", "account=a", "host=web-1", "--dry-run", "--actor", "svc:test")
    other = project.call("enqueue", "bill", "account=a", "host=web-2", "--dry-run", "--actor", "svc:test")

    assert (0, 25) == (same.code, other.code)


def test_waiting_too_long_exits_27(project):
    """The job stays; the message says how to look at it."""
    ended = project.call("enqueue", "greet", "name=x", "--wait", "0.2")

    assert 27 == ended.code
    assert "benteng why " in ended.talk
    assert 1 == len(project.call("jobs", "list", "--json").document["jobs"])


def test_an_application_that_is_not_there_is_a_clear_refusal(project):
    """Exit 78: configuration."""
    ended = project.call("enqueue", "greet", "name=x", "--app", "nothing:app")

    assert (78, "") == (ended.code, ended.out)
    assert "[N-app]" in ended.talk
