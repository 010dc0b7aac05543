"""Defaults are part of the contract: each must be a constant that its own field, and the strict parser, accept."""

from __future__ import annotations

import msgspec

from benteng.contract.definition import broken
from benteng.contract.node import Field, Node, places
from benteng.contract.parser import read
from benteng.contract.struct_codec import StructCodec
from benteng.errors import Malformed


def check_defaults(root: Node) -> None:
    """Refuse computed, mutable and invalid defaults, in nested records too.

    Raises DefinitionError: D-default.
    """
    for field in root.fields:
        _check(field, root, field.encoded)
    for place in places(root):
        for field in place.node.fields:
            _check(field, place.node, f"{place.dotted}.{field.encoded}")


def _check(field: Field, owner: Node, at: str) -> None:
    if field.required:
        return
    if field.factory is not None:
        if field.factory not in {list, dict}:  # msgspec writes an empty literal as this factory: a fresh one each time
            raise broken("D-default", "the default is computed", at)
        return
    if _is_mutable(field.default):
        raise broken("D-default", "the default is mutable", at)
    if isinstance(owner.type, type) and issubclass(owner.type, msgspec.Struct) and not _is_valid(field, owner.type):
        raise broken("D-default", "the default is no valid value of its field", at)


def _is_mutable(default: object) -> bool:
    # Empty ones are harmless: pydantic copies them for each value, and msgspec has made them a factory.
    return type(default) in {list, dict, set, bytearray} and default not in ([], {})


def _is_valid(field: Field, owner: type[msgspec.Struct]) -> bool:
    """Say whether the default survives the way a payload's value goes: to bytes, through the parser, to its type."""
    info = next(info for info in msgspec.structs.fields(owner) if info.name == field.name)
    probe = msgspec.defstruct("Probe", [("value", info.type)])
    codec = StructCodec(probe)
    try:
        raw = codec.accept({"value": field.default})
        return raw == codec.encode(codec.convert(read(raw)))
    except Malformed:
        return False
