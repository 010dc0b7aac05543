"""A compiled contract: paths, references, summaries, schema and digest."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from benteng.contract import (
    Artifact,
    Audited,
    Contract,
    FieldPath,
    HostName,
    Kind,
    Money,
    Sha256,
    Slug,
    Target,
    TargetId,
    Waive,
    Window,
    artifact_refs,
    extract_all_from_bytes,
    extract_from_bytes,
    resource_keys,
    shape_of,
)
from benteng.contract.summary import Outline, summarise
from benteng.errors import DefinitionError, Malformed
from benteng.policy import Tier

SHA_A, SHA_B = "a" * 64, "b" * 64
REASON = "reviewed: made up for a test"


class Step(Contract, tag="step"):
    artifact: Artifact
    host: Annotated[TargetId, Kind("host")]


class Pause(Contract, tag="pause"):
    seconds: int


class Patch(Contract, rename={"target_group": "targetGroup"}):
    """Apply a patch."""

    target_group: Target
    artifact: Artifact
    window: Window
    description: Annotated[Slug, Audited()] = "none"
    hosts: Annotated[tuple[Annotated[TargetId, Kind("host")], ...], Meta(max_length=9)] = ()
    steps: Annotated[tuple[Step | Pause, ...], Meta(max_length=9)] = ()
    spare: Artifact | None = None
    account: Annotated[int, Kind("account")] | None = None


PAYLOAD: dict[str, Any] = {
    "targetGroup": "web",
    "artifact": {"id": "patch-7", "sha256": SHA_A},
    "window": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
    "hosts": ["web-2", "web-1"],
    "steps": [
        {"type": "step", "artifact": {"id": "tool", "sha256": SHA_B}, "host": "web-1"},
        {"type": "pause", "seconds": 5},
    ],
    "account": 7,
}
SHAPE = shape_of(Patch, tier=Tier.HIGH, name="patch.apply@1")
PARSED = SHAPE.parse(json.dumps(PAYLOAD).encode())


def test_a_shape_knows_its_name_model_and_tier():
    """What was given to shape_of is what the shape says."""
    assert ("patch.apply@1", Patch, Tier.HIGH) == (SHAPE.name, SHAPE.model, SHAPE.tier)


@pytest.mark.parametrize(
    "dotted, expected, value",
    [
        ("target_group", FieldPath("targetGroup", "target", str), "web"),
        ("targetGroup", FieldPath("targetGroup", "target", str), "web"),
        ("artifact.sha256", FieldPath("artifact.sha256", "", str), SHA_A),
        ("artifact", FieldPath("artifact", "", Artifact), {"id": "patch-7", "sha256": SHA_A}),
        ("window.start", FieldPath("window.start", "", datetime), "2026-01-01T00:00:00Z"),
        ("account", FieldPath("account", "account", int | None), 7),
    ],
    ids=["python-name", "json-name", "nested", "record", "time", "optional"],
)
def test_paths_are_resolved_to_json_names(dotted, expected, value):
    """A path may use Python names; resolved, it works on canonical bytes without the contract."""
    path = SHAPE.path(dotted)

    assert (expected.dotted, expected.kind) == (path.dotted, path.kind)
    assert value == SHAPE.extract(PARSED, path) == extract_from_bytes(PARSED.canonical, path.dotted)


@pytest.mark.parametrize(
    "dotted",
    ["nope", "artifact.nope", "artifact.sha256.x", "", ".", "spare.id", "steps.host", "hosts.0", "target_group "],
)
def test_bad_paths_are_refused_when_resolved(dotted):
    """A path that leads nowhere, or to what may be absent, is a definition error that names the known fields."""
    with pytest.raises(DefinitionError) as caught:
        SHAPE.path(dotted)

    assert "D-path" == caught.value.rule
    if dotted == "artifact.nope":
        assert "known: id, sha256" in caught.value.reason


def test_several_paths_are_read_at_once():
    """The operation's values come in the order of their paths."""
    assert ("web", SHA_A) == extract_all_from_bytes(PARSED.canonical, ["targetGroup", "artifact.sha256"])


def test_artifacts_are_found_everywhere():
    """Every artifact reference is found, in items and options too; an absent one gives none."""
    assert (("patch-7", SHA_A), ("tool", SHA_B)) == SHAPE.artifacts(PARSED)
    assert ["artifact", "spare", "steps.*.artifact"] == [path.dotted for path in SHAPE.artifact_paths]


def test_targets_are_found_everywhere():
    """Every field of a kind is found, in items and options too, once."""
    assert ("account:7", "host:web-1", "host:web-2", "target:web") == SHAPE.targets(PARSED)


def test_the_supervisor_finds_the_same_references():
    """From canonical bytes and the lock file's paths, without the contract, come the same references."""
    tree = msgspec.json.decode(PARSED.canonical)

    paths = [FieldPath(path.dotted, path.kind, None) for path in SHAPE.target_paths]
    assert SHAPE.targets(PARSED) == resource_keys(tree, paths)
    assert SHAPE.artifacts(PARSED) == artifact_refs(
        tree, [FieldPath(path.dotted, "", None) for path in SHAPE.artifact_paths]
    )


def test_resources_are_the_declared_ones():
    """Only the declared paths give keys, sorted, lists item by item."""
    assert ("host:web-1", "host:web-2", "target:web") == SHAPE.resources(PARSED, ["target_group", "hosts"])
    assert () == SHAPE.resources(PARSED, [])
    with pytest.raises(DefinitionError, match="no resource kind"):
        SHAPE.resource("description")


@pytest.mark.parametrize("value", [True, 1.5, {"a": 1}, [["x"]]], ids=str)
def test_only_scalars_name_a_resource(value):
    """What is no string or integer never becomes a key."""
    with pytest.raises(Malformed, match="P-type"):
        resource_keys({"a": value}, [FieldPath("a", "host", None)])
    with pytest.raises(Malformed, match="P-type"):
        artifact_refs({"a": value}, [FieldPath("a", "artifact", None)])


def test_no_kind_gives_no_key():
    """A key without a kind would collide with other kinds."""
    with pytest.raises(Malformed, match="P-type"):
        resource_keys({"a": "x"}, [FieldPath("a", "", None)])


def test_the_outermost_kind_counts():
    """Annotating Target again with another kind changes its kind."""

    class Renamed(Contract):
        host: Annotated[Target, Kind("host")]

    shape = shape_of(Renamed, tier=Tier.HIGH)

    assert ("host:web-7",) == shape.targets(shape.parse(b'{"host":"web-7"}'))


def test_summary_shows_marked_fields_only():
    """Audited fields are in clear, all others are type and length: an allow-list."""
    summary = SHAPE.summary(PARSED)

    assert "none" == summary["description"]
    assert {"type": "string", "length": 3} == summary["targetGroup"]
    assert {"id": {"type": "string", "length": 7}, "sha256": {"type": "string", "length": 64}} == summary["artifact"]
    assert {"type": "array", "length": 2} == summary["hosts"]
    assert {"type": "integer"} == summary["account"]
    assert {"type": "null"} == summary["spare"]


def test_no_hidden_value_reaches_the_summary():
    """A value that is not marked is nowhere in the summary, at any depth."""

    class Deep(Contract):
        one: str
        two: dict[str, str]
        three: list[str]
        shown: Annotated[str, Audited()]
        maybe: Annotated[str, Audited()] | None
        items: list[Annotated[str, Audited()]]
        mixed: list[Annotated[str, Audited()] | int]

    shape = shape_of(Deep, tier=Tier.LOW)
    value = {
        "one": "secret-1",
        "two": {"secret-2": "secret-3"},
        "three": ["secret-4"],
        "shown": "a",
        "maybe": "b",
        "items": ["c"],
        "mixed": ["secret-5", 1],
    }

    summary = shape.summary(shape.parse_value(value))

    assert "secret" not in json.dumps(summary)
    assert ("a", "b", ["c"]) == (summary["shown"], summary["maybe"], summary["items"])


def test_a_name_that_the_contract_does_not_have_is_hidden():
    """What nobody marked is not shown, whoever wrote it into the bytes."""
    assert {"ghost": {"type": "string", "length": 6}} == summarise(Outline(shown=True, below={}), {"ghost": "secret"})


def test_free_text_names_the_reviewed_fields():
    """The fields whose free text somebody reviewed are known by path."""

    class Note(Contract):
        note: Annotated[str, Waive("D-free-text", REASON)]
        other: Slug

    class Notes(Contract):
        notes: Annotated[list[Note], Meta(max_length=3)]

    assert {"notes.note"} == shape_of(Notes, tier=Tier.HIGH).free_text


def test_schema_describes_what_is_accepted():
    """The JSON Schema forbids other fields and carries patterns and marks; documentation is left out."""
    schema = SHAPE.json_schema()

    fields = schema["$defs"]["Patch"]["properties"]
    assert schema["$defs"]["Patch"]["additionalProperties"] is False
    assert {"description", "targetGroup"} <= fields.keys()
    assert "Apply a patch." not in json.dumps(schema)
    assert {"kind": "host"} == schema["x-benteng"]["steps.*.host"]
    assert {"audited": True} == schema["x-benteng"]["description"]


def _digest(**marks: Any) -> str:
    annotation = Annotated[marks.get("type", Slug), *marks.get("marks", ())]  # pyright: ignore[reportInvalidTypeForm] - built
    namespace = {"__doc__": marks.get("doc", "")}
    model = msgspec.defstruct(
        "Made", [(marks.get("name", "value"), annotation)], bases=(Contract,), kw_only=True, namespace=namespace
    )
    return shape_of(model, tier=Tier.LOW).schema_digest


def test_schema_digest_changes_with_the_contract():
    """Another name, type, kind, audit mark or waiver is another contract."""
    marks = [
        (Audited(),),
        (Kind("host"),),
        (Kind("rack"),),
        (Waive("D-names", REASON),),
        (Waive("D-names", REASON + "!"),),
    ]
    digests = [
        _digest(marks=("x",)),
        _digest(name="other", marks=("x",)),
        _digest(type=Sha256, marks=("x",)),
        *(_digest(marks=mark) for mark in marks),
    ]

    assert len(digests) == len(set(digests))


def test_schema_digest_ignores_documentation():
    """Rewording a docstring is no change of the contract."""
    assert _digest(doc="One.", marks=("x",)) == _digest(doc="Two.", marks=("y",))


def test_schema_digest_is_stable():
    """Golden: a new msgspec that describes the same contract otherwise is noticed here, not in production."""

    class Golden(Contract):
        artifact: Artifact
        amount: Money
        target: Target
        window: Window | None = None

    assert (
        "356c552ac7f8710a180eae2a503378abea39c0c7d0766bf3e99162be74009842"
        == shape_of(Golden, tier=Tier.HIGH).schema_digest
    )


ACCEPTED = [
    (Sha256, ["a" * 64, "0123456789abcdef" * 4]),
    (Slug, ["a", "web-7", "a.b_c", "0", "a" * 64]),
    (HostName, ["localhost", "a.b.c", "web-7.example.com", "a" * 63 + ".b", "1.2.3.4"]),
    (Target, ["web-7", "a" * 128]),
    (Money, ["0", "-1", "12.50", "999999999999999.9999"]),
]
REFUSED = [
    (Sha256, ["a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 63 + "\n", "a" * 64 + "\n", ""]),
    (Slug, ["", "A", "-a", "a b", "a/b", "../a", "a\n", "\u0430", "a" * 65, "a:b"]),
    (HostName, ["", "-a", "a-", "a..b", ".a", "a.", "A", "a_b", "a" * 64, "a.\n", "a.b\n", ".".join(["a" * 60] * 5)]),
    (Target, ["", "a:b", "a/b", "a" * 129, "a\n"]),
    (Money, ["", "1.", ".5", "+1", "01", "1e5", "NaN", "Infinity", "1,5", "1.00000", "1" * 16, " 1", "1\n", "\u0661"]),
]
CASES = [
    (kind_, text, good)
    for table, good in ((ACCEPTED, True), (REFUSED, False))
    for kind_, texts in table
    for text in texts
]


@pytest.mark.parametrize(
    "annotation, text, good", [pytest.param(*case, id=f"{number}") for number, case in enumerate(CASES)]
)
def test_field_types_accept_exactly_their_form(annotation, text, good):
    """Ux 5.3: exact forms only; no trailing newline passes, also where the text checks do not look."""
    model = msgspec.defstruct("Made", [("value", annotation)], bases=(Contract,), kw_only=True)
    shape = shape_of(model, tier=Tier.HIGH)
    raw = json.dumps({"value": text}).encode()

    if good:
        assert (
            Decimal(text) == shape.parse(raw).value.value
            if annotation is Money
            else text == shape.parse(raw).value.value
        )
    else:
        with pytest.raises(Malformed):
            shape.parse(raw)


@pytest.mark.parametrize("annotation", [Sha256, Slug, HostName, Target, TargetId], ids=range(5))
def test_patterns_alone_refuse_a_trailing_newline(annotation):
    """The pattern or length refuses it without help from the parser's text checks."""
    good = {Sha256: "a" * 64}.get(annotation, "a")

    assert good == msgspec.convert(good, annotation)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(good + "\n", annotation)


def test_money_is_an_exact_decimal():
    """It computes as a Decimal and has one spelling."""
    assert Decimal("13.00") == Money("12.50") + Decimal("0.50")
    assert ["12.5", "0", "100", "-0.01"] == [Money(text).spelling() for text in ("12.50", "-0.00", "100", "-0.01")]


class Checked(Contract):
    number: int

    def __post_init__(self) -> None:
        if self.number == 1:
            raise ValueError(f"hunter2-canary {self.number}")
        if self.number == 2:
            raise KeyError("hunter2-canary")
        if self.number == 3:
            raise ValueError("Expected `hunter2-canary`, got `hunter2-canary`")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_messages_of_own_checks_are_not_passed_on(number):
    """Whatever a contract's own check raises refuses, and its words, which may quote a value, stay inside."""
    with pytest.raises(Malformed) as caught:
        shape_of(Checked, tier=Tier.LOW).parse(f'{{"number":{number}}}'.encode())

    assert caught.value.rule in {"P-value", "P-type"}
    assert "canary" not in str(caught.value)
    assert caught.value.__context__ is None


def test_enum_values_are_not_echoed():
    """Msgspec quotes an invalid choice; the refusal does not."""
    from typing import Literal

    class Choice(Contract):
        value: Literal["a", "b"]

    with pytest.raises(Malformed) as caught:
        shape_of(Choice, tier=Tier.LOW).parse(b'{"value":"hunter2-canary"}')

    assert ("P-value", "value") == (caught.value.rule, caught.value.field)
    assert "canary" not in str(caught.value)


def test_extract_reads_the_largest_text():
    """The supervisor reads what the widest contract may hold."""
    at = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    raw = json.dumps({"a": "x" * 60_000, "b": at}).encode()

    assert at == extract_from_bytes(raw, "b")
