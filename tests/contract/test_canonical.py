"""Canonical bytes: one payload has one encoding, whatever its spelling, and it is stable."""

import itertools
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benteng.contract import Artifact, Contract, Money, PayloadLimits, Slug, Window, shape_of
from benteng.contract.parser import SAFE_INTEGER, read
from benteng.errors import Malformed
from benteng.policy import Tier


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Contract, rename="camel"):
    some_number: int
    ratio: float = 1.0


class Timeless(Contract):
    """All that a contract may hold but moments: written without a look for them."""

    number: int
    ratio: float
    text: str
    day: date
    ident: UUID
    amount: Money
    colour: Colour
    size: Literal["s", "m"]
    flag: bool
    inner: Inner
    many: list[Slug]
    table: dict[str, int]
    maybe: int | None = None
    artifact: Artifact | None = None


class Everything(Timeless, kw_only=True):
    at: datetime


PAYLOAD: dict[str, Any] = {
    "number": 1,
    "ratio": 2.5,
    "text": "halo dunia",
    "at": "2026-01-01T00:00:00Z",
    "day": "2026-01-01",
    "ident": "6f1c3c1e-0f5e-4b44-9a35-0d5a3b1f2c3d",
    "amount": "12.5",
    "colour": "red",
    "size": "s",
    "flag": True,
    "inner": {"someNumber": 1},
    "many": ["a", "b"],
    "table": {"b": 1, "a": 2},
}
EVERYTHING = shape_of(Everything, tier=Tier.MEDIUM)


def _digest(**changes: Any) -> str:
    return EVERYTHING.parse(json.dumps(PAYLOAD | changes).encode()).digest


def test_key_order_does_not_change_the_digest():
    """C98: every order of the keys, at every level, gives the same bytes."""

    class Pair(Contract):
        a: int
        b: dict[str, int]
        c: Inner

    shape = shape_of(Pair, tier=Tier.LOW)
    value = {"a": 1, "b": {"x": 1, "y": 2}, "c": {"someNumber": 1, "ratio": 2}}
    orders = itertools.permutations(value.items())

    raws = [json.dumps(dict(order)) for order in orders]
    raws += [json.dumps({**value, "b": {"y": 2, "x": 1}, "c": {"ratio": 2, "someNumber": 1}}, indent=2)]

    canonical = b'{"a":1,"b":{"x":1,"y":2},"c":{"ratio":2.0,"someNumber":1}}'
    assert {canonical} == {shape.parse(raw.encode()).canonical for raw in raws}


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 1.0},
        {"maybe": None},
        {"ratio": 2.50},
        {"at": "2026-01-01T00:00:00+00:00"},
        {"at": "2026-01-01T07:00:00+07:00"},
        {"at": "2026-01-01T00:00:00.000Z"},
        {"at": "2025-12-31T19:00:00-05:00"},
        {"ident": "6F1C3C1E-0F5E-4B44-9A35-0D5A3B1F2C3D"},
        {"ident": "6f1c3c1e0f5e4b449a350d5a3b1f2c3d"},
        {"amount": "12.50"},
        {"amount": "12.5000"},
        {"table": {"a": 2, "b": 1}},
        {"inner": {"ratio": 1, "someNumber": 1}},
    ],
    ids=str,
)
def test_spelling_does_not_change_the_digest(changes):
    """C98: 1 and 1.0, UTC and offsets, UUID spellings, trailing zeros and written-out defaults are one payload."""
    assert _digest() == _digest(**changes)


@pytest.mark.parametrize(
    "changes", [{"number": 2}, {"at": "2026-01-01T00:00:01Z"}, {"amount": "-12.5"}, {"many": ["b", "a"]}]
)
def test_meaning_changes_the_digest(changes):
    """What means something else has another digest; the order of a list means something."""
    assert _digest() != _digest(**changes)


def test_minus_zero_is_zero():
    """-0.0, -0 and -0e5 are 0, as amount too."""
    raws = [json.dumps(PAYLOAD).replace("2.5,", f"{zero},") for zero in ("0", "0.0", "-0.0", "-0", "-0e5")]

    assert 1 == len({EVERYTHING.parse(raw.encode()).digest for raw in raws})
    assert _digest(amount="0") == _digest(amount="-0.00")


def test_value_is_what_the_cell_will_see():
    """The value comes from the canonical bytes: the cell, which parses those, holds an equal one, in UTC."""
    parsed = EVERYTHING.parse(json.dumps(PAYLOAD | {"at": "2026-01-01T07:00:00+07:00"}).encode())

    assert EVERYTHING.parse(parsed.canonical) == parsed
    assert UTC == parsed.value.at.tzinfo
    assert Decimal("12.5") == parsed.value.amount


@pytest.mark.parametrize("at", ["2026-01-01T00:00:00", "2026-01-01", "2026-13-01T00:00:00Z", 5, "", "now"])
def test_datetime_needs_a_time_zone(at):
    """A naive or malformed datetime is refused; nothing guesses a zone."""
    with pytest.raises(Malformed, match=r"P-(timezone|value|type)"):
        _digest(at=at)


def test_datetime_must_stay_in_the_calendar():
    """An instant that has no UTC date is refused, not an overflow."""
    with pytest.raises(Malformed, match="P-timezone"):
        _digest(at="0001-01-01T00:00:00+14:00")
    with pytest.raises(Malformed, match="P-timezone"):
        _digest(at="9999-12-31T23:59:59-14:00")


@pytest.mark.parametrize(
    "changes, rule, field",
    [
        ({"number": "1"}, "P-type", "number"),
        ({"number": 1.5}, "P-type", "number"),
        ({"number": True}, "P-type", "number"),
        ({"flag": 1}, "P-type", "flag"),
        ({"text": 1}, "P-type", "text"),
        ({"text": None}, "P-type", "text"),
        ({"ratio": "2.5"}, "P-type", "ratio"),
        ({"amount": 12.5}, "P-money", "amount"),
        ({"amount": 12}, "P-money", "amount"),
        ({"colour": "green"}, "P-value", "colour"),
        ({"size": "xl"}, "P-value", "size"),
        ({"ident": "urn:uuid:6f1c3c1e-0f5e-4b44-9a35-0d5a3b1f2c3d"}, "P-value", "ident"),
        ({"ident": "{6f1c3c1e-0f5e-4b44-9a35-0d5a3b1f2c3d}"}, "P-value", "ident"),
        ({"inner": {"someNumber": "1"}}, "P-type", "inner.someNumber"),
        ({"inner": {"some_number": 1}}, "P-unknown", "inner.some_number"),
        ({"inner": {"someNumber": 1, "command": "x"}}, "P-unknown", "inner.command"),
        ({"inner": {}}, "P-missing", "inner.someNumber"),
        ({"many": ["a", "B"]}, "P-type", "many[1]"),
        ({"many": "a"}, "P-type", "many"),
        ({"table": {"a": "1"}}, "P-type", "table[...]"),
        ({"command": "rm"}, "P-unknown", "command"),
        ({"artifact": {"id": "a", "sha256": "a" * 64, "path": "/x"}}, "P-unknown", "artifact.path"),
    ],
    ids=str,
)
def test_conversion_is_strict(changes, rule, field):
    """Nothing is coerced, nothing extra is taken, and the refusal names rule and field."""
    with pytest.raises(Malformed) as caught:
        _digest(**changes)

    assert (rule, field) == (caught.value.rule, caught.value.field)


MOMENTS = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.timezones())  # noqa: DTZ001 - hypothesis adds the zone
SLUGS = st.from_regex(r"\A[a-z0-9][a-z0-9._\-]{0,20}\Z")
WORDS = st.text(st.characters(categories=["L", "N", "P"], max_codepoint=0x24F), max_size=20)


@given(
    st.fixed_dictionaries(
        {
            "number": st.integers(-SAFE_INTEGER, SAFE_INTEGER),
            "ratio": st.floats(allow_nan=False, allow_infinity=False),
            "text": WORDS,
            "at": MOMENTS,
            "day": st.dates(),
            "ident": st.uuids(),
            "amount": st.decimals(-999, 999, places=4).map(lambda amount: f"{amount:f}"),
            "colour": st.sampled_from(Colour),
            "many": st.lists(SLUGS, max_size=5),
            "table": st.dictionaries(WORDS, st.integers(-9, 9), max_size=5),
            "maybe": st.none() | st.integers(-9, 9),
        }
    )
)
def test_parsing_the_canonical_bytes_changes_nothing(changes):
    """parse(canonical).canonical == canonical, for values given in Python as well."""
    try:
        once = EVERYTHING.parse_value(
            PAYLOAD | {"at": datetime(2026, 1, 1, tzinfo=UTC), "day": date(2026, 1, 1)} | changes
        )
    except Malformed:
        assume(False)  # text that is not NFC: the only thing that these values can have wrong
        return

    assert EVERYTHING.parse(once.canonical) == once
    assert EVERYTHING.parse_value(once.value) == once
    assert json.loads(once.canonical)["number"] == changes["number"]


@given(
    st.fixed_dictionaries(
        {
            "number": st.integers(-SAFE_INTEGER, SAFE_INTEGER),
            "ratio": st.floats(allow_nan=False, allow_infinity=False),
            "amount": st.decimals(-999, 999, places=4).map(lambda amount: f"{amount:f}"),
            "colour": st.sampled_from(Colour),
            "table": st.dictionaries(SLUGS, st.integers(-9, 9), max_size=5),
            "artifact": st.none() | st.just({"id": "a", "sha256": "0" * 64}),
        }
    )
)
def test_contracts_with_and_without_moments_write_alike(changes):
    """A moment among the fields changes how the bytes are made, and none of them."""
    payload = PAYLOAD | {"day": date(2026, 1, 1)} | changes
    payload.pop("at")

    timed = EVERYTHING.parse_value(payload | {"at": datetime(2026, 1, 1, tzinfo=UTC)})

    timeless = shape_of(Timeless, tier=Tier.MEDIUM).parse_value(payload)
    assert timed.canonical.replace(b'"at":"2026-01-01T00:00:00Z",', b"") == timeless.canonical


def test_a_moment_in_an_untyped_field_is_in_utc():
    """`Any` may be given a datetime in Python: it has one spelling too."""

    class Free(Contract):
        data: dict[str, Any]

    there = datetime(2026, 1, 1, 7, tzinfo=timezone(timedelta(hours=7)))

    assert (
        b'{"data":{"at":"2026-01-01T00:00:00Z"}}'
        == shape_of(Free, tier=Tier.LOW).parse_value({"data": {"at": there}}).canonical
    )


def test_contracts_that_do_not_read_what_they_write_are_refused():
    """A check that changes what it is given would give one payload two digests."""

    class Growing(Contract):
        text: str

        def __post_init__(self) -> None:
            msgspec.structs.force_setattr(self, "text", self.text + "x")

    with pytest.raises(Malformed, match="does not read back"):
        shape_of(Growing, tier=Tier.LOW).parse(b'{"text":"a"}')


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False), st.lists
    )
)
def test_untyped_values_are_stable_too(value):
    """At LOW `Any` holds numbers whose type no field decides: still one spelling."""

    class Free(Contract):
        data: Any

    shape = shape_of(Free, tier=Tier.LOW, limits=PayloadLimits(depth_max=32))
    try:
        parsed = shape.parse(json.dumps({"data": value}).encode())
    except Malformed:
        assume(False)  # too deep
        return

    assert parsed == shape.parse(parsed.canonical)


class Plain(Contract):
    text: str = ""
    number: int | None = None
    ratio: float | None = None
    at: datetime | None = None
    data: dict[str, int] | None = None


PLAIN = shape_of(Plain, tier=Tier.LOW)
DEEP: list[Any] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    "value, rule",
    [
        pytest.param({"text": b"abc"}, "P-type", id="bytes-for-text"),
        pytest.param({"text": datetime(2026, 1, 1, tzinfo=UTC)}, "P-type", id="datetime-for-text"),
        pytest.param({"text": UUID(int=1)}, "P-type", id="uuid-for-text"),
        pytest.param({"text": Decimal(1)}, "P-type", id="decimal-for-text"),
        pytest.param({"text": "a\x00"}, "P-text", id="nul"),
        pytest.param({"text": "\ud800"}, "P-text", id="surrogate"),
        pytest.param({"ratio": float("nan")}, "P-number", id="nan"),
        pytest.param({"ratio": float("inf")}, "P-number", id="infinity"),
        pytest.param({"number": 2**53}, "P-integer", id="unsafe"),
        pytest.param({"number": 10**400}, "P-integer", id="huge"),
        pytest.param({"data": {1: 1}}, "P-type", id="integer-key"),
        pytest.param({"at": datetime(2026, 1, 1)}, "P-timezone", id="naive"),  # noqa: DTZ001 - that is what is refused
        pytest.param({"data": DEEP}, "P-depth", id="cycle"),
        pytest.param({"data": object()}, "P-value", id="object"),
        pytest.param({"nope": 1}, "P-unknown", id="unknown"),
        pytest.param(Plain(text=cast("str", b"abc")), "P-type", id="instance-bytes"),
        pytest.param(Plain(ratio=float("nan")), "P-number", id="instance-nan"),
        pytest.param(Plain(number=2**60), "P-integer", id="instance-unsafe"),
        pytest.param([], "P-type", id="list"),
        pytest.param(None, "P-type", id="none"),
        pytest.param(object(), "P-type", id="something"),
        pytest.param(Inner(some_number=1), "P-type", id="another-contract"),
    ],
)
def test_values_given_in_python_pass_the_same_parser(value, rule):
    """What JSON refuses is refused from Python too: no NaN that becomes null, no bytes that become text."""
    with pytest.raises(Malformed) as caught:
        PLAIN.parse_value(value)

    assert rule == caught.value.rule
    assert caught.value.__context__ is None


def test_keys_given_in_python_are_strings():
    """Where no field decides the key's type, an integer key is refused all the same, not written as text."""

    class Free(Contract):
        data: Any

    with pytest.raises(Malformed, match="P-type"):
        shape_of(Free, tier=Tier.LOW).parse_value({"data": {"a": {1: 1}}})


def test_values_given_in_python_are_read():
    """An instance, a dict and any other mapping give the same payload as its bytes."""
    at = datetime(2026, 1, 1, 7, tzinfo=timezone(timedelta(hours=7)))
    expected = PLAIN.parse(b'{"text":"x","at":"2026-01-01T00:00:00Z"}')

    assert expected == PLAIN.parse_value(Plain(text="x", at=at))
    assert expected == PLAIN.parse_value({"text": "x", "at": at})
    assert expected == PLAIN.parse_value(MappingProxyType({"text": "x", "at": "2026-01-01T07:00:00+07:00"}))


def test_bytes_below_high_are_base64():
    """Bytes are carried as base64 text below HIGH, in one spelling."""

    class Blob(Contract):
        blob: Annotated[bytes, "documented"]

    shape = shape_of(Blob, tier=Tier.MEDIUM)

    assert b"abc" == shape.parse(b'{"blob":"YWJj"}').value.blob
    assert shape.parse(b'{"blob":"YWJj"}') == shape.parse_value(Blob(blob=b"abc"))


def test_reading_twice_gives_the_same_error():
    """Gate and cell refuse the same bytes under the same rule."""
    refused = []
    for _ in range(2):
        with pytest.raises(Malformed) as caught:
            read(b'{"a":[1,{"b":NaN}]}')
        refused.append(str(caught.value))

    assert refused[0] == refused[1]


def test_window_is_half_open_and_ordered():
    """Start belongs to the window, end does not; reversed and empty windows are refused."""

    class Open(Contract):
        window: Window

    shape = shape_of(Open, tier=Tier.HIGH)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    window = shape.parse(b'{"window":{"start":"2026-01-01T12:00:00Z","end":"2026-01-01T13:00:00Z"}}').value.window

    assert [True, False, False] == [noon + timedelta(hours=h) in window for h in (0, 1, -1)]
    for end in ("2026-01-01T12:00:00Z", "2026-01-01T11:59:59Z", "2026-01-01T13:00:00+01:00"):
        with pytest.raises(Malformed, match=r"P-window\] window:"):
            shape.parse(f'{{"window":{{"start":"2026-01-01T12:00:00Z","end":"{end}"}}}}'.encode())
    with pytest.raises(Malformed, match=r"P-timezone\] window\.end"):
        shape.parse(b'{"window":{"start":"2026-01-01T12:00:00Z","end":"2026-01-01T13:00:00"}}')
