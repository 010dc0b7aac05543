"""A compiled contract: parse payloads strictly, resolve field paths, summarise for the audit, describe as JSON Schema.

`shape_of` judges the definition and compiles it once. Every door parses through `Shape.parse`: bytes in, typed value
and canonical bytes out, and parsing the canonical bytes gives the same bytes again.

Trust: nothing that is parsed; see parser.read.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, cast

import msgspec

from benteng.contract.defaults import check_defaults
from benteng.contract.definition import broken, check
from benteng.contract.function_contract import contract_of
from benteng.contract.node import (
    FieldsOf,
    Form,
    Node,
    RecursiveContractError,
    is_artifact,
    is_timeless,
    kind_of,
    places,
    record,
    struct_fields,
)
from benteng.contract.parser import DEFAULT_LIMITS, PayloadLimits, clean_name, malformed, read
from benteng.contract.path import (
    ANY_ITEM,
    ARTIFACT,
    FieldPath,
    artifact_refs,
    extract_from_bytes,
    resource_keys,
    values_at,
)
from benteng.contract.schema import schema_of
from benteng.contract.struct_codec import StructCodec, canonical_json
from benteng.contract.summary import outline_of, summarise
from benteng.contract.types import Kind
from benteng.errors import DefinitionError
from benteng.policy import Tier


class Parsed(msgspec.Struct, frozen=True, gc=False):
    """A payload that passed: the typed value, the bytes that are stored and signed, and their SHA-256 as hex."""

    value: Any  # an instance of the shape's model, which the type checker cannot know here
    canonical: bytes
    digest: str


class Codec(Protocol):
    """Between plain values, typed values and canonical bytes; one for msgspec classes, one for pydantic models."""

    def convert(self, tree: object) -> object:
        """Return the typed value, or raise Malformed."""
        ...

    def encode(self, value: object) -> bytes:
        """Return the canonical bytes, or raise Malformed."""
        ...

    def accept(self, value: object) -> bytes:
        """Return bytes to parse for a value given in Python, or raise Malformed."""
        ...


class Shape:
    """A compiled contract: made by `shape_of`, not changed afterwards.

    `model` is the class of parsed values; for pydantic their class is derived from it, and stricter.
    """

    def __init__(self, name: str, source: type, tier: Tier, *, codec: Codec, root: Node, limits: PayloadLimits) -> None:
        self.name = name
        self.model = source
        self.tier = tier
        self.limits = limits
        self._codec = codec
        self._root = root
        self._outline = outline_of(root)
        self._places = tuple(places(root))
        self._known = frozenset(part for place in self._places for part in place.path)
        self._wide = replace(limits, text_max=max(limits.text_max, *self._longest(), 1))
        self._plain_texts = tuple(place for place in self._places if _is_unbounded(place.node))

    def parse(self, raw: bytes) -> Parsed:
        """Parse a payload strictly. Parsing `canonical` again gives the same value and the same bytes.

        Raises Malformed: a P rule is broken. It names the rule, the field and the fix, never a value.
        """
        value = self._typed(raw)
        canonical = self._codec.encode(value)
        if canonical != raw:  # the value is made from bytes that read back as themselves: gate and cell hold equal ones
            value = self._typed(canonical)
            if self._codec.encode(value) != canonical:  # a check of the contract's own changes what it is given
                raise malformed("P-value", "the contract does not read back what it writes")
        return Parsed(value, canonical, hashlib.sha256(canonical).hexdigest())

    def parse_value(self, value: object) -> Parsed:
        """Parse a payload given in Python, an instance of the model or a mapping: written out, then parsed as bytes.

        Raises Malformed: as `parse`.
        """
        if isinstance(value, Mapping):
            value = dict(cast("Mapping[str, object]", value))
        elif not isinstance(value, self.model):
            raise malformed("P-type", "neither a mapping nor an instance of the contract")
        return self.parse(self._codec.accept(value))

    def path(self, dotted: str) -> FieldPath:
        """Resolve a dotted path, in Python or JSON names, to a value that every payload has.

        Raises DefinitionError: a segment is unknown, or may be absent (D-path).
        """
        node, encoded = self._root, list[str]()
        for segment in dotted.split("."):
            node, name = _step(node, segment, dotted)
            encoded.append(name)
        return FieldPath(".".join(encoded), kind_of(node), node.type)

    def resource(self, dotted: str) -> FieldPath:
        """Resolve a path that names a resource: as `path`, and the field must have a kind.

        Raises DefinitionError: D-path.
        """
        path = self.path(dotted)
        if not path.kind:
            raise broken("D-path", 'the field has no resource kind: declare it Target or with Kind("...")', dotted)
        return path

    def extract(self, parsed: Parsed, path: FieldPath | str) -> object:
        """Return the JSON value at a path, from the canonical form."""
        return extract_from_bytes(parsed.canonical, str(path), self._wide)

    def summary(self, parsed: Parsed) -> dict[str, object]:
        """Return what the audit may show: `Audited` fields in clear, all others as type and length."""
        return summarise(self._outline, cast("dict[str, object]", _plain(parsed)))

    def arguments(self, parsed: Parsed) -> dict[str, Any]:
        """Return the value's fields by Python name, to call the function that the contract was made of."""
        return {field.name: getattr(parsed.value, field.name) for field in self._root.fields}

    @cached_property
    def artifact_paths(self) -> tuple[FieldPath, ...]:
        """The paths of all artifact references, `*` for items: for the lock file."""
        found = {place.dotted: place.node.type for place in self._places if is_artifact(place.node)}
        return tuple(FieldPath(dotted, ARTIFACT, found[dotted]) for dotted in sorted(found))

    @cached_property
    def target_paths(self) -> tuple[FieldPath, ...]:
        """The paths of all fields with a resource kind, `*` for items: for the lock file."""
        found = {
            (place.dotted, mark.name): place.node.type for place in self._places if (mark := place.node.mark(Kind))
        }
        return tuple(FieldPath(dotted, name, found[dotted, name]) for dotted, name in sorted(found))

    @cached_property
    def free_text(self) -> frozenset[str]:
        """The paths of fields whose author waived D-free-text after review; items of a list have their list's path."""
        waived = (place.path for place in self._places if "D-free-text" in place.waived)
        return frozenset(".".join(part for part in path if part != ANY_ITEM) for path in waived)

    def artifacts(self, parsed: Parsed) -> tuple[tuple[str, str], ...]:
        """Return the sorted (id, sha256) of every artifact that the payload refers to."""
        return artifact_refs(_plain(parsed), self.artifact_paths)

    def targets(self, parsed: Parsed) -> tuple[str, ...]:
        """Return the sorted `kind:value` of every field that has a kind."""
        return resource_keys(_plain(parsed), self.target_paths)

    def resources(self, parsed: Parsed, paths: Iterable[FieldPath | str]) -> tuple[str, ...]:
        """Return the sorted `kind:value` keys at these paths.

        Raises DefinitionError: a path names no resource (D-path).
        """
        return resource_keys(_plain(parsed), [self.resource(str(path)) for path in paths])

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema (2020-12), with kinds, audit marks and waivers under `x-benteng`."""
        return schema_of(cast("type", self._root.type), self._places)

    @cached_property
    def schema_digest(self) -> str:
        """SHA-256 of the canonical schema, in hexadecimal; documentation strings do not count."""
        return hashlib.sha256(canonical_json(self.json_schema())).hexdigest()

    def _typed(self, raw: bytes) -> object:
        tree = read(raw, self._wide, self._known)
        value = self._codec.convert(tree)
        if self._wide is not self.limits:
            self._check_plain_texts(tree)
        return value

    def _check_plain_texts(self, tree: object) -> None:
        for place in self._plain_texts:
            for text in values_at(tree, place.path):
                if isinstance(text, str) and len(text) > self.limits.text_max:
                    reason = f"{len(text)} characters, the limit is {self.limits.text_max}"
                    raise malformed("P-length", reason, field=place.dotted)

    def _longest(self) -> Iterable[int]:
        texts = (place.node for place in self._places if place.node.form is Form.STR)
        return (longest for text in texts if (longest := text.limit("max_length")) is not None)


def shape_of(
    model: type | Callable[..., object], *, tier: Tier, name: str = "", limits: PayloadLimits = DEFAULT_LIMITS
) -> Shape:
    """Compile a contract class, a pydantic model or, at LOW, a typed function, and judge its definition.

    Raises DefinitionError: a D rule is broken. It names the rule, the field and the fix.
    """
    label = name or getattr(model, "__name__", "contract")
    if isinstance(model, type):
        return _class_shape(label, model, tier, limits)
    if inspect.isroutine(model):
        return _struct_shape(label, contract_of(model, tier), tier, limits)
    raise broken("D-source", "neither a Contract, a pydantic model nor a function", clean_name(label))


def _class_shape(name: str, model: type[object], tier: Tier, limits: PayloadLimits) -> Shape:
    if issubclass(model, msgspec.Struct):
        return _struct_shape(name, model, tier, limits)
    if _is_pydantic(model):
        return _pydantic_shape(name, model, tier, limits)
    raise broken("D-source", "neither a Contract, a pydantic model nor a function", clean_name(name))


def _struct_shape(name: str, model: type[msgspec.Struct], tier: Tier, limits: PayloadLimits) -> Shape:
    root = _root(model, struct_fields)
    check(root, tier)
    _compile(model)
    check_defaults(root)
    return Shape(name, model, tier, codec=StructCodec(model, timeless=is_timeless(root)), root=root, limits=limits)


def _pydantic_shape(name: str, model: type[object], tier: Tier, limits: PayloadLimits) -> Shape:
    from benteng.contract import pydantic_codec

    codec = pydantic_codec.PydanticCodec(cast("Any", model))
    root = _root(codec.model, pydantic_codec.model_fields)
    check(root, tier, linear_patterns=True)
    check_defaults(root)
    return Shape(name, model, tier, codec=codec, root=root, limits=limits)


def _is_pydantic(model: type[object]) -> bool:
    pydantic = sys.modules.get("pydantic")  # never imported here: a pydantic model exists only if pydantic is loaded
    return pydantic is not None and issubclass(model, pydantic.BaseModel)


def _root(model: type, fields_of: FieldsOf) -> Node:
    try:
        root = record(model, fields_of)
    except RecursiveContractError as error:
        raise broken("D-type", "the contract holds itself, so its depth has no bound", str(error)) from None
    except DefinitionError:
        raise
    except Exception as error:
        reason = f"the annotations cannot be resolved ({type(error).__name__}): define the types at module level"
        raise broken("D-type", reason) from error
    return cast("Node", root)


def _compile(model: type[msgspec.Struct]) -> None:
    try:
        msgspec.json.Decoder(model)
    except TypeError as error:  # msgspec's own limits, such as two records without tags in one union
        reason = "msgspec cannot decode this combination of types"
        raise broken("D-type", reason, clean_name(model.__name__)) from error


def _step(node: Node, segment: str, dotted: str) -> tuple[Node, str]:
    if node.form is not Form.RECORD:
        raise broken(
            "D-path", f"{clean_name(segment)}: what stands before it is no record that is always there", dotted
        )
    for each in node.fields:
        if segment in {each.name, each.encoded}:
            return each.node, each.encoded
    known = ", ".join(field.name for field in node.fields)
    raise broken("D-path", f"no field {clean_name(segment)}; known: {known}", dotted)


def _is_unbounded(node: Node) -> bool:
    return node.form is Form.STR and node.limit("max_length") is None


def _plain(parsed: Parsed) -> object:
    # Our own canonical bytes: they passed the strict parser when they were made.
    return msgspec.json.decode(parsed.canonical)
