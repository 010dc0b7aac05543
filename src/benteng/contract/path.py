"""Dotted paths into canonical payloads, and the references found at them.

The supervisor has no user code: it recomputes operation values, resource keys and artifact references from the
canonical bytes with the paths of the lock file. Gate and cell use the same functions.

Trust: the bytes come from the store and are read by the strict parser; the paths come from the reviewed lock file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from benteng.contract.parser import DEFAULT_LIMITS, PayloadLimits, malformed, read

WIDE: Final = PayloadLimits(DEFAULT_LIMITS.payload_bytes_max, 32, 65_536, 65_536)
"""The limits for bytes that a shape has passed already: no contract allows more."""

ANY_ITEM: Final = "*"
"""The path segment that stands for each item of an array or each value of a map."""

ARTIFACT: Final = "artifact"
"""The kind of a path that leads to artifact references."""


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A path that a contract has: `dotted` in JSON names, its resource `kind` ("" for none) and declared `type`."""

    dotted: str
    kind: str
    type: object

    def __str__(self) -> str:
        return self.dotted


def extract_from_bytes(canonical: bytes, dotted_path: str, limits: PayloadLimits = WIDE) -> object:
    """Return the JSON value at a dotted path, read strictly. `*` gives the list of what every item holds there.

    Raises Malformed: the bytes are no strict JSON, or the path does not lead to a value (P-missing).
    """
    return value_at(read(canonical, limits), dotted_path)


def extract_all_from_bytes(canonical: bytes, paths: Sequence[str], limits: PayloadLimits = WIDE) -> tuple[object, ...]:
    """Return the JSON values at several paths, reading the bytes once. Raises as `extract_from_bytes`."""
    tree = read(canonical, limits)
    return tuple(value_at(tree, dotted) for dotted in paths)


def value_at(tree: object, dotted: str) -> object:
    """Return the value at a dotted path of a decoded payload.

    Raises Malformed: a segment is absent, or its parent is no object (P-missing).
    """
    segments = dotted.split(".")
    if ANY_ITEM in segments:
        return list(values_at(tree, segments))
    for segment in segments:
        if not isinstance(tree, dict) or segment not in tree:
            raise malformed("P-missing", "no value at this path", field=dotted)
        tree = cast("dict[str, object]", tree)[segment]
    return tree


def resource_keys(tree: object, paths: Iterable[FieldPath]) -> tuple[str, ...]:
    """Return the sorted, distinct `kind:value` keys at these paths; absent and null values give none.

    Raises Malformed: a value cannot be part of a key (P-type).
    """
    keys = {_key(path, value) for path in paths for value in _found(tree, path)}
    return tuple(sorted(keys))


def artifact_refs(tree: object, paths: Iterable[FieldPath]) -> tuple[tuple[str, str], ...]:
    """Return the sorted, distinct (id, sha256) of the artifacts at these paths; absent and null ones give none.

    Raises Malformed: a value is no artifact reference (P-type).
    """
    refs = {_artifact(path, value) for path in paths for value in _found(tree, path)}
    return tuple(sorted(refs))


def _found(tree: object, path: FieldPath) -> Iterable[object]:
    for value in values_at(tree, path.dotted.split(".")):
        if isinstance(value, list):
            yield from cast("list[object]", value)
        elif value is not None:
            yield value


def values_at(tree: object, segments: Sequence[str]) -> Iterable[object]:
    """Yield what lies at the path; a segment that a null or another union option lacks yields nothing."""
    if not segments:
        yield tree
        return
    for child in _children(tree, segments[0]):
        yield from values_at(child, segments[1:])


def _children(tree: object, segment: str) -> Iterable[object]:
    if isinstance(tree, list):
        return cast("list[object]", tree) if segment == ANY_ITEM else ()
    if not isinstance(tree, dict):
        return ()
    entries = cast("dict[str, object]", tree)
    if segment == ANY_ITEM:
        return entries.values()
    return (entries[segment],) if segment in entries else ()


def _key(path: FieldPath, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not path.kind:
        raise malformed("P-type", "only a string or integer of a declared kind names a resource", field=path.dotted)
    return f"{path.kind}:{value}"


def _artifact(path: FieldPath, value: object) -> tuple[str, str]:
    match value:
        case {"id": str(ident), "sha256": str(digest)}:
            return ident, digest
        case _:
            raise malformed("P-type", "no artifact reference", field=path.dotted)
