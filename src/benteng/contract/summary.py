"""What an audit record may say about a payload: fields marked `Audited` in clear, all others as type and length.

An allow-list, so a new field starts hidden (seed, "payload ringkas yang sudah disanitasi"). What a contract lets be
said is worked out once, when it is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from benteng.contract.node import Form, Node
from benteng.contract.types import Audited


@dataclass(frozen=True, slots=True)
class Outline:
    """What may be said of one place of a contract. `below` are a record's fields, by JSON name; None: no record."""

    shown: bool
    below: Mapping[str, Outline] | None


def outline_of(node: Node) -> Outline:
    """Return what may be said of a node and of all that is below it."""
    holder = _record_of(node)
    fields = None if holder is None else {field.encoded: outline_of(field.node) for field in holder.fields}
    return Outline(_is_shown(node), fields)


def summarise(outline: Outline, payload: Mapping[str, object]) -> dict[str, object]:
    """Return the summary of a decoded canonical payload, with the names of its JSON fields.

    A hidden value is `{"type": ..., "length": ...}`; `length` counts characters or entries, and is left out for
    numbers, booleans and null. A mark on a record or collection shows all that is below it.
    """
    fields = outline.below or {}
    return {name: _view(fields.get(name, _UNKNOWN), value) for name, value in payload.items()}


_UNKNOWN = Outline(shown=False, below=None)


def _view(outline: Outline, value: object) -> object:
    if outline.shown:
        return value
    if outline.below is not None and isinstance(value, dict):
        return summarise(outline, cast("dict[str, object]", value))
    return _hidden(value)


def _is_shown(node: Node) -> bool:
    if node.mark(Audited):
        return True
    # list[Annotated[Slug, Audited()]] and Annotated[Slug, Audited()] | None: every part that can hold a value is shown
    parts = [part for part in node.parts if part.form is not Form.NULL]
    return node.form in {Form.ARRAY, Form.UNION} and bool(parts) and all(_is_shown(part) for part in parts)


def _record_of(node: Node) -> Node | None:
    """Return the record that an object at this node is, when that is certain."""
    if node.form not in {Form.RECORD, Form.UNION}:
        return None
    records = [part for part in (node, *node.parts) if part.form is Form.RECORD]
    return records[0] if len(records) == 1 else None


_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def _hidden(value: object) -> dict[str, object]:
    described: dict[str, object] = {"type": _TYPES.get(type(value), "null")}
    if isinstance(value, str | list | dict):
        described["length"] = len(cast("str | list[object]", value))
    return described
