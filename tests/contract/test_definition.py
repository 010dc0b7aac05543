"""Definition rules: what a contract may not be, refused when the type is defined, with its waiver."""

import enum
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional

import msgspec
import pytest
from msgspec import Meta

from benteng.contract import (
    RULES,
    Artifact,
    Audited,
    Contract,
    Currency,
    HostName,
    Kind,
    Money,
    Sha256,
    Slug,
    Target,
    TargetId,
    Waive,
    Window,
    shape_of,
)
from benteng.contract.definition import FORBIDDEN_WORDS, SECRET_WORDS, words_of
from benteng.errors import DefinitionError
from benteng.policy import Tier

REASON = "reviewed: made up for a test"
EVERY_TIER = list(Tier)


def _numbered(cases: list[Any]) -> list[Any]:
    return [pytest.param(case, id=f"{number}-{getattr(case, '__name__', 'case')}") for number, case in enumerate(cases)]


def _contract(annotation: Any, name: str = "value", **config: Any) -> type[msgspec.Struct]:
    """A contract with one field."""
    return msgspec.defstruct("Made", [(name, annotation)], bases=(Contract,), kw_only=True, **config)


def _refused(model: Any, tier: Tier = Tier.LOW) -> DefinitionError:
    with pytest.raises(DefinitionError) as caught:
        shape_of(model, tier=tier)
    assert RULES[caught.value.rule].fix == caught.value.fix
    return caught.value


def _accepted(model: Any, tier: Tier = Tier.LOW) -> bool:
    return shape_of(model, tier=tier).model is model


@pytest.mark.parametrize("tier", EVERY_TIER)
@pytest.mark.parametrize("word", sorted(FORBIDDEN_WORDS))
def test_forbidden_words_are_refused_at_every_tier(word, tier):
    """A field named after code, a location or an override is refused, and the message shows the waiver."""
    error = _refused(_contract(Slug, word), tier)

    assert ("D-names", word) == (error.rule, error.field)
    assert 'Waive("D-names"' in str(error)
    assert _accepted(_contract(Annotated[Slug, Waive("D-names", REASON)], word), tier)


@pytest.mark.parametrize(
    "name",
    [
        "shell_command",
        "runCommand",
        "SQLQuery",
        "raw_sql",
        "pathName",
        "file_paths",
        "templates",
        "force2",
        "doEval",
        "_override",
        "PATH",
    ],
)
def test_words_are_found_in_any_spelling(name):
    """camelCase, capitals, plurals and digits hide no word."""
    assert "D-names" == _refused(_contract(Slug, name)).rule


@pytest.mark.parametrize(
    "name", ["recommand", "pathology", "enforced", "description", "evaluation", "reinforce", "scripture"]
)
def test_only_whole_words_count(name):
    """A longer word that contains a forbidden one is another word."""
    assert _accepted(_contract(Slug, name))


def test_words_of_a_name():
    """Snake, kebab and camel case come apart into the same words."""
    assert (
        ("run", "http", "command")
        == words_of("runHTTPCommand")
        == words_of("run_http_commands")
        == words_of("run-http-command")
    )


def test_encoded_names_are_judged_too():
    """`rename` does not smuggle a name past the rule, in neither direction."""

    class Renamed(Contract, rename={"note": "shell-command"}):
        note: Slug

    class Hidden(Contract, rename={"command": "note"}):
        command: Slug

    assert ["D-names", "D-names"] == [_refused(model).rule for model in (Renamed, Hidden)]


@pytest.mark.parametrize("encoded", ["a.b", "a b", "", "\u0441ommand", "x" * 65, "1a"])
def test_names_are_plain(encoded):
    """A dot would break paths; a Cyrillic letter would hide a word."""

    class Renamed(Contract, rename={"note": encoded}):
        note: Slug

    assert "D-names" == _refused(Renamed).rule


def test_one_name_means_one_field():
    """A field's name in Python must not be another field's name in JSON."""

    class Crossed(Contract, rename={"left": "right", "right": "left"}):
        left: Slug
        right: Slug

    assert "D-strict" == _refused(Crossed).rule


class Bad(Contract):
    command: Slug


class Waived(Contract):
    note: Annotated[Bad, Waive("D-names", REASON)]


@pytest.mark.parametrize(
    "annotation",
    [
        Bad,
        list[Bad],
        tuple[Slug, Bad],
        dict[str, Bad],
        Bad | None,
        Annotated[list[Bad | None], Meta(max_length=2)],
        NewType("Named", Bad),
        dict[str, list[tuple[Bad, ...]]],
    ],
    ids=str,
)
def test_rules_reach_every_nested_record(annotation):
    """Lists, tuples, maps, unions and NewTypes hide nothing."""
    error = _refused(_contract(annotation))

    assert "D-names" == error.rule
    assert error.field.endswith("command")


def test_a_waiver_reaches_no_nested_record():
    """A waiver is for the field that carries it, not for the fields of a record below it."""
    assert "note.command" == _refused(Waived).field


@pytest.mark.parametrize("tier", EVERY_TIER)
@pytest.mark.parametrize("name", [*SECRET_WORDS, "db_password", "apiKey", "privateKeyPem", "auth_tokens", "AWS_SECRET"])
def test_secrets_are_not_carried(name, tier):
    """A field that would hold a secret is refused, and the message names ctx.secret."""
    error = _refused(_contract(Slug, name), tier)

    assert "D-secret" == error.rule
    assert "ctx.secret(name)" in error.fix
    assert _accepted(_contract(Annotated[Slug, Waive("D-secret", REASON)], name), tier)


def test_secret_types_are_never_carried():
    """A type or mark that says Secret is refused whatever the field is called."""

    class SecretStr(str):
        __slots__ = ()

    class Secret:
        pass

    assert "D-secret" == _refused(_contract(SecretStr)).rule
    assert "D-type" == _refused(_contract(Annotated[SecretStr, Waive("D-secret", REASON)])).rule
    assert "D-secret" == _refused(_contract(Annotated[Slug, Secret()])).rule


class Colour(enum.Enum):
    RED = "red"


NARROW = [
    Slug,
    Sha256,
    HostName,
    Target,
    TargetId,
    Artifact,
    Window,
    Money,
    Currency,
    Annotated[TargetId, Kind("host")],
    int,
    float,
    bool,
    datetime,
    date,
    Colour,
    Literal["a", "b"],
    Optional[Slug],  # noqa: UP045 - pyright knows no `|` for an Annotated value
    tuple[int, int],
    Annotated[list[Slug], Meta(max_length=3)],
    Annotated[dict[Slug, int], Meta(max_length=3)],
    Annotated[str, Meta(pattern=r"^v[0-9]{1,4}$(?!\n)", max_length=5)],
]


@pytest.mark.parametrize("annotation", _numbered(NARROW))
def test_narrow_types_are_accepted_at_high(annotation):
    """All field types of benteng, and bounded patterned ones, are fit for HIGH."""
    assert _accepted(_contract(annotation), Tier.HIGH)


FREE = [
    str,
    Annotated[str, Meta(max_length=10)],
    Annotated[str, Meta(max_length=10)],
    str | None,
    bytes,
    list[Slug],
    dict[Slug, int],
    Annotated[list[str], Meta(max_length=3)],
    Annotated[dict[str, int], Meta(max_length=3)],
    tuple[Slug, ...],
    Annotated[str, Meta(pattern=r"^.*$(?!\n)", max_length=99)],
    Annotated[str, Meta(pattern=r"^[^x]+$(?!\n)", max_length=99)],
    Annotated[str, Meta(pattern=r"^[a-z./]+$(?!\n)", max_length=99)],
]


@pytest.mark.parametrize("annotation", _numbered(FREE))
def test_free_text_is_refused_at_high_only(annotation):
    """Free strings, patterns that a shell line passes, bytes and unbounded collections: below HIGH, or waived."""
    error = _refused(_contract(annotation), Tier.HIGH)

    assert "D-free-text" == error.rule
    assert _accepted(_contract(annotation), Tier.MEDIUM)
    assert _accepted(_contract(Annotated[annotation, Waive("D-free-text", REASON)]), Tier.HIGH)


@pytest.mark.parametrize(
    "annotation", [Any, object, dict[str, Any], list[Any], dict, list, Any | None, dict[str, list[object]]], ids=str
)
def test_untyped_values_are_for_low_only(annotation):
    """MEDIUM and HIGH take no value without a type."""
    assert _accepted(_contract(annotation), Tier.LOW)
    assert ["D-free-text"] * 2 == [_refused(_contract(annotation), tier).rule for tier in (Tier.MEDIUM, Tier.HIGH)]


def _text(pattern: str, max_length: int | None = 20) -> Any:
    return Annotated[str, Meta(pattern=pattern, max_length=max_length)]


BAD_PATTERNS = [
    _text("^[0-9a-f]*$"),
    _text("^[0-9a-f]{64}$", 65),
    _text("^[0-9a-f]{64}$", None),
    _text("^[0-9a-f]{1,20}$"),
    _text("[a-z]+"),
    _text("^[a-z]+"),
    _text(r"[a-z]+$(?!\n)"),
    _text(r"^a|b$(?!\n)"),
    _text(r"\A[a-z]+\Z"),
    _text(r"^(?i:[a-z])$(?!\n)"),
    _text(r"^(?P<x>[a-z])$(?!\n)"),
    _text(r"^[a-z]++$(?!\n)"),
    _text(r"^(?:a+)+$(?!\n)"),
    _text(r"^(?:[a-z]*x)*$(?!\n)"),
    _text(r"^(?:a{1,9}){1,9}$(?!\n)"),
    _text(r"^[a-z]+$(?!\n)", None),
    _text(r"^[a$(?!\n)]"),
]


@pytest.mark.parametrize("annotation", _numbered(BAD_PATTERNS))
def test_bad_patterns_are_refused_at_every_tier(annotation):
    """A newline, a missing anchor, syntax that ECMA lacks, or exponential time: refused, or waived."""
    assert ["D-pattern"] * 3 == [_refused(_contract(annotation), tier).rule for tier in EVERY_TIER]
    assert _accepted(_contract(Annotated[annotation, Waive("D-pattern", REASON)]))


@pytest.mark.parametrize(
    "annotation",
    [
        _text(r"^[a-z]+$(?!\n)"),
        _text("^[0-9]{6}$", 6),
        _text(r"^\d{6}$", 6),
        _text(r"^(?:a|b)[0-9]{1,3}$(?!\n)"),
        _text(r"^\$[0-9]$(?!\n)"),
    ],
    ids=str,
)
def test_good_patterns_are_accepted(annotation):
    """Closed by a lookahead, or by a length that the pattern fills exactly."""
    assert _accepted(_contract(annotation))


def test_naive_datetimes_are_refused():
    """tz=False asks for a local time, which no contract can mean."""
    assert "D-datetime" == _refused(_contract(Annotated[datetime, Meta(tz=False)])).rule
    assert _accepted(_contract(Annotated[datetime, Meta(tz=True)]))


class Tree(Contract):
    children: "tuple[Tree, ...]" = ()


class Pair(msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag="pair"):
    a: int


@dataclass
class Data:
    a: int


@pytest.mark.parametrize(
    "annotation",
    _numbered(
        [
            Decimal,
            set[int],
            frozenset[int],
            complex,
            Data,
            Tree,
            dict[int, int],
            dict[Target, int],
            type,
            Pair | Artifact,
            Annotated[str, Audited],
            Annotated[str, Annotated[str, Meta(max_length=5)]],
        ]
    ),
)
def test_other_types_are_refused(annotation):
    """The list of types is closed; a mark written as a type would be ignored, so it is refused as well."""
    assert "D-type" == _refused(_contract(annotation)).rule


def test_a_contract_does_not_hold_itself():
    """Recursion is named as what it is: a payload whose depth has no bound."""
    assert "holds itself" in _refused(Tree).reason


def test_unresolvable_annotations_are_refused():
    """A name that cannot be resolved is a definition error, not a NameError."""

    class Lost(Contract):
        value: "Nowhere"  # noqa: F821  # pyright: ignore[reportUndefinedVariable] - on purpose

    assert "D-type" == _refused(Lost).rule


@pytest.mark.parametrize(
    "config", [{"forbid_unknown_fields": False}, {"omit_defaults": True}, {"array_like": True}], ids=str
)
@pytest.mark.parametrize("nested", [False, True], ids=["root", "nested"])
def test_loosened_configuration_is_refused(config, nested):
    """A class that takes more than its fields, or writes itself another way, is refused at any depth."""
    loose = _contract(int, **config)

    assert "D-strict" == _refused(_contract(loose | None) if nested else loose).rule


def test_plain_structs_are_refused_unless_strict():
    """A msgspec class that is not a Contract has to be as strict as one."""

    class Plain(msgspec.Struct):
        a: int

    class Thawed(msgspec.Struct, forbid_unknown_fields=True):
        a: int

    assert ["D-strict"] * 2 == [_refused(model).rule for model in (Plain, Thawed)]
    assert _accepted(Pair)


def _made(annotation: Any, default: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct("Made", [("value", annotation, default)], bases=(Contract,), kw_only=True)


@pytest.mark.parametrize(
    "annotation, default",
    [
        (int, msgspec.field(default_factory=lambda: 5)),
        (Slug, "NOT A SLUG"),
        (int, 2**60),
        (str, "a\x00b"),
        (str, "e\u0301"),
        (float, float("nan")),
        (int, None),
        (datetime, datetime(2026, 1, 1)),  # noqa: DTZ001 - a naive datetime is what is refused
    ],
    ids=["computed", "pattern", "unsafe", "nul", "nfd", "nan", "none", "naive"],
)
def test_bad_defaults_are_refused(annotation, default):
    """A default is a constant that its own field accepts, in a nested record too."""
    assert "D-default" == _refused(_made(annotation, default)).rule
    assert "value.value" == _refused(_contract(_made(annotation, default))).field


@pytest.mark.parametrize(
    "annotation, default",
    [(list[int], []), (int, 5), (int | None, None), (Money, Money("1.50")), (Slug, "a")],
    ids=str,
)
def test_good_defaults_are_accepted(annotation, default):
    """Constants and empty literals are fine."""
    assert _accepted(_made(annotation, default))


@pytest.mark.parametrize(
    "rule, reason",
    [("D-names", "short"), ("D-names", " " * 20), ("D-type", REASON), ("D-none", REASON), ("", REASON)],
)
def test_waivers_need_a_rule_and_a_reason(rule, reason):
    """A waiver without a judgeable reason, or for what cannot be waived, is refused where it is written."""
    with pytest.raises(DefinitionError, match="D-waiver"):
        Waive(rule, reason)


def test_a_waiver_waives_one_rule():
    """The other rules still hold on the same field."""
    annotation = Annotated[str, Waive("D-names", REASON)]

    assert "D-free-text" == _refused(_contract(annotation, "path"), Tier.HIGH).rule


@pytest.mark.parametrize("name", ["Host", "", "a b", "a:b", "x" * 33])
def test_kinds_are_plain(name):
    """A kind with a colon could forge another kind's key."""
    with pytest.raises(DefinitionError, match="D-type"):
        Kind(name)


@pytest.mark.parametrize(
    "thing", [42, "text", int, Data, object()], ids=["number", "text", "int", "dataclass", "object"]
)
def test_other_things_are_no_contract(thing):
    """Only contract classes, pydantic models and functions compile."""
    assert "D-source" == _refused(thing).rule
