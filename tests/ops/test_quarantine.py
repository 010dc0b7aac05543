"""`benteng quarantine` and `benteng replay`."""

from __future__ import annotations

import sys

import pytest

from benteng.decide import Disposition
from benteng.lifecycle import QuarantineReason


def events(project, job_id):
    """What the audit log says happened to a job."""
    return [record["event"] for record in project.call("audit", "show", job_id, "--jsonl").lines]


def test_the_list_is_of_quarantined_jobs_only(project):
    """By reason, without payloads."""
    project.enqueue("bill", account="waits", host="web-1")
    crashed = project.quarantined("greet@1", QuarantineReason.CRASHED, name="canary")
    project.quarantined("greet@1", QuarantineReason.PERMANENT, name="b")

    ended = project.call("quarantine", "list", "--reason", "crashed", "--json")

    assert ("benteng.quarantine/1", [crashed]) == (ended.document["schema"], [j["job"] for j in ended.document["jobs"]])
    assert "canary" not in ended.out
    assert 2 == len(project.call("quarantine", "list", "--jsonl").lines)


def test_show_is_for_quarantined_jobs(project):
    """With reason, rule and error; another job is exit 4 and points at `why`."""
    job_id = project.quarantined("greet@1", QuarantineReason.PERMANENT, name="b")
    other = project.enqueue("greet", name="c")

    document = project.call("quarantine", "show", job_id, "--json").document

    assert ("permanent", "T-test", "boom") == (document["reason"], document["rule"], document["error"])
    assert 4 == project.call("quarantine", "show", other).code


def test_a_discarded_job_stays_on_record(project):
    """A state, never a delete."""
    job_id = project.quarantined("greet@1", QuarantineReason.PERMANENT, name="b")

    ended = project.call("quarantine", "discard", job_id, "--reason", "hopeless", "--json")

    assert (0, "discarded") == (ended.code, project.state(job_id))
    assert "discarded" in events(project, job_id)
    assert 4 == project.call("quarantine", "discard", job_id, "--reason", "again").code


def test_a_classification_is_a_persons_word(project):
    """It stands beside the reason, and cannot make a job uncertain."""
    job_id = project.quarantined("greet@1", QuarantineReason.PERMANENT, name="b")

    done = project.call("quarantine", "classify", job_id, "suspicious", "--note", "odd")

    assert (0, "suspicious") == (done.code, project.call("jobs", "show", job_id, "--json").document["classified"])
    assert 2 == project.call("quarantine", "classify", job_id, "uncertain", "--note", "x").code
    assert 2 == project.call("quarantine", "classify", job_id, "permanent").code


def test_an_uncertain_job_is_resolved_and_not_discarded_or_replayed(project):
    """Only the word of a person ends it, either way."""
    job_id = project.quarantined("charge@1", QuarantineReason.UNCERTAIN, account="a", host="web-1")

    discarded = project.call("quarantine", "discard", job_id, "--reason", "x")
    replayed = project.call("replay", job_id, "--reason", "x")
    unsaid = project.call("quarantine", "resolve", job_id, "--reason", "x")
    both = project.call("quarantine", "resolve", job_id, "--happened", "--not-happened", "--reason", "x")
    resolved = project.call("quarantine", "resolve", job_id, "--happened", "--reason", "seen on the statement")

    assert (20, 20, 2, 2, 0) == tuple(ended.code for ended in (discarded, replayed, unsaid, both, resolved))
    assert "[S-uncertain]" in discarded.talk
    assert "completed" == project.state(job_id)


def test_what_did_not_happen_may_be_sent_again(project):
    """Its operation is free."""
    job_id = project.quarantined("charge@1", QuarantineReason.UNCERTAIN, account="a", host="web-1")

    project.call("quarantine", "resolve", job_id, "--not-happened", "--reason", "not on the statement")

    assert "discarded" == project.state(job_id)
    assert job_id != project.enqueue("charge", account="a", host="web-1")


def test_a_replayed_job_comes_back_with_its_history(project):
    """One generation on, a new attempt budget, the old records still there; and it can start."""
    job_id = project.quarantined("bill@1", QuarantineReason.PERMANENT, account="a", host="web-1")

    ended = project.call("replay", job_id, "--reason", "vendor is back", "--json")

    assert (0, "ready", 1) == (ended.code, ended.document["state"], ended.document["generation"])
    assert ["quarantined", "replayed"] == events(project, job_id)[-2:]
    assert (job_id, 1) == ((grant := project.claim("bill@1")).job.id, grant.attempt.number)


def test_what_is_refused_again_stays(project):
    """The rule is named, exit 20; today's checks count, not those of then."""
    job_id = project.quarantined("bill@1", QuarantineReason.PERMANENT, account="a", host="web-1")
    jobs = project.root / "jobs.py"
    jobs.write_text(jobs.read_text().replace('== "closed"', '== "a"'))

    ended = project.call("replay", job_id, "--reason", "vendor is back")

    assert 20 == ended.code
    assert "refused again: the account is closed [U-closed]" in ended.talk
    assert "quarantined" == project.state(job_id)


@pytest.mark.parametrize(
    "change,rule",
    [
        (lambda text: text.replace("account: Slug", "account: Slug\n    more: Slug"), "P-missing"),
        (lambda text: text.replace('"bill@1"', '"bill@2"'), "T-unknown"),
        (lambda _: "raise RuntimeError('canary')", "N-import"),
        (lambda _: "import os; os._exit(0)", "G-broken"),
        (lambda _: "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "N-child"),
        (lambda _: 'import os; os.write(3, b\'{"verdict":"admit"} and more\'); os._exit(0)', "G-broken"),
        (lambda _: 'import os; os.write(3, b\'{"verdict":"perhaps"}\'); os._exit(0)', "G-broken"),
    ],
    ids=["contract", "no-type", "raises", "silent", "killed", "forged", "unknown"],
)
def test_code_that_cannot_judge_refuses(project, change, rule):
    """Whatever the child does short of a clean verdict: refused, still in quarantine."""
    job_id = project.quarantined("bill@1", QuarantineReason.PERMANENT, account="a", host="web-1")
    jobs = project.root / "jobs.py"
    jobs.write_text(change(jobs.read_text()))

    ended = project.call("replay", job_id, "--reason", "x")

    assert (20, "quarantined") == (ended.code, project.state(job_id))
    assert rule in ended.talk


def test_the_operators_process_does_not_import_the_code(project, monkeypatch):
    """It holds a credential; the child that imports the code has none."""
    job_id = project.quarantined("bill@1", QuarantineReason.PERMANENT, account="a", host="web-1")
    monkeypatch.setenv("BENTENG_DSN", project.dsn)
    jobs = project.root / "jobs.py"
    seen = project.root / "seen"
    jobs.write_text(f"import os\nopen({str(seen)!r}, 'a').write(repr(dict(os.environ)))\n" + jobs.read_text())

    project.call("replay", job_id, "--reason", "x")

    assert "jobs" not in sys.modules
    assert "BENTENG" not in seen.read_text()
    assert project.dsn not in seen.read_text()


def test_a_suspicious_job_is_classified_before_it_comes_back(project):
    """A person has said that it is not hostile."""
    job_id = project.quarantined("bill@1", QuarantineReason.SUSPICIOUS, account="a", host="web-1")

    refused = project.call("replay", job_id, "--reason", "x")
    project.call("quarantine", "classify", job_id, "permanent", "--note", "a test of ours")
    admitted = project.call("replay", job_id, "--reason", "x")

    assert (20, 0) == (refused.code, admitted.code)


def test_a_halted_type_is_not_replayed_and_a_held_one_waits(project):
    """Switches are judged as they are today."""
    job_id = project.quarantined("bill@1", QuarantineReason.PERMANENT, account="a", host="web-1")

    project.call("kill", "bill", "--reason", "x")
    halted = project.call("replay", job_id, "--reason", "x")
    project.call("kill", "--open", "bill", "--reason", "x")
    project.call("kill", "bill", "--mode", "hold", "--reason", "x")
    held = project.call("replay", job_id, "--reason", "x")

    assert (23, 22) == (halted.code, held.code)
    assert "held" == project.state(job_id)


def test_high_needs_an_action(project):
    """Replaying needs another person's vote, which this version does not have: exit 26, also in dev."""
    assert 0 == project.call("init", "--keys").code
    job_id = project.quarantined("patch@1", QuarantineReason.PERMANENT, host="web-1")

    replayed = project.call("replay", job_id, "--reason", "x")
    freed = project.call("quarantine", "discard", job_id, "--free", "--reason", "x")

    assert (26, 26) == (replayed.code, freed.code)
    assert "needs an Action" in replayed.talk
    assert "quarantined" == project.state(job_id)


def test_a_signed_job_keeps_its_signature(project):
    """Signed once, judged again: the envelope still verifies after a replay."""
    assert 0 == project.call("init", "--keys").code
    job_id = project.quarantined("bill@1", QuarantineReason.PERMANENT, account="a", host="web-1")
    assert project.call("jobs", "show", job_id, "--json").document["signed"]

    ended = project.call("replay", job_id, "--reason", "x")

    assert 0 == ended.code
    assert project.call("jobs", "show", job_id, "--json").document["signed"]


def test_a_signed_job_whose_key_is_revoked_stays(project):
    """Trust is judged as it is today."""
    assert 0 == project.call("init", "--keys").code
    job_id = project.quarantined("bill@1", QuarantineReason.PERMANENT, account="a", host="web-1")
    trust = project.root / ".benteng/trust.toml"
    trust.write_text(trust.read_text().replace("revoked = false", "revoked = true"))

    ended = project.call("replay", job_id, "--reason", "x")

    assert (20, "quarantined") == (ended.code, project.state(job_id))
    assert "E-revoked" in ended.talk


def test_a_job_that_is_not_in_quarantine_is_not_replayed(project):
    """Exit 4, with the way to look."""
    job_id = project.enqueue("greet", name="a")
    project.settle(project.claim("greet@1"), Disposition.COMPLETE, result=b"null")

    assert 4 == project.call("replay", job_id, "--reason", "x").code
