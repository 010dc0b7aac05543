"""The facts of a claim are asked once for all jobs of which they are the same, and each job gets its own."""

from __future__ import annotations

import pytest

from benteng.evidence import ArtifactFact, ArtifactState, ControlMode, ControlScope
from benteng.job import ArtifactRef, Refs, sha256_hex
from benteng.testing.ledger import LOW, MEDIUM
from tests.support import waiting

DIGEST = sha256_hex(b"")
ACCESS = """
  delete from benteng.access;
  delete from benteng.speaks where actor = '*';
  insert into benteng.access values ('svc:one', '*', 'host:a'), ('svc:two', '*', 'host:a'), ('svc:two', '*', 'host:b');
  insert into benteng.speaks values ('*', 'svc:one', '*')
"""
CALLS = "select calls from pg_stat_user_functions where funcid = 'benteng.facts'::regproc and calls > 0"
APPROVED = {"a-1": ArtifactState.APPROVED}
EXPECTED = {
    "plain": ("", LOW.sha256, True, (), APPROVED),
    "type": (MEDIUM.name, MEDIUM.sha256, True, (), APPROVED),
    "actor": ("", LOW.sha256, False, (), APPROVED),
    "origin": ("p_other", LOW.sha256, True, (), APPROVED),
    "artifact": ("", LOW.sha256, True, (), {"a-2": ArtifactState.REVOKED}),
    "target": ("", LOW.sha256, True, ("host:b",), APPROVED),
}


def test_each_job_of_a_claim_has_facts_of_its_own(bench, ledger, owner):
    """Two of each, claimed together: jobs that differ in type, actor, origin, artifact or target alone."""
    for name, state in (("a-1", ArtifactState.APPROVED), ("a-2", ArtifactState.REVOKED)):
        bench.operator.register_artifact(ArtifactFact(name, DIGEST, state), "a reason")
    one, two = (Refs(artifacts=(ArtifactRef(name, DIGEST),), targets=("host:a",)) for name in ("a-1", "a-2"))
    kinds = {
        "plain": (LOW, "svc:one", one),
        "type": (MEDIUM, "svc:one", one),
        "actor": (LOW, "svc:two", one),
        "origin": (LOW, "svc:one", one),
        "artifact": (LOW, "svc:one", two),
        "target": (LOW, "svc:one", Refs(artifacts=one.artifacts, targets=("host:b",))),
    }
    jobs = {
        bench.admitted(policy, actor=actor, refs=refs).id: kind
        for _ in range(2)
        for kind, (policy, actor, refs) in kinds.items()
    }
    for job, kind in jobs.items():
        if kind == "origin":
            ledger.give_away(job, "p_other")
    owner.execute(ACCESS)
    bench.tighten(ControlMode.HOLD, MEDIUM.name)
    bench.tighten(ControlMode.HOLD, "p_other", ControlScope.ORIGIN)

    found = [(jobs[grant.job.id], facts(grant.evidence)) for grant in bench.claim(len(jobs))]

    assert [(kind, EXPECTED[kind]) for kind in [*kinds, *kinds]] == found


@pytest.mark.parametrize("kind", ["type", "actor", "origin", "artifact", "target"])
def test_two_that_differ_in_one_thing_have_facts_of_their_own(bench, ledger, owner, kind):
    """Most jobs of a claim are alike, and are not looked at again to find that out: one that is not is noticed."""
    bench.operator.register_artifact(ArtifactFact("a-2", DIGEST, ArtifactState.REVOKED), "a reason")
    refs = {"artifact": Refs(artifacts=(ArtifactRef("a-2", DIGEST),)), "target": Refs(targets=("host:b",))}
    policy, actor = MEDIUM if kind == "type" else LOW, "svc:two" if kind == "actor" else "svc:one"
    jobs = [bench.admitted(LOW, actor="svc:one"), bench.admitted(policy, actor=actor, refs=refs.get(kind, Refs()))]
    if kind == "origin":
        ledger.give_away(jobs[1].id, "p_other")
    owner.execute(ACCESS)
    bench.tighten(ControlMode.HOLD, MEDIUM.name)
    bench.tighten(ControlMode.HOLD, "p_other", ControlScope.ORIGIN)

    one, other = (facts(grant.evidence) for grant in sorted(bench.claim(2), key=lambda each: each.job.id != jobs[0].id))

    bare = {**EXPECTED, "plain": ("", LOW.sha256, True, (), {})}
    expected = bare[kind] if kind == "artifact" else (*bare[kind][:-1], {})
    assert (bare["plain"], expected) == (one, other)


def test_jobs_alike_ask_once(bench, ledger, owner):
    """A claim of 50 jobs of two types asks for the facts twice, one of 25 that are alike once."""
    owner.execute(f"alter database {ledger.site.database} set track_functions = 'all'".encode())
    bench.admit(*(bench.job(policy) for policy in (LOW, MEDIUM) for _ in range(25)))

    assert 50 == len(bench.claim(50))
    bench.admit(*(bench.job() for _ in range(25)))
    assert 25 == len(bench.claim(50))
    bench.consumer.close()

    waiting.until(lambda: owner.execute(CALLS).fetchall())  # a session that ends tells what it counted
    assert [(3,)] == owner.execute(CALLS).fetchall()


def facts(evidence):
    """What the second judgement would look at."""
    states = {name: fact.state for name, fact in evidence.artifacts.items()}
    return evidence.control.name, evidence.policy_sha256, evidence.speaks, evidence.denied_targets, states
