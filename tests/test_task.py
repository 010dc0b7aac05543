"""Job types: what a definition becomes, and what is refused when it is defined."""

from __future__ import annotations

from typing import Annotated

import pytest

from benteng.app import Benteng
from benteng.context import Context
from benteng.contract import Artifact, Contract, Kind, Slug, Target
from benteng.errors import DefinitionError
from benteng.policy import LIMITS, Effect, KeyPath, Tier
from benteng.verdict import ADMIT


class Patch(Contract):
    """One host, one artifact."""

    host: Annotated[Slug, Kind("host")]
    artifact: Artifact
    group: Target


HARD = {
    "tier": Tier.HIGH,
    "effect": Effect.ONCE,
    "operation": ("host", "artifact.sha256"),
    "resources": ("host",),
}


def define(**changes):
    """Define a HIGH type on a new application and return it."""
    app = Benteng()

    @app.job("patch.apply@2", **(HARD | changes))
    def apply(payload: Patch, ctx: Context) -> None: ...

    return app.registry.find(apply)


def refused(**changes):
    """Return the error of a definition that is refused."""
    with pytest.raises(DefinitionError) as caught:
        define(**changes)
    return caught.value


def test_a_plain_function_is_a_low_type():
    """The first example of the README: the signature is the contract."""
    app = Benteng()

    @app.job
    def greet(name: str) -> str:
        return f"Halo, {name}"

    found = app.registry.find("greet")
    parsed = found.shape.parse(b'{"name":"dunia"}')

    assert found.name == "greet@1"
    assert found.policy.tier is Tier.LOW
    assert found.handler(**found.arguments(parsed)) == "Halo, dunia"


def test_a_high_type_is_signed_and_knows_its_references():
    """Kinds, artifacts and targets are found in the contract and written into the policy."""
    policy = define().policy

    assert policy.signed
    assert policy.resources == (KeyPath("host", "host"),)
    assert policy.artifacts == ("artifact",)
    assert set(policy.targets) == {KeyPath("host", "host"), KeyPath("group", "target")}
    assert policy.limits == LIMITS[Tier.HIGH]


def test_the_policy_digest_changes_with_every_field():
    """No change of a policy goes unseen."""
    digests = {
        define().policy.sha256,
        define(attempts_max=2).policy.sha256,
        define(pool="other").policy.sha256,
        define(operation=("host",)).policy.sha256,
        define(effect=Effect.REPEATABLE).policy.sha256,
        define(errors={"x.Y": "permanent"}).policy.sha256,
    }

    assert len(digests) == 6


@pytest.mark.parametrize(
    "changes, rule",
    [
        ({"operation": ()}, "F-operation"),
        ({"signed": False}, "F-signed"),
        ({"attempts_max": 9}, "F-attempts"),
        ({"crashes_max": 0}, "F-crashes"),
        ({"lease_seconds": 0.5}, "F-lease"),
        ({"expires_seconds": 0}, "F-expires"),
        ({"operation_keep_seconds": 86400}, "F-keep"),
        ({"backoff_seconds_min": 0}, "F-backoff"),
        ({"payload_bytes_max": 70_000}, "F-bytes"),
        ({"open_files_max": 3}, "F-cell"),
        ({"snoozes_max": 5000}, "F-returns"),
        ({"backoff_seconds_base": float("inf")}, "F-number"),
        ({"result_keep_seconds": float("nan")}, "F-number"),
        ({"result_keep_seconds": -1}, "F-keep"),
        ({"operation": ("nowhere",)}, "D-path"),
        ({"resources": ("artifact.sha256",)}, "D-path"),
        ({"attempts": 3}, "T-limit"),
        ({"attempts_max": "many"}, "T-limit"),
    ],
    ids=str,
)
def test_a_type_below_its_floor_is_refused_when_it_is_defined(changes, rule):
    """The error names the rule and the fix, at import."""
    error = refused(**changes)

    assert error.rule == rule
    assert error.fix


@pytest.mark.parametrize("left_out, rule", [("effect", "F-effect"), ("resources", "F-resources")])
def test_above_low_the_author_writes_it_out(left_out, rule):
    """Effect and resources have no default above LOW."""
    app = Benteng()
    options = {key: value for key, value in HARD.items() if key != left_out}

    with pytest.raises(DefinitionError) as caught:

        @app.job("patch.apply@1", **options)
        def apply(payload: Patch) -> None: ...

    assert caught.value.rule == rule


def test_no_resources_may_be_written_out():
    """`resources=None` says that nothing is shared."""
    assert define(resources=None).policy.resources == ()


def test_low_cannot_be_once():
    """LOW means harmless when doubled."""
    app = Benteng()

    with pytest.raises(DefinitionError) as caught:

        @app.job("mail.send@1", effect=Effect.ONCE)
        def send(name: str) -> None: ...

    assert caught.value.rule == "F-once"


@pytest.mark.parametrize(
    "name", ["Patch@1", "patch", "patch@0", "patch@01", "patch@1 ", "pa tch@1", "patch@1\n", "../x@1", "@1"]
)
def test_a_name_is_dotted_lower_case_words_and_a_major(name):
    """Names go into keys, files and commands."""
    app = Benteng()
    expected = "patch@1" if name == "patch" else None

    if expected:
        app.job(name)(lambda: None)
        assert app.registry.find("patch").name == expected
        return
    with pytest.raises(DefinitionError) as caught:
        app.job(name)(lambda: None)

    assert caught.value.rule == "T-name"


def test_a_name_is_taken_once():
    """Two functions cannot be one type."""
    app = Benteng()
    app.job("x@1")(lambda: None)

    with pytest.raises(DefinitionError) as caught:
        app.job("x@1")(lambda: None)

    assert caught.value.rule == "T-twice"


def test_a_bare_name_means_the_newest_major():
    """`enqueue patch` takes the newest contract that the code has."""
    app = Benteng()
    for major in (2, 10, 9):
        app.job(f"x@{major}")(lambda: None)

    assert app.registry.find("x").name == "x@10"
    assert app.registry.find("x@9").name == "x@9"


def test_a_check_needs_an_evidence_loader_of_its_contract():
    """A check that could never be asked is refused when it is defined."""
    app = Benteng()

    @app.job("patch.apply@1", **HARD)
    def apply(payload: Patch) -> None: ...

    with pytest.raises(DefinitionError) as caught:
        app.check(apply, needs="host")(lambda _payload, _host: ADMIT)

    assert caught.value.rule == "T-evidence"


def test_checks_and_loaders_are_found_by_type():
    """What the gate and the cell ask for a type."""
    app = Benteng()

    @app.job("patch.apply@1", **HARD)
    def apply(payload: Patch) -> None: ...

    @app.evidence("host")
    def host(payload: Patch) -> str:
        return "facts"

    @app.check(apply, needs="host")
    def in_maintenance(payload, host):
        return ADMIT

    found = app.registry.find(apply)

    assert [check.name for check in app.registry.checks_of(found)] == ["in_maintenance"]
    assert [loader.name for loader in app.registry.loaders_of(found)] == ["host"]
