from __future__ import annotations

import math

import msgspec
import pytest

from benteng.errors import DefinitionError, PolicyError
from benteng.policy import (
    FLOORS,
    LIMITS,
    LOCK_BYTES_MAX,
    PENDING,
    Effect,
    KeyPath,
    Limits,
    Tier,
    TypePolicy,
    check_floors,
    differences,
    missing_for,
    parse_lock,
    render_lock,
)
from benteng.raised import ErrorClass

WRITTEN = frozenset({"effect", "resources"})


def policy(tier=Tier.MEDIUM, effect=Effect.REPEATABLE, limits=None, **fields) -> TypePolicy:
    """A type that keeps its tier's floors, with the given differences."""
    chosen = msgspec.structs.replace(LIMITS[tier], **(limits or {}))
    given = {"name": "a.b@1", "operation": ("x",), "signed": tier is Tier.HIGH} | fields
    return TypePolicy(tier=tier, effect=effect, limits=chosen, **given)


BELOW = [
    ("F-effect", policy(), frozenset({"resources"})),
    ("F-once", policy(Tier.LOW, Effect.ONCE), WRITTEN),
    ("F-operation", policy(operation=()), WRITTEN),
    ("F-resources", policy(), frozenset({"effect"})),
    ("F-secrets", policy(secrets=("stripe", "stripe")), WRITTEN),
    ("F-secrets", policy(secrets=tuple("stripe")), WRITTEN),
    ("F-secrets", policy(secrets=("Stripe",)), WRITTEN),
    ("F-secrets", policy(secrets=("stripe\n",)), WRITTEN),
    ("F-secrets", policy(secrets=("s" * 49,)), WRITTEN),
    ("F-secrets", policy(secrets=tuple(f"s{n}" for n in range(9))), WRITTEN),
    ("F-wide", policy(Tier.LOW, secrets=("stripe",)), WRITTEN),
    ("F-signed", policy(Tier.HIGH, signed=False), WRITTEN),
    ("F-attempts", policy(limits={"attempts_max": 0}), WRITTEN),
    ("F-attempts", policy(limits={"attempts_max": 26}), WRITTEN),
    ("F-attempts", policy(Tier.HIGH, limits={"attempts_max": 6}), WRITTEN),
    ("F-crashes", policy(limits={"crashes_max": 0}), WRITTEN),
    ("F-crashes", policy(limits={"crashes_max": 6}), WRITTEN),
    ("F-crashes", policy(limits={"attempts_max": 25, "crashes_max": 11}), WRITTEN),
    ("F-returns", policy(limits={"handbacks_max": -1}), WRITTEN),
    ("F-returns", policy(limits={"handbacks_max": 101}), WRITTEN),
    ("F-returns", policy(limits={"snoozes_max": 1001}), WRITTEN),
    ("F-returns", policy(limits={"snooze_seconds_max": 0.0}), WRITTEN),
    ("F-returns", policy(limits={"snooze_seconds_max": 604_801.0}), WRITTEN),
    ("F-backoff", policy(limits={"backoff_seconds_min": 0.04}), WRITTEN),
    ("F-backoff", policy(limits={"backoff_seconds_min": 301.0}), WRITTEN),
    ("F-backoff", policy(limits={"backoff_seconds_max": 86_401.0}), WRITTEN),
    ("F-backoff", policy(limits={"backoff_seconds_base": 0.0}), WRITTEN),
    ("F-lease", policy(limits={"lease_seconds": 0.9}), WRITTEN),
    ("F-lease", policy(limits={"lease_seconds": 3601.0}), WRITTEN),
    ("F-lease", policy(limits={"run_seconds_max": 0.0}), WRITTEN),
    ("F-lease", policy(limits={"run_seconds_max": 86_401.0}), WRITTEN),
    ("F-lease", policy(limits={"grace_seconds": -1.0}), WRITTEN),
    ("F-lease", policy(limits={"grace_seconds": 61.0}), WRITTEN),
    ("F-bytes", policy(limits={"payload_bytes_max": 0}), WRITTEN),
    ("F-bytes", policy(limits={"payload_bytes_max": 65_537}), WRITTEN),
    ("F-bytes", policy(limits={"result_bytes_max": 65_537}), WRITTEN),
    ("F-cell", policy(limits={"memory_bytes_max": (64 << 20) - 1}), WRITTEN),
    ("F-cell", policy(limits={"memory_bytes_max": (64 << 30) + 1}), WRITTEN),
    ("F-cell", policy(limits={"file_bytes_max": -1}), WRITTEN),
    ("F-cell", policy(limits={"open_files_max": 15}), WRITTEN),
    ("F-cell", policy(limits={"open_files_max": 4097}), WRITTEN),
    ("F-expires", policy(Tier.HIGH, limits={"expires_seconds": 0.0}), WRITTEN),
    ("F-expires", policy(Tier.HIGH, limits={"expires_seconds": 604_801.0}), WRITTEN),
    ("F-keep", policy(Tier.HIGH, limits={"operation_keep_seconds": 1e9}), WRITTEN),
    ("F-keep", policy(limits={"operation_keep_seconds": 86_399.0}), WRITTEN),
    ("F-keep", policy(limits={"result_keep_seconds": -1.0}), WRITTEN),
    ("F-number", policy(limits={"result_keep_seconds": math.nan}), WRITTEN),
    ("F-number", policy(limits={"operation_keep_seconds": math.inf}), WRITTEN),
    ("F-number", policy(Tier.LOW, limits={"expires_seconds": math.inf}), WRITTEN),
]

ON_THE_FLOOR = {
    "low-without-words": (policy(Tier.LOW, operation=()), frozenset()),
    "medium": (policy(), WRITTEN),
    "high": (policy(Tier.HIGH), WRITTEN),
    "most-attempts": (policy(limits={"attempts_max": 25, "crashes_max": 10}), WRITTEN),
    "most-attempts-high": (policy(Tier.HIGH, limits={"attempts_max": 5, "crashes_max": 5}), WRITTEN),
    "shortest-lease": (policy(limits={"lease_seconds": 1.0}), WRITTEN),
    "no-backoff-to-speak-of": (policy(limits={"backoff_seconds_min": 0.05, "backoff_seconds_max": 0.05}), WRITTEN),
    "kept-a-day": (policy(limits={"operation_keep_seconds": 86_400.0}), WRITTEN),
    "kept-for-ever": (policy(limits={"operation_keep_seconds": None}), WRITTEN),
}


@pytest.mark.parametrize("rule, below, declared", BELOW, ids=[f"{i}-{case[0]}" for i, case in enumerate(BELOW)])
def test_type_below_a_floor_is_refused(rule, below, declared):
    """A type below its tier's floor is refused, naming the rule, the type and the fix."""
    with pytest.raises(DefinitionError) as refused:
        check_floors(below, declared)

    assert rule == refused.value.rule
    assert "a.b@1" in refused.value.reason
    assert refused.value.fix


NUMBERS = [field.name for field in msgspec.structs.fields(Limits) if field.type is not int]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", NUMBERS)
def test_limit_that_is_no_number_is_refused(field, value):
    """NaN and infinity compare in surprising ways and cannot be written to a lock file: no limit may be one."""
    with pytest.raises(DefinitionError) as refused:
        check_floors(policy(limits={field: value}), WRITTEN)

    assert "F-number" == refused.value.rule


def test_every_floor_has_a_case():
    """No floor goes untested."""
    assert {floor.id for floor in FLOORS} == {rule for rule, _, _ in BELOW}


@pytest.mark.parametrize("case", ON_THE_FLOOR)
def test_type_on_the_floor_is_accepted(case):
    """The boundary itself is allowed."""
    accepted, declared = ON_THE_FLOOR[case]

    check_floors(accepted, declared)

    assert accepted == parse_lock(render_lock({accepted.name: accepted})).types[accepted.name]


@pytest.mark.parametrize("tier", Tier)
def test_presets_keep_their_own_floors(tier):
    """The limits that an author gets without a word are acceptable."""
    check_floors(policy(tier), WRITTEN)

    assert LIMITS[tier] == policy(tier).limits


def test_tiers_are_ordered():
    """LOW < MEDIUM < HIGH by rank; text order would say otherwise."""
    assert [Tier.LOW, Tier.MEDIUM, Tier.HIGH] == sorted(Tier, key=lambda tier: tier.rank)


def test_only_high_closes_resources():
    """An uncertain job keeps its resources closed at HIGH."""
    assert [False, False, True] == [policy(tier).closes for tier in Tier]


OTHER = {
    "name": "c.d@2",
    "tier": Tier.HIGH,
    "effect": Effect.ONCE,
    "pool": "other",
    "operation": ("y",),
    "resources": (KeyPath("r", "host"),),
    "artifacts": ("f",),
    "targets": (KeyPath("t", "host"),),
    "successors": ("n@1",),
    "secrets": ("stripe",),
    "errors": {"builtins.OSError": ErrorClass.PERMANENT},
    "signed": True,
    "schema_sha256": "00",
    "limits": LIMITS[Tier.HIGH],
}


@pytest.mark.parametrize("field", TypePolicy.__struct_fields__)
def test_digest_covers_every_field(field):
    """A change of any field, also of one added later, changes the digest under which a job was judged."""
    base = policy()

    assert base.sha256 != msgspec.structs.replace(base, **{field: OTHER[field]}).sha256


@pytest.mark.parametrize("field", Limits.__struct_fields__)
def test_digest_covers_every_limit(field):
    """A change of any limit changes the digest."""
    base = policy()

    assert base.sha256 != policy(limits={field: 12_345}).sha256


def test_digest_does_not_depend_on_the_order_of_the_table():
    """Two files that say the same have the same digest."""
    one = policy(errors={"a.A": ErrorClass.PERMANENT, "b.B": ErrorClass.TRANSIENT})
    other = policy(errors={"b.B": ErrorClass.TRANSIENT, "a.A": ErrorClass.PERMANENT})

    assert one.sha256 == other.sha256


def test_lock_file_round_trip():
    """What was written is what is read, and writing it again gives the same bytes."""
    types = {item.name: item for item in (policy(name="b@1"), policy(Tier.HIGH, name="a@1"))}

    text = render_lock(types)

    assert types == parse_lock(text).types
    assert text == render_lock(dict(reversed(types.items())))
    assert text.endswith(b"\n")


def lock_text(**fields) -> bytes:
    """The lock file of one type with the given differences."""
    return render_lock({"a.b@1": policy(**fields)})


@pytest.mark.parametrize(
    "rule, text",
    [
        ("L-size", b" " * (LOCK_BYTES_MAX + 1)),
        ("L-format", b""),
        ("L-format", b"[]"),
        ("L-format", b"\xff"),
        ("L-format", lock_text()[:-4]),
        ("L-format", lock_text().replace(b'"pool"', b'"pooll"')),
        ("L-format", lock_text().replace(b'"attempts_max": 5', b'"attempts_max": "5"')),
        ("L-format", lock_text().replace(b'"medium"', b'"extreme"')),
        ("L-version", lock_text().replace(b'"version": 1', b'"version": 2')),
        ("L-name", render_lock({"other@1": policy()})),
        ("F-attempts", lock_text(limits={"attempts_max": 26})),
        ("F-operation", lock_text(operation=())),
    ],
)
def test_bad_lock_file_is_refused(rule, text):
    """Anything but a lock file of this version, whose types keep their floors, is refused by rule."""
    with pytest.raises(PolicyError) as refused:
        parse_lock(text)

    assert rule == refused.value.rule


def test_differences_name_type_field_and_values():
    """One line for each change, in order, made to be read by the reviewer."""
    old = {"a@1": policy(name="a@1"), "b@1": policy(name="b@1"), "d@1": policy(name="d@1")}
    new = {"a@1": policy(name="a@1", pool="p", limits={"attempts_max": 4}), "c@1": policy(Tier.HIGH, name="c@1")}
    new["d@1"] = old["d@1"]

    lines = differences(old, new)

    assert [
        "a@1: pool 'default' -> 'p'",
        "a@1: limits.attempts_max 5 -> 4",
        "b@1: removed",
        "c@1: added (high)",
    ] == lines


def test_missing_floors_never_concern_low():
    """LOW runs everywhere with what this version has."""
    assert () == missing_for(Tier.LOW, roles=False)
    assert {row.floor for row in PENDING} == {row.floor for row in missing_for(Tier.HIGH, roles=True)}


@pytest.mark.parametrize("tier", [Tier.MEDIUM, Tier.HIGH])
def test_a_ledger_without_roles_carries_low_alone(tier):
    """Whatever else is built: above LOW one login that is everybody is not enough."""
    assert "roles" in {row.floor for row in missing_for(tier, roles=False)}
    assert "roles" not in {row.floor for row in missing_for(tier, roles=True)}


def test_a_policy_has_one_digest_however_it_was_written():
    """Whole seconds written as integers digest like the same policy read back from the lock file."""
    written = policy(limits={"lease_seconds": 7, "operation_keep_seconds": 864_000, "expires_seconds": 0})

    again = parse_lock(render_lock({written.name: written})).types[written.name]

    assert again == written
    assert again.sha256 == written.sha256
