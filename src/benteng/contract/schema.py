"""The JSON Schema of a contract, without documentation strings, and with benteng's marks under `x-benteng`.

Documentation is left out because the digest is reviewed: rewording a docstring is no change of the contract. Kinds,
audit marks and waivers are in, because changing one is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from benteng.contract.node import Place
from benteng.contract.types import MONEY_PATTERN, Audited, Kind, Money, Waive


def schema_of(model: type[object], places: Iterable[Place]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a contract class."""
    marks = {place.dotted: found for place in places if (found := _marks(place))}
    return {**cast("dict[str, Any]", _bare(_raw(model))), **({"x-benteng": marks} if marks else {})}


def _raw(model: type[object]) -> dict[str, Any]:
    if not issubclass(model, msgspec.Struct):
        return _pydantic(model)
    return msgspec.json.schema(model, schema_hook=_extra)


def _pydantic(model: type[object]) -> dict[str, Any]:
    from benteng.contract import pydantic_codec

    return pydantic_codec.json_schema(cast("Any", model))


def _extra(wanted: type) -> dict[str, Any]:
    if wanted is Money:
        return {"type": "string", "pattern": MONEY_PATTERN, "maxLength": 21}
    raise NotImplementedError


_WORDS: Final = frozenset({"description", "title"})
_NAMED: Final = frozenset({"properties", "$defs"})
_DATA: Final = frozenset({"default", "enum", "const", "required"})


def _bare(schema: object) -> object:
    if isinstance(schema, list):
        return [_bare(part) for part in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    entries = cast("dict[str, object]", schema)
    return {key: _entry(key, value) for key, value in entries.items() if key not in _WORDS}


def _entry(key: str, value: object) -> object:
    if key in _DATA:
        return value
    if key in _NAMED:  # here the keys are names of fields and classes, not words of JSON Schema
        return {name: _bare(part) for name, part in cast("dict[str, object]", value).items()}
    return _bare(value)


def _marks(place: Place) -> dict[str, object]:
    kind = place.node.mark(Kind)
    waived = {mark.rule: mark.reason for mark in place.node.marks if isinstance(mark, Waive)}
    found = {"kind": kind.name if kind else "", "audited": place.node.mark(Audited) is not None, "waived": waived}
    return {name: value for name, value in found.items() if value}
