"""What an audit record may say about a payload: fields marked `Audited` in clear, all others as type and length.

An allow-list, so a new field starts hidden (seed, "payload ringkas yang sudah disanitasi").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from benteng.contract.node import Form, Node
from benteng.contract.types import Audited


def summarise(root: Node, payload: Mapping[str, object]) -> dict[str, object]:
    """Return the summary of a decoded canonical payload, with the names of its JSON fields.

    A hidden value is `{"type": ..., "length": ...}`; `length` counts characters or entries, and is left out for
    numbers, booleans and null. A mark on a record or collection shows all that is below it.
    """
    nodes = {field.encoded: field.node for field in root.fields}
    return {name: _view(nodes.get(name), value) for name, value in payload.items()}


def _view(node: Node | None, value: object) -> object:
    if node is None:
        return _hidden(value)
    if _is_shown(node):
        return value
    below = _record_of(node, value)
    return _hidden(value) if below is None else summarise(below, cast("dict[str, object]", value))


def _is_shown(node: Node) -> bool:
    if node.mark(Audited):
        return True
    # list[Annotated[Slug, Audited()]] and Annotated[Slug, Audited()] | None: every part that can hold a value is shown
    parts = [part for part in node.parts if part.form is not Form.NULL]
    return node.form in {Form.ARRAY, Form.UNION} and bool(parts) and all(_is_shown(part) for part in parts)


def _record_of(node: Node, value: object) -> Node | None:
    """Return the record that `value` is, when that is certain."""
    if not isinstance(value, dict):
        return None
    records = [part for part in (node, *node.parts) if part.form is Form.RECORD and node.form is not Form.ARRAY]
    return records[0] if len(records) == 1 and node.form in {Form.RECORD, Form.UNION} else None


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
