"""pydantic models as contracts: forced strict, their messages kept inside, and never imported for others."""

import json
import subprocess
import sys
import traceback
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_serializer, field_validator

from benteng.contract import Audited, Kind, Slug, shape_of
from benteng.errors import DefinitionError, Malformed
from benteng.policy import Tier

STRICT = ConfigDict(extra="forbid", strict=True)
CANARY = "hunter2-canary"


class Inner(BaseModel):
    model_config = STRICT
    some_number: int = Field(alias="someNumber")


class Order(BaseModel):
    number: int
    ratio: float = 1.0
    customer: Annotated[str, Field(pattern="^[a-z0-9]{1,20}$", max_length=20), Kind("customer"), Audited()]
    at: datetime
    ident: UUID
    colour: Literal["red", "blue"] = "red"
    inner: Inner | None = None
    many: list[int] = []


PAYLOAD: dict[str, Any] = {
    "number": 1,
    "customer": "acme",
    "at": "2026-01-01T00:00:00Z",
    "ident": "6f1c3c1e-0f5e-4b44-9a35-0d5a3b1f2c3d",
    "inner": {"someNumber": 1},
}
SHAPE = shape_of(Order, tier=Tier.MEDIUM)


def _parse(**changes: Any) -> Any:
    return SHAPE.parse(json.dumps(PAYLOAD | changes).encode())


def _refused(model: Any, tier: Tier = Tier.LOW) -> str:
    with pytest.raises(DefinitionError) as caught:
        shape_of(model, tier=tier)
    return caught.value.rule


def test_a_plain_model_is_a_contract():
    """The value is an instance of the model; the bytes are canonical, and stable."""
    parsed = _parse()

    assert isinstance(parsed.value, Order)
    assert SHAPE.model is Order
    assert parsed == SHAPE.parse(parsed.canonical)
    assert b'{"at":"2026-01-01T00:00:00Z","colour":"red","customer":"acme"' == parsed.canonical[:61]


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 1.0},
        {"ratio": 1},
        {"at": "2026-01-01T07:00:00+07:00"},
        {"ident": "6F1C3C1E0F5E4B449A350D5A3B1F2C3D"},
        {"many": []},
    ],
    ids=str,
)
def test_spelling_does_not_change_the_digest(changes):
    """Aliases of number, time and UUID are one payload, as for msgspec contracts."""
    assert _parse().digest == _parse(**changes).digest


@pytest.mark.parametrize(
    "changes, rule, field",
    [
        ({"number": "1"}, "P-type", "number"),
        ({"number": True}, "P-type", "number"),
        ({"nope": 1}, "P-unknown", "nope"),
        ({"inner": {"someNumber": "1"}}, "P-type", "inner.someNumber"),
        ({"inner": {"someNumber": 1, "x": 1}}, "P-unknown", "inner.x"),
        ({"inner": {"some_number": 1}}, "P-missing", "inner.someNumber"),
        ({"at": "2026-01-01T00:00:00"}, "P-timezone", ""),
        ({"at": 5}, "P-type", "at"),
        ({"customer": "acme\n"}, "P-text", "customer"),
        ({"customer": "A"}, "P-value", "customer"),
        ({"colour": "green"}, "P-value", "colour"),
    ],
    ids=str,
)
def test_models_are_forced_strict(changes, rule, field):
    """What a lax model would coerce or ignore is refused."""
    with pytest.raises(Malformed) as caught:
        _parse(**changes)

    assert (rule, field) == (caught.value.rule, caught.value.field)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "1e999"])
def test_numbers_are_finite(token):
    """Pydantic accepts these; the parser in front does not."""
    with pytest.raises(Malformed, match="P-number"):
        SHAPE.parse(json.dumps(PAYLOAD).replace("{", f'{{"ratio":{token},', 1).encode())


def test_messages_are_not_passed_on():
    """Pydantic quotes its input; the refusal neither quotes nor refers to it."""
    for changes in ({"number": CANARY}, {"customer": CANARY}, {"colour": CANARY}, {"inner": {"someNumber": CANARY}}):
        with pytest.raises(Malformed) as caught:
            _parse(**changes)

        assert CANARY not in "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
        assert caught.value.__context__ is None


def test_references_and_summaries_work_alike():
    """Marks in Annotated are read from pydantic fields too."""
    parsed = _parse()

    assert ("customer:acme",) == SHAPE.targets(parsed) == SHAPE.resources(parsed, ["customer"])
    assert ("acme", {"type": "integer"}) == (SHAPE.summary(parsed)["customer"], SHAPE.summary(parsed)["number"])
    assert "inner" == SHAPE.path("inner").dotted
    assert "customer" in SHAPE.json_schema()["properties"]


def test_instances_and_mappings_are_read():
    """A value made in Python passes the same parser; one made without validation is refused."""
    parsed = _parse()

    assert parsed == SHAPE.parse_value(parsed.value) == SHAPE.parse_value(PAYLOAD)
    for bad in (
        Order.model_construct(number="1"),
        Order.model_construct(None, **PAYLOAD, ratio=float("nan")),
        {"number": b"1"},
    ):
        with pytest.raises(Malformed):
            SHAPE.parse_value(bad)


class Lax(BaseModel):
    number: int


LOOSE: list[dict[str, Any]] = [
    {"extra": "allow"},
    {"extra": "ignore"},
    {"strict": False},
    {"allow_inf_nan": True},
    {"coerce_numbers_to_str": True},
    {"arbitrary_types_allowed": True},
    {"populate_by_name": True, "validate_by_name": True},
    {"str_strip_whitespace": True},
]


@pytest.mark.parametrize("config", LOOSE, ids=str)
def test_written_out_looseness_is_refused(config):
    """A model that says it is loose is not silently made strict."""
    model = type(
        "Loose",
        (BaseModel,),
        {"model_config": ConfigDict(**config), "__annotations__": {"number": int}, "__module__": __name__},
    )

    assert "D-strict" == _refused(model)


@pytest.mark.parametrize("annotation", [Lax, list[Lax], Lax | None, dict[str, Lax]], ids=str)
def test_nested_models_must_be_strict_themselves(annotation):
    """Configuration does not reach nested models, so a lax one is refused: it would take "1" for 1 and any field."""
    model = type("Outer", (BaseModel,), {"__annotations__": {"inner": annotation}, "__module__": __name__})

    assert "D-strict" == _refused(model)


def test_fields_that_read_otherwise_than_they_write_are_refused():
    """Two names for one field, or a field that switches strictness off."""

    class Aliased(BaseModel):
        number: int = Field(validation_alias=AliasChoices("a", "b"))

    class Written(BaseModel):
        number: int = Field(serialization_alias="other")

    class Soft(BaseModel):
        number: int = Field(strict=False)

    class Ignored(BaseModel):
        name: Slug

    assert ["D-strict"] * 4 == [_refused(model) for model in (Aliased, Written, Soft, Ignored)]


def test_definition_rules_hold_for_models():
    """Names, secrets, free text, types and defaults are judged as for msgspec contracts."""

    class Names(BaseModel):
        command: int

    class Secrets(BaseModel):
        value: SecretStr

    class Free(BaseModel):
        text: str

    class Money(BaseModel):
        amount: Decimal

    class Computed(BaseModel):
        number: int = Field(default_factory=lambda: 5)

    class Mutable(BaseModel):
        many: tuple[int, ...] | list[int] = [1]

    class Unanchored(BaseModel):
        text: str = Field(pattern="[a-z]")

    class Open(BaseModel):
        text: str = Field(pattern="^[a-z]", max_length=5)

    rules = ["D-names", "D-secret", "D-free-text", "D-type", "D-default", "D-pattern", "D-pattern"]
    assert rules == [_refused(model, Tier.HIGH) for model in (Names, Secrets, Free, Money, Computed, Unanchored, Open)]
    assert "D-default" == _refused(Mutable)


def test_models_that_do_not_read_what_they_write_are_refused():
    """A serializer or validator that is not stable would give one payload two digests."""

    class Growing(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def grow(cls, text: str) -> str:
            return text + "x"

    class Other(BaseModel):
        number: int

        @field_serializer("number")
        def write(self, number: int) -> str:
            return str(number)

    for model, raw in ((Growing, b'{"text":"a"}'), (Other, b'{"number":1}')):
        with pytest.raises(Malformed):
            shape_of(model, tier=Tier.LOW).parse(raw)


def test_validators_that_fail_in_their_own_way_refuse():
    """An exception of any class in a validator is a refusal without its words."""

    class Failing(BaseModel):
        text: str

        @field_validator("text")
        @classmethod
        def fail(cls, text: str) -> str:
            raise KeyError(text)

    with pytest.raises(Malformed, match="P-value") as caught:
        shape_of(Failing, tier=Tier.LOW).parse(json.dumps({"text": CANARY}).encode())

    assert CANARY not in str(caught.value)


def test_pydantic_is_not_imported_for_others():
    """Who uses no pydantic model does not pay for importing it."""
    code = (
        "import sys; from benteng.contract import Contract, shape_of; from benteng.policy import Tier\n"
        "class C(Contract):\n    a: int\n"
        "s = shape_of(C, tier=Tier.LOW); s.parse(b'{\"a\":1}'); s.schema_digest; print('pydantic' in sys.modules)"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False" == result.stdout.strip()
