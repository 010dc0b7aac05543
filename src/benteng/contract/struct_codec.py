"""Turn plain JSON values into a contract's value and back into its canonical bytes, by msgspec.

Canonical bytes are made from the *typed* value: sorted keys, no whitespace, UTF-8, times in UTC, money and UUIDs in
one spelling. So key order, `1` and `1.0`, `Z` and `+00:00` give the same bytes.

Trust: values come from payloads. msgspec's messages may quote a value ("Invalid enum value 'x'"), so they are never
passed on; only those that speak of types are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Final, TypeVar, cast
from uuid import UUID

import msgspec

from benteng.contract.parser import clean_name, malformed
from benteng.contract.types import MONEY_FORM, WINDOW_ORDER, Money
from benteng.errors import Malformed


class StructCodec:
    """Converts between plain values, instances of one msgspec class, and canonical bytes.

    timeless  no value of the class can hold a moment, so that nothing has to be brought to UTC before it is written
    """

    def __init__(self, model: type[msgspec.Struct], *, timeless: bool = False) -> None:
        self.model = model
        self._timeless = timeless
        self._convert = partial(msgspec.convert, type=model, strict=True, dec_hook=_decode_extra)

    def convert(self, tree: object) -> object:
        """Return the typed value. Strict: nothing is coerced, unknown fields are refused.

        Raises Malformed: P-unknown, P-missing, P-type, P-value, P-money or P-window.
        """
        return guarded(self._convert, tree)

    def encode(self, value: object) -> bytes:
        """Return the canonical bytes of a typed value.

        Raises Malformed: a datetime has no time zone or leaves the calendar (P-timezone).
        """
        return guarded(_ENCODER.encode, value) if self._timeless else canonical_json(self.plain(value))

    def plain(self, value: object) -> object:
        """Return the value as plain data, still holding datetimes."""
        return msgspec.to_builtins(value, builtin_types=(datetime,), enc_hook=encode_extra)

    def accept(self, value: object) -> bytes:
        """Return bytes to parse for a value given in Python: an instance, which nobody has checked yet, or a mapping.

        Raises Malformed: P-type, P-number, P-integer, P-depth ... as the same payload would in JSON.
        """
        return guarded(self._written, value)

    def _written(self, value: object) -> bytes:
        typed = self._convert(_plain_of(value))
        return _ENCODER.encode(typed) if self._timeless else canonical_json(self.plain(typed))


_NATIVE: Final = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)


def native(value: object) -> object:
    """Return a Python value as dicts, lists and scalars, refusing what JSON cannot hold.

    Raises Malformed: P-type, P-number or P-depth.
    """
    return guarded(_plain_of, value)


def _plain_of(value: object) -> object:
    # _NATIVE stay as they are: a datetime for a str field is then refused, instead of written as text.
    plain: object = msgspec.to_builtins(value, builtin_types=_NATIVE, enc_hook=encode_extra)
    _check_native(plain)
    return plain


def canonical_json(plain: object) -> bytes:
    """Return the one encoding of plain data: sorted keys, no whitespace, UTF-8, times in UTC.

    Raises Malformed: a datetime has no time zone or leaves the calendar (P-timezone).
    """
    return guarded(_canonical, plain)


def _canonical(plain: object) -> bytes:
    return _ENCODER.encode(_in_utc(plain))


T = TypeVar("T")
Given = TypeVar("Given")


def guarded(work: Callable[[Given], T], given: Given) -> T:
    """Run a conversion; whatever it raises becomes a Malformed that refers to nothing of the payload.

    Raises Malformed: the rule that the error stands for; P-value for what a class's own check raised.
    """
    try:
        return work(given)
    except Malformed:
        raise
    except msgspec.ValidationError as error:
        flaw = _translate(str(error))
    except RecursionError:
        flaw = malformed("P-depth")
    except UnicodeEncodeError:  # a lone surrogate in a Python string
        flaw = malformed("P-text")
    except Exception:  # noqa: BLE001 - an unexpected error in a check means refuse
        flaw = malformed("P-value")
    raise flaw  # outside the handlers: a context would keep the first error's message, which may quote a value


_HARMLESS: Final = frozenset({str, int, bool, type(None)})


def _check_native(plain: object) -> None:
    if type(plain) in _HARMLESS:
        return
    if isinstance(plain, float) and not math.isfinite(plain):
        raise malformed("P-number")
    if isinstance(plain, dict):
        _check_native_keys(cast("dict[object, object]", plain))
    elif isinstance(plain, list | tuple):
        for item in cast("list[object]", plain):
            _check_native(item)


def _check_native_keys(plain: dict[object, object]) -> None:
    for key, item in plain.items():
        if not isinstance(key, str | UUID):
            raise malformed("P-type", "a key that is no string")
        _check_native(item)


def encode_extra(value: object) -> object:
    """Return the plain form of the types that msgspec does not know: msgspec calls it `enc_hook`."""
    if isinstance(value, Money):
        return value.spelling()
    msg = f"{type(value).__name__} is no contract type"
    raise TypeError(msg)


_ENCODER: Final = msgspec.json.Encoder(order="sorted", enc_hook=encode_extra)


def _decode_extra(wanted: type, value: object) -> object:
    if wanted is Money and isinstance(value, str):
        return Money(value)
    raise ValueError(MONEY_FORM)


def _in_utc(plain: object) -> object:
    if isinstance(plain, datetime):
        return _instant(plain)
    if isinstance(plain, dict):
        return {key: _in_utc(item) for key, item in cast("dict[str, object]", plain).items()}
    if isinstance(plain, list | tuple):
        return [_in_utc(item) for item in cast("list[object]", plain)]
    return plain


def _instant(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise malformed("P-timezone", "a datetime without a time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise malformed("P-timezone", "a datetime outside the calendar") from None


_AT: Final = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`\Z")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `|\Z)", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `([A-Za-z0-9_\-]+)`")
# Words of msgspec only: a class's own check may raise a message of the same form with a value in it.
_WORD: Final = "(?:array|bool|bytes|date|datetime|decimal|float|int|null|object|str|uuid)"
_EXPECTED: Final = re.compile(
    rf"Expected `{_WORD}(?: \| {_WORD})*`"
    rf"(?:, got `{_WORD}`| of length [<>=]* ?[0-9]+| [<>]=? [-0-9.e+]+| matching regex)?"
)
_OWN: Final = {
    MONEY_FORM: "P-money",
    WINDOW_ORDER: "P-window",
    "Expected `datetime` with a timezone component": "P-timezone",
}


def _translate(message: str) -> Malformed:
    at = _AT.search(message)
    where = clean_path(at[1]) if at else ""
    text = message[: at.start()] if at else message
    if rule := _OWN.get(text):
        return malformed(rule, field=where)
    if unknown := _UNKNOWN.match(message):
        return malformed("P-unknown", "the contract has no such field", field=_join(where, clean_name(unknown[1])))
    if missing := _MISSING.match(text):
        return malformed("P-missing", "a required field is absent", field=_join(where, missing[1]))
    if expected := _EXPECTED.match(text):
        return malformed("P-type", _in_words(expected[0]), field=where)
    return malformed("P-value", field=where)


def _in_words(expected: str) -> str:
    return expected.lower().replace("`", "").replace(" matching regex", " of the field's pattern")


def clean_path(path: str) -> str:
    """Return a path of field names and indexes that is safe to show."""
    return re.sub(r"[^A-Za-z0-9_.\-\[\]]", "?", path[:256])


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
