"""An operator alone: tightens at once, loosens nothing over HIGH, and cannot slip another job in by a replay."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benteng.errors import NeedsAction, PolicyError
from benteng.evidence import ArtifactFact, ArtifactState, Control, ControlMode, ControlScope
from benteng.job import ArtifactRef, Refs
from benteng.lifecycle import QuarantineReason, State
from benteng.store.records import Replay
from benteng.testing.bench import quarantine
from benteng.testing.ledger import HIGH, LOW, MEDIUM, POOL, type_row
from tests.guard_cases import DIGEST


@pytest.mark.parametrize("mode", [ControlMode.HOLD, ControlMode.OPEN])
@pytest.mark.parametrize("scope", ControlScope)
def test_nobody_alone_loosens_a_switch_over_high(prod, scope, mode):
    """In `prod` a halt of a HIGH type, of its pool or of an origin is neither opened nor weakened by one person."""
    name = {ControlScope.TYPE: HIGH.name, ControlScope.POOL: POOL, ControlScope.ORIGIN: prod.producer.origin}[scope]
    prod.operator.tighten(Control(scope, name, ControlMode.HALT, "a reason"))

    with pytest.raises(NeedsAction):
        prod.operator.loosen(Control(scope, name, mode, "a reason"))

    assert [ControlMode.HALT] == [control.mode for control in prod.operator.controls()]


@pytest.mark.parametrize("happened", [True, False])
def test_nobody_alone_says_what_happened_at_high(prod, happened):
    """In `prod` one person's word neither completes nor frees an uncertain HIGH operation."""
    grant = prod.started(HIGH, operation="1")
    prod.settle(quarantine(grant, QuarantineReason.UNCERTAIN))

    with pytest.raises(NeedsAction):
        prod.operator.resolve(grant.job.id, happened=happened, reason="a reason")

    assert State.QUARANTINED is prod.state(grant.job.id)


def test_nobody_alone_replays_high(prod):
    """In `prod` a HIGH job comes back from quarantine by more than one person, or not."""
    grant = prod.started(HIGH, operation="1")
    prod.settle(quarantine(grant))

    with pytest.raises(NeedsAction):
        prod.replay(grant.job)

    assert State.QUARANTINED is prod.state(grant.job.id)


def test_nobody_alone_releases_high(prod):
    """In `prod` one person's agreement lets no held HIGH job go on, nor the others of that call."""
    prod.operator.apply_types([type_row(LOW)], "a reason")
    low, high = prod.admitted(LOW, entry=State.HELD), prod.admitted(HIGH, operation="1", entry=State.HELD)

    with pytest.raises(NeedsAction):
        prod.operator.release([low.id, high.id], "a reason")

    assert ["held", "held"] == prod.states(low, high)


@pytest.mark.parametrize("entry", [State.RUNNING, State.BLOCKED, State.COMPLETED, State.QUARANTINED])
def test_replay_enters_nowhere_further_on(bench, entry):
    """Nobody brings a job back as running or done."""
    grant = bench.started(MEDIUM, operation="1")
    bench.settle(quarantine(grant))

    with pytest.raises(PolicyError):
        bench.replay(grant.job, entry)


@pytest.mark.parametrize(
    "change",
    [
        {"payload": b'{"x":"2"}'},
        {"payload_sha256": "0" * 64},
        {"operation_key": "0" * 64},
        {"actor": "svc:other"},
        {"origin": "os:999"},
        {"type": HIGH.name},
        {"generation": 0},
        {"generation": 2},
        {"policy_sha256": "0" * 64},
    ],
)
def test_replay_brings_back_what_was_set_apart(bench, change):
    """A replay with another payload, actor, type, key or count is refused, and the job stays where it is."""
    grant = bench.started(MEDIUM, operation="1")
    bench.settle(quarantine(grant))
    job = replace(grant.job, **({"generation": 1} | change))

    with pytest.raises(PolicyError):
        bench.operator.replay(Replay(job, State.READY, "a reason"))

    assert State.QUARANTINED is bench.state(grant.job.id)


@pytest.mark.parametrize("refs", [Refs(), Refs(resources=("target:web-8",)), Refs((ArtifactRef("a", DIGEST),))])
def test_replay_without_its_lock_does_not_reach_a_cell(site, refs):
    """Whoever drops or changes what a job locks, when replaying it, is stopped: by the store, or after the claim."""
    job = site.enqueue("medium")
    (grant,) = site.claim()
    site.bench.settle(quarantine(grant))
    changed = replace(job, generation=1, refs=refs)

    try:
        site.bench.operator.replay(Replay(changed, State.READY, "a reason"))
    except PolicyError:
        return
    assert "G-forged" == site.rule()


def test_one_person_revokes_an_artifact_at_once(prod):
    """Tightening takes one person and no vote, also in `prod`: a bad artifact is stopped when it is found."""
    prod.operator.register_artifact(ArtifactFact("agent-1.2", DIGEST, ArtifactState.REVOKED), "it is bad")
