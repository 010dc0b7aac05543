"""The gate and the app, end to end against the embedded store: what enters, and what a refusal leaves behind."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Annotated

import pytest
from msgspec import Meta

from benteng import keyring
from benteng.app import Benteng
from benteng.clock import system_clock
from benteng.contract import Artifact, Contract, Slug, Target
from benteng.envelope import TREE_JOBS_MAX, open_envelope
from benteng.errors import Busy, Conflict, KeyringError, PolicyError, QueueFull, Refused, StoreUnavailable
from benteng.evidence import ArtifactFact, ArtifactState, Control, ControlMode, ControlScope
from benteng.gate import FIRST_MAX, PART_MAX, JobSpec
from benteng.lifecycle import State
from benteng.policy import Effect, Tier
from benteng.store.open import open_auditor, open_operator
from benteng.store.records import Depth, Disposal, Query
from benteng.verdict import ADMIT, Hold, Refuse, Verdict
from tests.guard_cases import DIGEST

SECRET = "hunter2-canary"


class Patch(Contract):
    """A patch of one target with one artifact."""

    target: Target
    artifact: Artifact
    window: Slug = "now"


@pytest.fixture
def dsn(tmp_path):
    """Return the address of a fresh store."""
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def app(tmp_path, dsn):
    """Return an application in `dev` with keys and one HIGH type, whose store is fresh."""
    (tmp_path / "benteng.toml").write_text(f'dsn = "{dsn}"\n')
    (tmp_path / "benteng.toml").chmod(0o600)
    keyring.generate(tmp_path / ".benteng", origin=f"os:{os.getuid()}", now=system_clock())
    app = Benteng(config=tmp_path)

    @app.job
    def greet(name: str) -> str:
        return f"Halo, {name}"

    @app.job(
        "patch.apply@1",
        tier=Tier.HIGH,
        effect=Effect.ONCE,
        operation=("target", "artifact.sha256"),
        resources=("target",),
    )
    def apply(payload: Patch) -> None: ...

    with closing(app):
        yield app


@pytest.fixture
def operator(app, dsn):
    """Return an operator of the same store, in which the good artifact is approved."""
    app.gate  # noqa: B018 - opening the gate makes the store and applies the policies
    with closing(open_operator(dsn)) as operator:
        operator.register_artifact(ArtifactFact("agent-1.2", DIGEST, ArtifactState.APPROVED), "test")
        yield operator


def payload(target="web-7", digest=DIGEST, **more):
    """Return the fields of a payload."""
    return {"target": target, "artifact": {"id": "agent-1.2", "sha256": digest}} | more


def everything(operator):
    """Return the states of all jobs in the store."""
    return [line.state for line in operator.find(Query()).lines]


def log(dsn):
    """Return every byte of the audit log's bodies."""
    with closing(open_auditor(dsn)) as auditor:
        return b"\n".join(row.body or b"" for row in auditor.audit_page(0))


def test_a_low_job_enters(app):
    """The README's first job needs no key, no actor and no evidence."""
    receipt = app.enqueue("greet", {"name": "dunia"})

    assert receipt.state is State.READY
    assert not receipt.duplicate
    assert receipt.status().state is State.READY


def test_a_high_job_is_signed_by_the_producers_key(app, operator, tmp_path):
    """What is stored carries claims that the host's trust roots verify, with the job's own references."""
    receipt = app.enqueue("patch.apply", payload(), actor="svc:deployer", request_id="req-7")
    job = operator.show(receipt.job_id).job
    trust = keyring.load_trust(tmp_path / ".benteng" / "trust.toml")

    claims = open_envelope(job.envelope, trust, now_us=system_clock(), skew_us=0)

    assert (claims.job_id, claims.actor, claims.request_id) == (job.id, "svc:deployer", "req-7")
    assert claims.resources == ("target:web-7",)
    assert 0 < job.expires_at - system_clock() <= 86_400_000_000


def test_the_same_operation_gives_the_first_receipt(app, operator):
    """Asking again is harmless: one job."""
    first = app.enqueue("patch.apply", payload(), actor="svc:deployer")
    second = app.enqueue("patch.apply", payload(), actor="svc:deployer")

    assert second.job_id == first.job_id
    assert second.duplicate
    assert everything(operator) == [State.READY]


def test_the_same_operation_with_another_payload_is_a_conflict(app, operator):
    """What differs outside the identity is not silently deduplicated."""
    app.enqueue("patch.apply", payload(), actor="svc:deployer")

    with pytest.raises(Conflict):
        app.enqueue("patch.apply", payload(window="later"), actor="svc:deployer")

    assert everything(operator) == [State.READY]


@pytest.mark.parametrize(
    "spec, rule",
    [
        (JobSpec("greet", {"name": 5}), "P-type"),
        (JobSpec("greet", {"nome": "x"}), "P-unknown"),
        (JobSpec("greet", b'{"name":"a","name":"b"}'), "P-duplicate"),
        (JobSpec("greet", {"name": "a\0b"}), "P-text"),
        (JobSpec("greet", b"{]"), "P-json"),
        (JobSpec("greet", {"name": "x"}, priority=10), "G-priority"),
        (JobSpec("greet", {"name": "x"}, actor="a b"), "G-name"),
        (JobSpec("greet", {"name": "x"}, delay_seconds=-1), "G-delay"),
        (JobSpec("greet", {"name": "x"}, delay_seconds=float("nan")), "G-delay"),
        (JobSpec("greet", {"name": "x"}, run_at=datetime(2030, 1, 1)), "G-zone"),  # noqa: DTZ001 - that is the point
        (JobSpec("nothing", {}), "T-unknown"),
        (JobSpec("patch.apply", payload(), actor=""), "X-actor"),
        (JobSpec("patch.apply", payload(digest="cd" * 32), actor="svc:d"), "A-digest"),
        (JobSpec("patch.apply", payload(artifact={"id": "other", "sha256": DIGEST}), actor="svc:d"), "A-unknown"),
        (JobSpec("patch.apply", payload(command="rm"), actor="svc:d"), "P-unknown"),
    ],
    ids=[
        "type",
        "unknown-field",
        "duplicate-key",
        "nul",
        "no-json",
        "priority",
        "actor",
        "negative-delay",
        "nan-delay",
        "naive-time",
        "unknown-type",
        "no-actor",
        "other-digest",
        "unregistered",
        "command-field",
    ],
)
def test_what_is_refused_leaves_only_its_record(app, operator, dsn, spec, rule):
    """A refusal names its rule, stores no job, and its record holds no value of the payload."""
    before = log(dsn).count(b"\n")

    with pytest.raises(Refused) as caught:
        app.gate.enqueue(spec)

    assert caught.value.rule == rule
    assert everything(operator) == []
    assert log(dsn).count(b"\n") == before + 1
    assert rule.encode() in log(dsn)


def test_a_refused_value_is_shown_nowhere(app, operator, dsn):
    """Neither error nor log repeats what was refused."""
    with pytest.raises(Refused) as caught:
        app.enqueue("greet", {"name": "x", "extra": SECRET})

    assert SECRET not in str(caught.value)
    assert SECRET.encode() not in log(dsn)
    assert SECRET not in repr(operator.find(Query()))


def test_one_refused_spec_does_not_stop_the_others(app, operator):
    """A batch has one answer for each spec, in order."""
    specs = [JobSpec("greet", {"name": "a"}), JobSpec("greet", {"name": 1}), JobSpec("greet", {"name": "b"})]

    answers = app.enqueue_many(specs)

    assert [isinstance(answer, Refused) for answer in answers] == [False, True, False]
    assert len(everything(operator)) == 2


class Fleet(Contract):
    """A scan of many targets."""

    targets: Annotated[list[Target], Meta(min_length=1, max_length=100)]


@pytest.fixture
def scan(app):
    """Return specs of a MEDIUM type, which is signed since there is a key, by the numbers of their targets."""

    @app.job("fleet.scan@1", tier=Tier.MEDIUM, effect=Effect.REPEATABLE, operation=("targets",), resources=None)
    def scan(payload: Fleet) -> None: ...

    def specs(*counts):
        return [
            JobSpec("fleet.scan", {"targets": [f"web-{at}-{n}" for n in range(count)]}, "svc:deployer")
            for at, count in enumerate(counts)
        ]

    return specs


def test_jobs_of_one_call_share_their_signatures(app, scan, operator, tmp_path):
    """One signature for each 64 of a commit, and each job's envelope is opened alone, to its own claims."""
    answers = app.enqueue_many(scan(*[1] * (PART_MAX + 1)))
    jobs = [operator.show(answer.job_id).job for answer in answers]
    trust = keyring.load_trust(tmp_path / ".benteng" / "trust.toml")

    claims = [open_envelope(job.envelope, trust, now_us=system_clock(), skew_us=0) for job in jobs]

    assert [job.id for job in jobs] == [each.job_id for each in claims]
    trees = [-(-part // TREE_JOBS_MAX) for part in (FIRST_MAX, PART_MAX + 1 - FIRST_MAX)]
    assert sum(trees) == len({job.envelope[11:75] for job in jobs})


def test_what_cannot_be_signed_is_refused_alone(app, scan, operator, dsn):
    """More targets than an envelope takes: that job is refused by its rule, and those with it enter signed."""
    first, refused, last = app.enqueue_many(scan(1, 65, 1))

    assert isinstance(refused, Refused)
    assert "E-body" == refused.rule
    assert all(operator.show(each.job_id).job.envelope for each in (first, last))
    assert b"E-body" in log(dsn)


def greetings(count):
    """Return so many good specs."""
    return [JobSpec("greet", {"name": f"n{n}"}) for n in range(count)]


@pytest.mark.parametrize(
    "last, error",
    [
        (JobSpec("patch.apply", payload(), "svc:deployer"), KeyringError),
        (JobSpec("later", {}), PolicyError),
        (JobSpec("greet", {"name": "x"}, durability="D2"), PolicyError),
    ],
    ids=["no-key", "not-locked", "weak-ledger"],
)
def test_what_no_list_could_pass_is_said_before_anything_is_stored(app, operator, tmp_path, last, error):
    """However long the list is and wherever it stands in it."""
    (tmp_path / ".benteng" / "producer.key").unlink()
    app.job("later@1")(lambda: None)  # after the gate was opened: the lock file does not have it

    with pytest.raises(error):
        app.enqueue_many([*greetings(PART_MAX + 1), last])

    assert everything(operator) == []


def test_a_refusal_is_recorded_when_the_ledger_is_too_weak(app, operator, dsn):
    """The list is not let in, and what was refused for itself is on record."""
    with pytest.raises(PolicyError):
        app.enqueue_many([JobSpec("greet", {"nome": "x"}), JobSpec("greet", {"name": "x"}, durability="D2")])

    assert b"P-unknown" in log(dsn)
    assert everything(operator) == []


class Failing:
    """A producer whose ledger goes away in the middle of its n-th commit."""

    def __init__(self, producer, nth):
        self._producer = producer
        self._left = nth

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def admitting(self, admissions, refusals=()):
        """As the real one, but the n-th that has something to do is not stored."""
        asked = self._producer.admitting(admissions, refusals)
        self._left -= bool(admissions)
        return asked if self._left else Lost()


class Lost:
    """An admission whose answer never comes."""

    def begin(self):
        """Be on the way."""

    def wait(self):
        """Say that nobody knows."""
        raise StoreUnavailable("away")


def test_a_list_stops_at_the_commit_that_fails(app, operator):
    """The commits before it are in and the error says how many were answered; none after it is begun."""
    gate = dataclasses.replace(app.gate, producer=Failing(app.gate.producer, 2))

    with pytest.raises(StoreUnavailable) as caught:
        gate.enqueue_many(greetings(3 * PART_MAX))

    counted = operator.health().counts
    assert [f"the first {FIRST_MAX} of {3 * PART_MAX} jobs were answered, those of this commit were not"] == (
        caught.value.__notes__
    )
    assert FIRST_MAX == counted["ready"], counted


class Told:
    """A producer that tells what its ledger is asked, in order."""

    def __init__(self, producer):
        self._producer = producer
        self.said = []

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def evidence(self, questions):
        """As the real one."""
        self.said.append(("evidence", len(questions)))
        return self._producer.evidence(questions)

    def admitting(self, admissions, refusals=()):
        """As the real one."""
        asked = self._producer.admitting(admissions, refusals)
        begin = asked.begin
        asked.begin = lambda: (self.said.append(("admit", len(admissions))), begin())
        return asked


def test_evidence_is_asked_before_the_part_before_it_is_begun(app, scan):
    """An answer for the next part would wait behind that part; so the next one is judged while it is stored."""
    producer = Told(app.gate.producer)
    answers = dataclasses.replace(app.gate, producer=producer).enqueue_many(scan(*[1] * (2 * PART_MAX + 1)))

    assert 2 * PART_MAX + 1 == len(answers)
    assert [
        ("evidence", FIRST_MAX),
        ("evidence", PART_MAX),
        ("admit", FIRST_MAX),
        ("evidence", 1 + FIRST_MAX),
        ("admit", PART_MAX),
        ("admit", 1 + FIRST_MAX),
    ] == producer.said


def test_evidence_is_asked_for_those_that_need_it(app, scan):
    """Among LOW jobs the others get their own answers, and nobody another's."""
    producer = Told(app.gate.producer)
    specs = [*greetings(1), *scan(1), *greetings(1), *scan(1, 2)[1:]]

    answers = dataclasses.replace(app.gate, producer=producer).enqueue_many(specs)

    assert [Disposal.ADMITTED] * len(specs) == [answer.disposal for answer in answers]
    assert [("evidence", 2), ("admit", len(specs))] == producer.said


class Interrupting(Mapping):
    """A payload at which Ctrl-C comes."""

    def __iter__(self):
        raise KeyboardInterrupt

    def __len__(self):
        return 1

    def __getitem__(self, name):
        return name


def test_an_interrupted_list_leaves_nothing_on_the_way(app, operator):
    """Ctrl-C while a part is prepared: the part before it is in, that one is not, and the gate goes on."""
    with pytest.raises(KeyboardInterrupt):
        app.enqueue_many([*greetings(PART_MAX + 1), JobSpec("greet", Interrupting())])

    assert FIRST_MAX == operator.health().counts["ready"]
    assert app.enqueue("greet", {"name": "after"}).state is State.READY


def test_an_empty_list_has_no_answers(app):
    """Nothing in, nothing out."""
    assert app.enqueue_many([]) == []


def test_a_delay_is_measured_by_the_stores_clock(app, operator):
    """A delayed job is scheduled, and not before its time."""
    receipt = app.enqueue("greet", {"name": "x"}, delay_seconds=60)
    view = operator.show(receipt.job_id)

    assert view.state is State.SCHEDULED
    assert 59_000_000 < view.available_at - view.admitted_at < 61_000_000


def test_a_moment_with_a_zone_is_kept(app, operator):
    """`run_at` is a point in time, whatever zone it was written in."""
    moment = datetime.now(UTC) + timedelta(hours=1)

    receipt = app.enqueue("greet", {"name": "x"}, run_at=moment)

    assert abs(operator.show(receipt.job_id).available_at - moment.timestamp() * 1e6) < 10


def test_a_full_queue_tells_a_producer_to_slow_down(app, operator):
    """Beyond its depth an origin hears Busy by one call, and the same answer for each of many; it is a refusal too."""
    first = app.enqueue("greet", {"name": "ana"})
    operator.limit_depth(Depth(operator.show(first.job_id).job.origin, 1), "a reason")

    with pytest.raises(Busy, match="S-depth") as raised:
        app.enqueue("greet", {"name": "ben"})
    many = app.enqueue_many([JobSpec("greet", {"name": "eva"}, actor="") for _ in range(2)])

    assert isinstance(raised.value, Refused)
    assert [QueueFull, QueueFull] == [type(said) for said in many]
    assert app.cancel(first.job_id, "make room") is State.CANCELLED
    assert app.enqueue("greet", {"name": "ben"}).job_id


def test_a_halted_type_refuses_at_the_gate(app, operator):
    """The kill switch stops the entrance too."""
    operator.tighten(Control(ControlScope.TYPE, "patch.apply@1", ControlMode.HALT, "test"))

    with pytest.raises(Refused) as caught:
        app.enqueue("patch.apply", payload(), actor="svc:deployer")

    assert caught.value.rule == "C-halt"


def test_a_halted_low_type_is_refused_by_the_store_itself(app, operator):
    """LOW jobs ask for no evidence, and the switch holds all the same."""
    app.enqueue("greet", {"name": "before"})
    operator.tighten(Control(ControlScope.TYPE, "greet@1", ControlMode.HALT, "test"))

    with pytest.raises(Refused) as caught:
        app.enqueue("greet", {"name": "x"})

    assert caught.value.rule == "S-control"


def test_a_check_decides_with_its_evidence(app, operator):
    """Evidence is loaded at the gate; a check may hold, refuse, or admit."""
    facts: dict[str, Verdict] = {"answer": ADMIT}

    @app.evidence("host")
    def host(payload: Patch) -> object:
        return facts["answer"]

    @app.check("patch.apply", needs="host")
    def decide(payload, host):
        return host

    facts["answer"] = Refuse("host", "not in maintenance")
    with pytest.raises(Refused) as caught:
        app.enqueue("patch.apply", payload(), actor="svc:deployer")
    facts["answer"] = Hold("host", "ask first")
    held = app.enqueue("patch.apply", payload("web-8"), actor="svc:deployer")
    facts["answer"] = ADMIT
    ready = app.enqueue("patch.apply", payload("web-9"), actor="svc:deployer")

    assert caught.value.rule == "host"
    assert (held.state, ready.state) == (State.HELD, State.READY)


def test_evidence_that_fails_refuses(app, operator):
    """No evidence, no job."""

    @app.evidence("host")
    def host(payload: Patch) -> object:
        raise ConnectionError(SECRET)

    app.check("patch.apply", needs="host")(lambda _payload, _host: ADMIT)

    with pytest.raises(Refused) as caught:
        app.enqueue("patch.apply", payload(), actor="svc:deployer")

    assert caught.value.rule == "G-evidence"
    assert SECRET not in str(caught.value)


def test_without_a_key_a_high_job_is_not_enqueued(app, operator, tmp_path):
    """A job that must be signed and cannot be names the command that makes keys."""
    (tmp_path / ".benteng" / "producer.key").unlink()

    with pytest.raises(KeyringError, match="benteng init"):
        app.enqueue("patch.apply", payload(), actor="svc:deployer")

    assert everything(operator) == []


def test_dev_locks_and_applies_by_itself(app, operator, tmp_path, capsys):
    """The first use writes the lock file, fills the ledger and says so."""
    app.close()
    app.job("later@1")(lambda: None)

    app.enqueue("later")

    assert "later@1" in (tmp_path / "benteng.lock").read_text()
    assert "locked later@1: added" in capsys.readouterr().err
    assert "later@1" in [row.name for row in operator.types()]


def test_prod_refuses_what_is_not_built_yet(app, operator, tmp_path, monkeypatch):
    """In `prod` nothing above LOW runs without the parts of its tier, and they are named."""
    app.close()
    monkeypatch.setenv("BENTENG_ENVIRONMENT", "prod")
    monkeypatch.setenv("BENTENG_DSN", f"sqlite:///{tmp_path}/prod.db")

    with pytest.raises(PolicyError) as caught:
        app.enqueue("greet", {"name": "x"})

    assert caught.value.rule == "F-pending"
    assert "quorum" in str(caught.value)


def test_examine_records_nothing(app, operator, dsn):
    """A dry run gives the verdict and leaves no trace."""
    before = log(dsn)

    verdict = app.gate.examine(JobSpec("patch.apply", payload(digest="cd" * 32), actor="svc:d"))

    assert verdict.rule == "A-digest"
    assert before == log(dsn)
