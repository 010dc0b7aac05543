"""A contract as a tree of nodes: what each field may hold, and the marks on it.

One tree serves the definition rules, field paths, audit summaries and references, for msgspec classes, functions
and pydantic models alike. Types outside the closed list become `Form.UNKNOWN`, which the definition rules refuse.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin
from uuid import UUID

import msgspec

from benteng.contract.types import Artifact, Kind, Money, Waive

M = TypeVar("M")


class Form(StrEnum):
    """What a node holds, as the contract sees it."""

    ANY = "any"
    NULL = "null"
    BOOL = "boolean"
    INT = "integer"
    FLOAT = "number"
    STR = "string"
    BYTES = "bytes"
    DATETIME = "datetime"
    DATE = "date"
    UUID = "uuid"
    MONEY = "money"
    CHOICE = "choice"
    ARRAY = "array"
    MAP = "map"
    RECORD = "record"
    UNION = "union"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Node:
    """One type in a contract. `parts` are an array's items, a map's key and value, or a union's options."""

    form: Form
    type: object
    marks: tuple[object, ...] = ()
    parts: tuple[Node, ...] = ()
    fields: tuple[Field, ...] = ()

    def limit(self, name: str) -> Any:
        """Return a constraint (max_length, pattern, tz ...) as the last mark that sets it says, or None."""
        found = [getattr(mark, name, None) for mark in self.marks]
        return next((value for value in reversed(found) if value is not None), None)

    def mark(self, mark_type: type[M]) -> M | None:
        """Return the outermost mark of this type, or None."""
        return next((mark for mark in reversed(self.marks) if isinstance(mark, mark_type)), None)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its Python name, its name in JSON, its node, and how it gets a value when the payload has none."""

    name: str
    encoded: str
    node: Node
    required: bool = True
    default: object = None
    factory: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A node where it stands: `path` in JSON names, `*` for any item; `waived` the rules waived on its field."""

    path: tuple[str, ...]
    node: Node
    field: Field | None
    waived: frozenset[str]

    @property
    def dotted(self) -> str:
        """The path as it is written in policies and messages."""
        return ".".join(self.path)


FieldsOf = Callable[[type, tuple[type, ...]], "tuple[Field, ...] | None"]
"""Gives the fields of a record class, or None when the class is none. The tuple holds the classes around it."""


class RecursiveContractError(TypeError):
    """A record holds itself: its depth would have no bound."""


def record(model: type, fields_of: FieldsOf, around: tuple[type, ...] = ()) -> Node | None:
    """Return the node of a record class, or None when `fields_of` does not know it as one.

    Raises RecursiveContractError: the class holds itself.
    """
    if model in around:
        raise RecursiveContractError(model.__name__)
    fields = fields_of(model, (*around, model))
    return None if fields is None else Node(Form.RECORD, model, fields=fields)


def node_of(annotation: object, fields_of: FieldsOf, around: tuple[type, ...] = ()) -> Node:
    """Return the node of a type annotation; a type outside the closed list has the form UNKNOWN."""
    annotation, marks = _unwrap(annotation)
    node = _bare(annotation, fields_of, around)
    return Node(node.form, node.type, (*node.marks, *marks), node.parts, node.fields)


def places(root: Node) -> Iterator[Place]:
    """Yield every node of the contract below the root, each with its path, parents first."""
    for field in root.fields:
        yield from _below(Place((field.encoded,), field.node, field, frozenset()))


def _below(place: Place) -> Iterator[Place]:
    waived = place.waived | {mark.rule for mark in place.node.marks if isinstance(mark, Waive)}
    here = Place(place.path, place.node, place.field, frozenset(waived))
    yield here
    star = () if place.node.form is Form.UNION else ("*",)
    for part in place.node.parts:
        yield from _below(Place((*here.path, *star), part, None, here.waived))
    for field in place.node.fields:  # a field of a nested record starts without its parent's waivers
        yield from _below(Place((*here.path, field.encoded), field.node, field, frozenset()))


def is_artifact(node: Node) -> bool:
    """Say whether the node is an artifact reference."""
    return isinstance(node.type, type) and issubclass(node.type, Artifact)


def is_timeless(node: Node) -> bool:
    """Say whether no value of the node can hold a moment in time."""
    below = (*node.parts, *(field.node for field in node.fields))
    return node.form not in {Form.DATETIME, Form.ANY, Form.UNKNOWN} and all(map(is_timeless, below))


def kind_of(node: Node) -> str:
    """Return the resource kind of a node, of its items, or of its options; "" when it has none."""
    mark = node.mark(Kind)
    below = node.parts if node.form in {Form.ARRAY, Form.UNION} else ()
    return mark.name if mark else next((found for part in below if (found := kind_of(part))), "")


_SCALARS: Final[dict[object, Form]] = {
    Any: Form.ANY,
    object: Form.ANY,
    None: Form.NULL,
    type(None): Form.NULL,
    bool: Form.BOOL,
    int: Form.INT,
    float: Form.FLOAT,
    str: Form.STR,
    bytes: Form.BYTES,
    datetime: Form.DATETIME,
    date: Form.DATE,
    UUID: Form.UUID,
    Money: Form.MONEY,
}


_COMPOSED: Final[tuple[object, ...]] = (Union, types.UnionType, list, tuple, dict)


def _unwrap(annotation: object) -> tuple[object, tuple[object, ...]]:
    """Take aliases, NewTypes and Annotated off; the marks come innermost first."""
    if get_origin(annotation) is Annotated:
        inner, *outer = get_args(annotation)
        bare, marks = _unwrap(inner)
        return bare, (*marks, *_flat(outer))
    alias = getattr(annotation, "__supertype__", None) or _alias_value(annotation)
    return (annotation, ()) if alias is None else _unwrap(alias)


def _alias_value(annotation: object) -> object | None:
    # `type X = ...` of Python 3.12; the name is compared because 3.11 has no such class.
    return getattr(annotation, "__value__", None) if type(annotation).__name__ == "TypeAliasType" else None


def _flat(marks: Iterable[object]) -> Iterator[object]:
    for mark in marks:
        yield mark
        yield from cast("list[object]", getattr(mark, "metadata", ()))  # pydantic's Field(...) holds marks of its own


def _bare(annotation: object, fields_of: FieldsOf, around: tuple[type, ...]) -> Node:
    origin = get_origin(annotation)
    if origin in _COMPOSED or any(annotation is bare for bare in (list, tuple, dict)):
        return _composed(annotation, fields_of, around)
    if origin is Literal or _is_enum(annotation):
        return Node(Form.CHOICE, annotation)
    return _scalar(annotation) or _record(annotation, fields_of, around) or Node(Form.UNKNOWN, annotation)


def _is_enum(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, enum.Enum)


def _scalar(annotation: object) -> Node | None:
    try:
        form = _SCALARS.get(annotation)
    except TypeError:  # not hashable, so no type of ours
        return None
    return None if form is None else Node(form, annotation)


def _record(annotation: object, fields_of: FieldsOf, around: tuple[type, ...]) -> Node | None:
    return record(annotation, fields_of, around) if isinstance(annotation, type) else None


def _composed(annotation: object, fields_of: FieldsOf, around: tuple[type, ...]) -> Node:
    origin: object = get_origin(annotation) or annotation
    args = get_args(annotation)
    form = {list: Form.ARRAY, tuple: Form.ARRAY, dict: Form.MAP}.get(cast("type", origin), Form.UNION)
    if not args:  # a bare list, tuple or dict holds anything
        args = (str, Any) if form is Form.MAP else (Any,)
    parts = tuple(node_of(arg, fields_of, around) for arg in args if arg is not Ellipsis)
    return Node(form, annotation, parts=parts)


def is_fixed(node: Node) -> bool:
    """Say whether an array's length is fixed by its type: `tuple[A, B]`, not `tuple[A, ...]`."""
    args = get_args(node.type)
    return get_origin(node.type) is tuple and Ellipsis not in args


def struct_fields(model: type, around: tuple[type, ...] = ()) -> tuple[Field, ...] | None:
    """Return the fields of a msgspec class, or None for another class."""
    if not issubclass(model, msgspec.Struct):
        return None
    return tuple(_struct_field(info, around) for info in msgspec.structs.fields(model))


def _struct_field(info: msgspec.structs.FieldInfo, around: tuple[type, ...]) -> Field:
    factory = None if info.default_factory is msgspec.NODEFAULT else info.default_factory
    default = None if info.default is msgspec.NODEFAULT else info.default
    node = node_of(info.type, struct_fields, around)
    return Field(info.name, info.encode_name, node, info.required, default, factory)
