"""Read untrusted JSON bytes into plain values, or refuse them with a rule id.

The same checks run in the same order at every door: size, UTF-8, depth, then decoding that refuses duplicate keys,
non-finite and unsafe numbers, then the items and texts found. The depth is counted by a linear scan before any
recursive parser sees the bytes, and no error carries or refers to the payload. Bytes that an encoder gives back as they
are take a short way to the same answer; whatever is not plain there is looked at by the long one, which also names it.

Trust: nothing. Every byte may be chosen by an attacker.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Final, NoReturn, cast
from unicodedata import is_normalized

import msgspec

from benteng.contract.rules import PAYLOAD_RULES, RULES
from benteng.errors import DefinitionError, Malformed

SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that a double holds without gaps (RFC 7493, section 2.2)."""

DEPTH_CAP: Final = 32
"""No contract may allow deeper nesting than this."""

NAME_MAX: Final = 64
"""Characters of an unknown field's name that an error may show."""


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """The bounds of one payload: bytes before decoding, nesting, entries per collection, characters per string.

    Raises DefinitionError: a bound is below 1, or `depth_max` is above `DEPTH_CAP`.
    """

    payload_bytes_max: int = 65_536
    depth_max: int = 8
    items_max: int = 1_000
    text_max: int = 4_096

    def __post_init__(self) -> None:
        bounds = (self.payload_bytes_max, self.depth_max, self.items_max, self.text_max)
        if min(bounds) < 1 or self.depth_max > DEPTH_CAP:
            reason = f"limits must be positive, and depth_max at most {DEPTH_CAP}"
            raise DefinitionError("D-strict", reason, fix=RULES["D-strict"].fix)


DEFAULT_LIMITS: Final = PayloadLimits()


def read(raw: bytes, limits: PayloadLimits = DEFAULT_LIMITS, known: frozenset[str] = frozenset()) -> object:
    """Return the JSON value in `raw`; `known` are the field names that an error may show in a path.

    A number is the IEEE double that it denotes (RFC 7493): 1, 1.0 and 1e0 are the same int, -0.0 is 0.

    Raises Malformed: with a P rule; never with a value of the payload, in message, cause or context.
    """
    try:
        return _read(raw, limits)
    except _Flaw as found:
        flaw = found
    # Raised outside the handler: a context would keep the decoder's error, and with it the whole document.
    raise malformed(flaw.rule, flaw.reason, field=_dotted(flaw.path, known))


def malformed(rule: str, reason: str = "", *, field: str = "") -> Malformed:
    """Return the refusal for a P rule, with the table's words where no better reason is known."""
    entry = PAYLOAD_RULES[rule]
    return Malformed(rule, reason or entry.what, field=field, fix=entry.fix)


def clean_name(name: str) -> str:
    """Return a field name that is safe to show: ASCII word characters, dots and dashes, at most NAME_MAX long."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "?", name[:NAME_MAX])


class _Flaw(Exception):  # noqa: N818 - a finding on its way out, not an error of the program
    def __init__(self, rule: str, reason: str = "", path: tuple[str, ...] = ()) -> None:
        super().__init__(rule)
        self.rule = rule
        self.reason = reason
        self.path = list(path)


def _read(raw: bytes, limits: PayloadLimits) -> object:
    if len(raw) > limits.payload_bytes_max:
        raise _Flaw("P-bytes", f"{len(raw)} bytes, the limit is {limits.payload_bytes_max}")
    tree = _plain_tree(raw, limits)
    return _read_closely(raw, limits) if tree is None else tree


def _plain_tree(raw: bytes, limits: PayloadLimits) -> object | None:
    """Return the value of bytes that are written as our encoder writes, and plain; None: read them closely.

    Written back as they are, they hold no key twice, no space, no odd spelling of a number or a character: what is left
    to look at are the values.
    """
    if raw.count(b"[") + raw.count(b"{") > limits.depth_max:
        return None
    try:
        tree: object = _decode_plain(raw)
        is_plain = _encode_plain(tree) == raw and _is_plain(tree, limits)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return tree if is_plain else None


_decode_plain: Final = msgspec.json.Decoder().decode
_encode_plain: Final = msgspec.json.Encoder().encode


def _is_plain(value: object, limits: PayloadLimits) -> bool:
    kind = type(value)
    if kind is str:
        return _is_plain_text(cast("str", value), limits)
    if kind is int:
        return -SAFE_INTEGER <= cast("int", value) <= SAFE_INTEGER
    if kind is dict:
        return _is_plain_object(cast("dict[str, object]", value), limits)
    if kind is list:
        items = cast("list[object]", value)
        return len(items) <= limits.items_max and all(_is_plain(item, limits) for item in items)
    return value is None or kind is bool or not cast("float", value).is_integer()  # 1.0 is the int 1


def _is_plain_object(value: dict[str, object], limits: PayloadLimits) -> bool:
    for key, item in value.items():
        if not (_is_plain_text(key, limits) and _is_plain(item, limits)):
            return False
    return len(value) <= limits.items_max


def _is_plain_text(text: str, limits: PayloadLimits) -> bool:
    return len(text) <= limits.text_max and text.isascii() and text.isprintable()


def _read_closely(raw: bytes, limits: PayloadLimits) -> object:
    text = _decode(raw)
    _check_depth(text, limits.depth_max)
    tree = _parse(text)
    _check(tree, limits)
    return tree


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "strict")
    except UnicodeDecodeError:
        raise _Flaw("P-utf8") from None


# A string runs to its closing quote or, unterminated, to the end: possessive, so the scan is linear for any input.
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")


def _check_depth(text: str, depth_max: int) -> None:
    if text.count("[") + text.count("{") <= depth_max:  # an upper bound: true for nearly every payload
        return
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > depth_max:
            raise _Flaw("P-depth", f"nested deeper than {depth_max}")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)  # linear: a payload may have thousands of keys
        raise _Flaw("P-duplicate", "the same key twice in one object", (twice[0][0],))
    return result


def _integer(token: str) -> int:
    if len(token) > len(str(-SAFE_INTEGER)):  # before int(): a long digit string costs quadratic time
        raise _Flaw("P-integer")
    value = int(token)
    if abs(value) > SAFE_INTEGER:
        raise _Flaw("P-integer")
    return value


def _float(token: str) -> float | int:
    if len(token) > 64:  # noqa: PLR2004 - PAYLOAD_RULES["P-number"] says it
        raise _Flaw("P-number", "a number token over 64 characters")
    value = float(token)
    if not math.isfinite(value):
        raise _Flaw("P-number")
    return int(value) if value.is_integer() and abs(value) <= SAFE_INTEGER else value


def _constant(_token: str) -> NoReturn:
    raise _Flaw("P-number", "NaN and Infinity are not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)


def _parse(text: str) -> object:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        reason = f"not JSON at line {error.lineno} column {error.colno}"
    raise _Flaw("P-json", reason)


# A fixed set, not Unicode categories: gate and cell may run Pythons with different Unicode tables.
# C0, DEL and C1; soft hyphen; Arabic letter mark; Mongolian separator; zero width, marks, separators, bidi; invisible
# operators; surrogates; byte order mark; interlinear marks; noncharacters; tags.
_FORBIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)


def _check_text(text: str, text_max: int) -> None:
    if len(text) > text_max:
        raise _Flaw("P-length", f"{len(text)} characters, the limit is {text_max}")
    if text.isascii() and text.isprintable():
        return
    if _FORBIDDEN.search(text):
        raise _Flaw("P-text")
    if not is_normalized("NFC", text):
        raise _Flaw("P-nfc")


def _check(value: object, limits: PayloadLimits) -> None:
    if isinstance(value, str):
        _check_text(value, limits.text_max)
    elif isinstance(value, dict):
        _check_object(cast("dict[str, object]", value), limits)
    elif isinstance(value, list):
        _check_array(cast("list[object]", value), limits)


def _check_object(value: dict[str, object], limits: PayloadLimits) -> None:
    _check_items(len(value), limits)
    for key, item in value.items():
        try:
            _check_text(key, limits.text_max)
            _check(item, limits)
        except _Flaw as flaw:
            flaw.path.insert(0, key)
            raise


def _check_array(value: list[object], limits: PayloadLimits) -> None:
    _check_items(len(value), limits)
    for index, item in enumerate(value):
        try:
            _check(item, limits)
        except _Flaw as flaw:
            flaw.path.insert(0, f"[{index}]")
            raise


def _check_items(count: int, limits: PayloadLimits) -> None:
    if count > limits.items_max:
        raise _Flaw("P-items", f"{count} entries, the limit is {limits.items_max}")


def _dotted(path: list[str], known: frozenset[str]) -> str:
    # A key that is no field name is data (a map's key, a guess): it is not shown.
    parts = (part if part in known or re.fullmatch(r"\[[0-9]{1,6}\]", part) else "[...]" for part in path)
    return ".".join(parts).replace(".[", "[")
