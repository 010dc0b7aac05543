"""The strict parser: what it refuses, under which rule, and in which order."""

import contextlib
import json
import time
import traceback
from typing import Annotated, Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta

from benteng.contract import Contract, HostName, PayloadLimits, Shape, extract_from_bytes, shape_of
from benteng.contract.parser import DEPTH_CAP, SAFE_INTEGER, read
from benteng.errors import DefinitionError, Malformed
from benteng.policy import Tier

CANARY = "hunter2-canary"


class Loose(Contract):
    text: str = ""
    number: int = 0
    ratio: float = 0.0
    data: Any = None
    notes: Annotated[str, Meta(max_length=6_000)] = ""


@pytest.fixture
def shape() -> Shape:
    """A contract with a field for each kind of check."""
    return shape_of(Loose, tier=Tier.LOW)


def _refusal(shape: Shape, raw: bytes) -> Malformed:
    with pytest.raises(Malformed) as caught:
        shape.parse(raw)
    return caught.value


class Bag(Contract):
    data: Any


def _text_of(size: int) -> bytes:
    """A payload of exactly `size` bytes."""
    filler = '"' + "x" * 4_000 + '",'
    head, tail = '{"data":[', "]}"
    count = (size - len(head) - len(tail) - 10) // len(filler)
    rest = size - len(head) - len(tail) - count * len(filler) - 2
    return (head + filler * count + '"' + "x" * rest + '"' + tail).encode()


@pytest.mark.parametrize("size", [65_535, 65_536])
def test_payload_up_to_the_limit_is_read(size):
    """C95: a payload of limit - 1 and of limit bytes is accepted."""
    shape = shape_of(Bag, tier=Tier.LOW)
    raw = _text_of(size)

    assert size == len(raw)
    assert raw == shape.parse(raw).canonical


@pytest.mark.parametrize("size", [65_537, 100_000_000])
def test_larger_payload_is_refused_before_decoding(shape, size):
    """C95: one byte more, or 100 MB of anything, is refused by its length alone, and the limit is in the error."""
    raw = b"\xff" * size  # not even UTF-8: nobody looked inside

    error = _refusal(shape, raw)

    assert "P-bytes" == error.rule
    assert "65536" in error.reason


def test_defaults_count_towards_the_size():
    """A payload that its defaults make larger than the limit is refused: no canonical form is too big."""

    class Padded(Contract):
        a: int = 1
        pad: str = "x" * 50

    shape = shape_of(Padded, tier=Tier.LOW, limits=PayloadLimits(payload_bytes_max=40))

    assert "P-bytes" == _refusal(shape, b"{}").rule


@pytest.mark.parametrize("raw", [b'{"text":"\xff"}', b'{"text":"\xc0\xaf"}', b'{"text":"\xed\xa0\x80"}', b"\xff\xfe{"])
def test_invalid_utf8_is_refused(shape, raw):
    """Bad, overlong and surrogate sequences are no UTF-8."""
    assert "P-utf8" == _refusal(shape, raw).rule


@pytest.mark.parametrize("depth", [8, 9, 100, 30_000])
@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_depth_is_counted_before_parsing(shape, depth, bracket):
    """C92: nesting deeper than 8 is a typed refusal, however deep; 8 is fine."""
    opening = bracket[0] if bracket == "[]" else '{"data":'
    inner = opening * (depth - 1) + ("1" if bracket == "{}" else "") + bracket[1] * (depth - 1)
    raw = ('{"data":' + inner + "}").encode()
    limits = PayloadLimits(payload_bytes_max=1_000_000)

    if depth == 8:
        assert {"data"} == set(cast("dict[str, object]", read(raw, limits)))
    else:
        with pytest.raises(Malformed, match="P-depth"):
            read(raw, limits)


def test_brackets_in_strings_are_not_depth(shape):
    """C92: brackets inside strings, also behind escaped quotes, do not count."""
    text = '[[[[[[[[[[{{{{{{{{{{\\" [[[[[[[[['
    raw = json.dumps({"text": text}).encode()

    assert text == shape.parse(raw).value.text


def _array(item: bytes, count: int) -> bytes:
    return b'{"data":[' + b",".join([item] * count) + b"]}"


WORST = {
    "unterminated": b'"' + b'\\"' * 32_000,
    "quotes": b'"' * 65_000,
    "brackets": b'{"data":' + b"[]" * 32_000,
    "empty-lists": _array(b"[]", 21_000),
    "duplicate-last": ("{" + "".join(f'"{key:x}":1,' for key in range(6_400)) + '"18ff":1}').encode(),
    "combining": _array(('"a' + "\u0301\u0316" * 1_900 + '"').encode(), 7),
    "sorted-combining": _array(('"a' + "\u0316" * 2_000 + "\u0301" * 1_900 + '"').encode(), 7),
    "floats": _array(b"0." + b"1" * 60, 1_000),
    "tiny-floats": _array(b"1" * 57 + b"e-400", 1_000),
    "digits": b'{"data":' + b"1" * 65_000 + b"}",
    "objects": _array(b'{"a":{"b":{"c":[1,2]}}}', 1_000),
    "host-names": _array(b'"' + b"a-" * 126 + b'"', 240),
}


@pytest.mark.parametrize("name", sorted(WORST))
def test_the_worst_payloads_cost_little(name):
    """64 KiB made to cost time take less than 50 ms of CPU: every step is linear."""

    class Hosts(Contract):
        data: list[HostName | None]

    shapes = [shape_of(model, tier=Tier.LOW) for model in (Bag, Hosts)]
    assert len(WORST[name]) <= 65_536

    spent = [min(_seconds(shape, WORST[name]) for _ in range(3)) for shape in shapes]

    assert max(spent) < 0.05


def _seconds(shape: Shape, raw: bytes) -> float:
    start = time.process_time()
    with contextlib.suppress(Malformed):
        shape.parse(raw)
    return time.process_time() - start


def test_depth_has_a_hard_cap():
    """No contract may allow more than 32 levels."""
    assert DEPTH_CAP == PayloadLimits(depth_max=DEPTH_CAP).depth_max
    with pytest.raises(DefinitionError, match="32"):
        PayloadLimits(depth_max=DEPTH_CAP + 1)
    with pytest.raises(DefinitionError):
        PayloadLimits(items_max=0)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"number":1,"number":2}',
        b'{"number":1,"\\u006eumber":2}',
        b'{"data":{"a":1,"a":1}}',
        b'{"data":[{"x":{"a":1,"b":2,"a":3}}]}',
    ],
)
def test_duplicate_keys_are_refused_at_any_depth(shape, raw):
    """One key twice, also spelled with an escape, also with the same value, is refused."""
    assert "P-duplicate" == _refusal(shape, raw).rule


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0." + "1" * 70])
@pytest.mark.parametrize("field", ["ratio", "data", "number"])
def test_numbers_that_no_double_holds_are_refused(shape, token, field):
    """C87: NaN, the infinities, overflow and overlong tokens are refused in every field."""
    assert "P-number" == _refusal(shape, f'{{"{field}":{token}}}'.encode()).rule


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**53 + 1, 2**63 - 1, 10**30, 2**80])
def test_unsafe_integers_are_refused(shape, value):
    """C88: an integer that a JSON viewer, Lua or JavaScript would round is refused, typed or not."""
    assert "P-integer" == _refusal(shape, f'{{"number":{value}}}'.encode()).rule
    assert "P-integer" == _refusal(shape, f'{{"data":[{value}]}}'.encode()).rule


@pytest.mark.parametrize("value", [SAFE_INTEGER, -SAFE_INTEGER])
def test_safe_integers_are_read(shape, value):
    """The bounds themselves are exact."""
    assert value == shape.parse(f'{{"number":{value}}}'.encode()).value.number


def test_long_digit_strings_are_refused_by_length(shape):
    """60,000 digits are not converted: Python would refuse to, with another error."""
    assert "P-integer" == _refusal(shape, b'{"number":' + b"9" * 60_000 + b"}").rule


@pytest.mark.parametrize("count", [1_000, 1_001])
def test_collections_are_bounded(shape, count):
    """A list or object holds at most 1000 entries."""
    as_list = json.dumps({"data": [0] * count}).encode()
    as_map = json.dumps({"data": {str(key): 0 for key in range(count)}}).encode()

    if count == 1_000:
        assert count == len(shape.parse(as_list).value.data)
        assert count == len(shape.parse(as_map).value.data)
    else:
        assert ["P-items", "P-items"] == [_refusal(shape, raw).rule for raw in (as_list, as_map)]


def test_strings_are_bounded_by_their_own_field(shape):
    """A plain str holds 4096 characters even where another field of the contract declares more."""
    assert 4_096 == len(shape.parse(json.dumps({"text": "x" * 4_096}).encode()).value.text)
    assert 6_000 == len(shape.parse(json.dumps({"notes": "x" * 6_000}).encode()).value.notes)
    assert ("P-length", "text") == _rule_and_field(_refusal(shape, json.dumps({"text": "x" * 4_097}).encode()))
    assert "P-length" == _refusal(shape, json.dumps({"notes": "x" * 6_001}).encode()).rule


def _rule_and_field(error: Malformed) -> tuple[str, str]:
    return error.rule, error.field


FORBIDDEN = [
    *(chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)]),
    *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c",
    *"\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e\u2028\u2029\ufff9\U000e0041\ufffe\ud800\udfff",
]


@pytest.mark.parametrize("character", FORBIDDEN, ids=lambda character: f"U+{ord(character):04X}")
def test_invisible_characters_are_refused(shape, character):
    """C85, C90: NUL, controls, bidi, zero-width and surrogates are refused in values, keys and below, with the path."""
    escaped = "".join(f"\\u{unit:04x}" for unit in _utf16(character))

    in_value = _refusal(shape, f'{{"text":"a{escaped}b"}}'.encode())
    in_key = _refusal(shape, f'{{"data":{{"a{escaped}b":1}}}}'.encode())
    below = _refusal(shape, f'{{"data":[[1,"{escaped}"]]}}'.encode())

    assert ("P-text", "text") == _rule_and_field(in_value)
    assert ("P-text", "data[...]") == _rule_and_field(in_key)
    assert ("P-text", "data[0][1]") == _rule_and_field(below)


def _utf16(character: str) -> list[int]:
    raw = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


def test_raw_control_characters_are_no_json(shape):
    """A raw newline or NUL byte inside a string is refused by JSON itself."""
    assert "P-json" == _refusal(shape, b'{"text":"a\nb"}').rule
    assert "P-json" == _refusal(shape, b'{"text":"a\x00b"}').rule


def test_text_must_be_nfc(shape):
    """C98: `e` with a combining accent is refused, the one code point is read: one text has one spelling."""
    assert ("P-nfc", "text") == _rule_and_field(_refusal(shape, '{"text":"cafe\u0301"}'.encode()))
    assert "P-nfc" == _refusal(shape, '{"data":{"e\u0301":1}}'.encode()).rule
    assert "caf\u00e9" == shape.parse('{"text":"caf\u00e9"}'.encode()).value.text


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"{", b"{} {}", b"\xef\xbb\xbf{}", b"{'a':1}", b'{"a":1,}', b"{number:1}", b"01", b"+1", b"[1", b"nul"],
)
def test_what_is_no_json_is_refused(shape, raw):
    """Extensions of JSON, trailing data and byte order marks are refused."""
    assert "P-json" == _refusal(shape, raw).rule


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"x"', b"null", b"true"])
def test_payload_must_be_an_object(shape, raw):
    """Another JSON value is of the wrong type."""
    assert "P-type" == _refusal(shape, raw).rule


@given(st.binary(max_size=400) | st.text(alphabet='{}[]",:\\u0123456789eE.-+ntf \u202e', max_size=400).map(str.encode))
@example(b'{"text":' * 7)
def test_any_bytes_are_read_or_refused_quickly(raw):
    """The parser raises nothing but Malformed, whatever the bytes, and takes less than 50 ms."""
    shape = shape_of(Loose, tier=Tier.LOW)

    assert any(_seconds(shape, raw) < 0.05 for _ in range(3))  # once more: a garbage collection is not the parser's


PLAIN = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x2FF, exclude_characters="\x7f\xad"), max_size=8)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-SAFE_INTEGER, SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PLAIN, inner, max_size=4),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_what_is_read_is_what_json_reads(value):
    """Differential: an accepted text has the value that the standard parser gives it."""
    raw = json.dumps(value).encode()

    try:
        mine = read(raw)
    except Malformed:
        return

    assert json.loads(raw) == mine


def told(raw):
    """Return what the parser says: the value with its types, or the rule and the field that it refuses."""
    try:
        return repr(read(raw, PayloadLimits(payload_bytes_max=20_000, items_max=20, text_max=20), KNOWN))
    except Malformed as refusal:
        return refusal.rule, refusal.field


KNOWN = frozenset({"a", "b"})
ODD = [
    *(1.0, 2.0**60, -0.0, 0.1, 1e300, SAFE_INTEGER, SAFE_INTEGER + 1, -SAFE_INTEGER - 1, 10**40),
    *("x" * 20, "x" * 21, "\0", "\x7f", "\u202e", "e\u0301", "\u00e9", "\ud800", '"', "\\"),
    *(list(range(20)), list(range(21)), [[[[[[[[]]]]]]]], dict.fromkeys(map(str, range(21)), 0)),
]
COMPACT = st.dictionaries(st.sampled_from("ab") | PLAIN, JSON_VALUES | st.sampled_from(ODD), max_size=3)


@pytest.mark.parametrize("odd", ODD, ids=map(str, range(len(ODD))))
def test_odd_values_are_told_alike_by_the_short_way(odd):
    """One odd value in bytes that an encoder could have written: the answer is that of bytes with a space in them."""
    raw = json.dumps({"a": [odd]}, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")

    assert told(b" " + raw) == told(raw)


@given(COMPACT.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))))
@example('{"a":1,"a":1}')
@example('{"a":1,"a":2,"b":NaN}')
@example('{"a":-0}')
@example('{"a":1e2}')
@example('{"a":1E+2}')
@example('{"a":1e999}')
@example('{"a":0.1000}')
@example('{"a":"\\u0041"}')
@example('{"a":"\\/"}')
@example('{"a":"\t"}')
@example('{"a":' + "9" * 5_000 + "}")
@example('{"a":' + "[" * 5_000 + "]" * 5_000 + "}")
def test_the_short_way_says_what_the_long_way_says(text):
    """What an encoder could have written is read in a short way, unless a space makes it odd: with the same answer."""
    raw = text.encode(errors="surrogatepass")

    assert told(b" " + raw) == told(raw)


@given(JSON_VALUES)
def test_ordinary_values_are_accepted(value):
    """Flat, clean values are never refused, so that the differential test compares something."""
    raw = json.dumps({"data": value}).encode()
    depth = str(value).count("[") + str(value).count("{")
    if depth > 6 or any(0x7F <= ord(sign) < 0xA0 for sign in str(value)) or "\\x" in repr(value):
        return

    assert {"data": json.loads(json.dumps(value))} == read(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"text":"CANARY\\u0000"}',
        b'{"text":"CANARY',
        b'{"number":"CANARY"}',
        b'{"data":{"CANARY":"\\u202e"}}',
        b'{"data":{"CANARY":1,"CANARY":2}}',
        b'{"ratio":"CANARY"}',
        b'{"text":"CANARY\xff"}',
        b'{"text":"CANARY","data":[[[[[[[[[[1]]]]]]]]]]}',
    ],
)
def test_refusals_carry_no_value(shape, raw):
    """Neither message, arguments, cause, context nor traceback shows or refers to what the payload holds."""
    error = _refusal(shape, raw.replace(b"CANARY", CANARY.encode()))

    shown = "".join(traceback.format_exception(error)) + repr(error.__dict__) + repr(error.args)
    assert CANARY not in shown
    assert error.__cause__ is None
    assert error.__context__ is None
    assert error.fix


def test_name_of_an_unknown_field_is_cleaned(shape):
    """An unknown field is named, in 64 harmless characters at most."""
    error = _refusal(shape, json.dumps({"\u00fc<b>" + "x" * 100: 1}).encode())

    assert ("P-unknown", "??b?" + "x" * 60) == _rule_and_field(error)


def test_extraction_is_strict():
    """The supervisor reads values from bytes with the same parser, and a missing path is refused."""
    raw = b'{"a":{"b":[1,2],"c":null}}'

    assert [1, 2] == extract_from_bytes(raw, "a.b")
    assert extract_from_bytes(raw, "a.c") is None
    for dotted in ("a.x", "a.b.c", "a.c.d", "", "b"):
        with pytest.raises(Malformed, match="P-missing"):
            extract_from_bytes(raw, dotted)
    with pytest.raises(Malformed, match="P-duplicate"):
        extract_from_bytes(b'{"a":1,"a":2}', "a")
