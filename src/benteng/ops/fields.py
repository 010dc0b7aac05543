"""Turn `field=value` words of a command line into a payload, as the contract's JSON Schema types them.

Only what a word can say without doubt: text, whole numbers, numbers, true, false and null, nested by dots. Lists and
the rest come as JSON. Nothing is judged here: an unknown field goes on as text, and the gate refuses it by its rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from benteng.ops.exits import Exit, Fault

WORDS: dict[str, object] = {"true": True, "false": False, "null": None}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_SIMPLE = frozenset({"string", "integer", "number", "boolean", "null"})

Schema = Mapping[str, Any]


def payload_of(words: Iterable[str], schema: Schema) -> dict[str, object]:
    """Return the payload that the words spell. Raises Fault for a word that is no `field=value`, or said twice."""
    payload: dict[str, object] = {}
    for word in words:
        dotted, sign, text = word.partition("=")
        if not sign or not all(dotted.split(".")):
            raise Fault(
                Exit.USAGE, "what follows the type must be field=value", fix="or pass the payload with --json @file"
            )
        _put(payload, dotted, _value(dotted, text, _types_at(dotted, schema)))
    return payload


def _put(payload: dict[str, object], dotted: str, value: object) -> None:
    *above, last = dotted.split(".")
    place = payload
    for name in above:
        below = place.setdefault(name, {})
        if not isinstance(below, dict):
            raise _twice(dotted)
        place = cast("dict[str, object]", below)
    if last in place:
        raise _twice(dotted)
    place[last] = value


def _value(dotted: str, text: str, types: frozenset[str]) -> object:
    if text in WORDS and types & ({"null"} if text == "null" else {"boolean"}):
        return WORDS[text]
    if "integer" in types and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        return float(text)
    if types and not types & _SIMPLE:
        raise Fault(Exit.USAGE, f"{dotted} is no single value", fix="pass the payload with --json @file")
    return text


def _types_at(dotted: str, schema: Schema) -> frozenset[str]:
    """Return the JSON types that may stand at a path; nothing when the path is unknown."""
    places = _branches(schema, schema)
    for name in dotted.split("."):
        below = [cast("Schema", place["properties"][name]) for place in places if name in place.get("properties", {})]
        places = [branch for place in below for branch in _branches(place, schema)]
    return frozenset(kind for place in places for kind in _kinds(place))


def _branches(place: Schema, root: Schema) -> list[Schema]:
    """Return a schema's alternatives, references followed. A contract cannot hold itself, so this ends."""
    if "$ref" in place:
        return _branches(cast("Schema", root["$defs"][str(place["$ref"]).rpartition("/")[2]]), root)
    parts = [part for word in ("anyOf", "oneOf", "allOf") for part in cast("list[Schema]", place.get(word, []))]
    return [branch for part in parts for branch in _branches(part, root)] if parts else [place]


def _kinds(place: Schema) -> list[str]:
    values: list[object] = list(place.get("enum", [])) + ([place["const"]] if "const" in place else [])
    if values:
        return [_kind_of(value) for value in values]
    found = place.get("type", [])
    return [found] if isinstance(found, str) else [str(kind) for kind in found]


def _kind_of(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case None:
            return "null"
        case _:
            return "string"


def _twice(dotted: str) -> Fault:
    return Fault(Exit.USAGE, f"{dotted} is given twice", fix="give each field once")
