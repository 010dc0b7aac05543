"""Accept pydantic models as contracts, forced strict, without passing on any of their messages.

The model is derived with extra=forbid, strict, frozen, allow_inf_nan=False and hide_input_in_errors; nested models
must be that strict themselves. Only `shape_of` imports this module, and only when it was given a pydantic model.

Trust: values come from payloads. pydantic's messages quote the input, so only their codes and locations are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from benteng.contract.definition import broken
from benteng.contract.node import Field, Node, node_of
from benteng.contract.parser import clean_name, malformed
from benteng.contract.struct_codec import canonical_json, clean_path, guarded, native
from benteng.errors import Malformed

STRICT: Final = ConfigDict(
    extra="forbid",
    strict=True,
    frozen=True,
    allow_inf_nan=False,
    hide_input_in_errors=True,
    revalidate_instances="always",
)
"""What every model is forced to."""

_LOOSE: Final[dict[str, tuple[object, ...]]] = {
    "extra": ("allow", "ignore"),
    "strict": (False,),
    "frozen": (False,),
    "allow_inf_nan": (True,),
    "coerce_numbers_to_str": (True,),
    "arbitrary_types_allowed": (True,),
    "from_attributes": (True,),
    "populate_by_name": (True,),
    "validate_by_name": (True,),
    "str_strip_whitespace": (True,),
    "str_to_lower": (True,),
    "str_to_upper": (True,),
}
"""Settings that accept more than the fields say, or one payload in two spellings: refused when written out."""


class PydanticCodec:
    """Converts between plain values, instances of one pydantic model, and canonical bytes."""

    def __init__(self, model: type[BaseModel]) -> None:
        """Derive the strict model.

        Raises DefinitionError: the model's configuration or a field loosens (D-strict).
        """
        _check_config(model, nested=False)
        self.model = cast("type[BaseModel]", type(model.__name__, (model,), _forced(model)))

    def convert(self, tree: object) -> object:
        """Return the typed value. Strict: nothing is coerced, unknown fields are refused.

        Raises Malformed: P-unknown, P-missing or P-value.
        """
        try:
            return self.model.model_validate_json(msgspec.json.encode(tree))
        except ValidationError as error:
            flaw = _translate(error)
        except Exception:  # noqa: BLE001 - a model's own validator failed in its own way: that refuses, whatever it raised
            flaw = malformed("P-value")
        raise flaw  # outside the handlers: a context would keep pydantic's error, which holds the input

    def encode(self, value: object) -> bytes:
        """Return the canonical bytes of a typed value.

        Raises Malformed: a datetime has no time zone (P-timezone).
        """
        return canonical_json(self.plain(value))

    def plain(self, value: object) -> object:
        """Return the value as plain data, still holding datetimes."""
        return guarded(_dump, value)

    def accept(self, value: object) -> bytes:
        """Return bytes to parse for a value given in Python: an instance or a mapping.

        Raises Malformed: it holds what JSON cannot hold.
        """
        return canonical_json(native(self.plain(value) if isinstance(value, BaseModel) else value))


def _dump(value: object) -> object:
    return cast("BaseModel", value).model_dump(mode="python", by_alias=True)


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the model's JSON Schema, by alias."""
    return model.model_json_schema(by_alias=True)


def model_fields(model: type, around: tuple[type, ...] = ()) -> tuple[Field, ...] | None:
    """Return the fields of a pydantic model, or None for another class.

    Raises DefinitionError: a nested model or a field is not strict (D-strict).
    """
    if not issubclass(model, BaseModel):
        return None
    if len(around) > 1:
        _check_config(model, nested=True)
    return tuple(_field(name, info, around) for name, info in model.model_fields.items())


def _forced(model: type[BaseModel]) -> dict[str, object]:
    return {"model_config": STRICT, "__module__": model.__module__, "__doc__": model.__doc__}


def _check_config(model: type[BaseModel], *, nested: bool) -> None:
    config = cast("dict[str, object]", model.model_config)
    for name, loose in _LOOSE.items():
        if config.get(name) in loose and name in config:
            raise broken("D-strict", f"the model configures {name} loosely", clean_name(model.__name__))
    if nested and any(config.get(name) != STRICT.get(name) for name in ("extra", "strict")):
        raise broken("D-strict", "a nested model must set extra='forbid' and strict=True", clean_name(model.__name__))
    for name, info in model.model_fields.items():
        _check_field(name, info)


def _check_field(name: str, info: FieldInfo) -> None:
    if any(getattr(mark, "strict", None) is False for mark in info.metadata):
        raise broken("D-strict", "the field switches strictness off", name)
    if info.validation_alias != info.alias or info.serialization_alias != info.alias:
        raise broken("D-strict", "the field reads one name and writes another", name)
    if any(isinstance(mark, msgspec.Meta) for mark in info.metadata):
        raise broken("D-strict", "pydantic ignores msgspec.Meta and the types made of it: use Field(...)", name)


def _field(name: str, info: FieldInfo, around: tuple[type, ...]) -> Field:
    inner = node_of(info.annotation, model_fields, around)
    node = Node(inner.form, inner.type, (*inner.marks, *info.metadata), inner.parts, inner.fields)
    default = None if info.default is PydanticUndefined else info.default
    factory = cast("Callable[[], object] | None", info.default_factory)
    return Field(name, info.alias or name, node, info.is_required(), default, factory)


_RULES: Final = {
    "extra_forbidden": ("P-unknown", "the contract has no such field"),
    "missing": ("P-missing", "a required field is absent"),
}


def _translate(error: ValidationError) -> Malformed:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    code = first["type"]
    where = clean_path(".".join(clean_name(str(part)) for part in first["loc"]))
    if known := _RULES.get(code):
        return malformed(known[0], known[1], field=where)
    return malformed("P-type" if code.endswith("_type") else "P-value", field=where)
