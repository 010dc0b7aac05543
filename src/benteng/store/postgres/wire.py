"""Values on their way to PostgreSQL, in its own binary format: exact types, no guessing, no re-encoding of bytes.

The layouts name the fields of the composite types in schema `benteng_v1`, in order (a test compares them).
Trust: not the texts; what PostgreSQL cannot hold (NUL, lone surrogates) is escaped, and a job with such is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import call
from typing import Any, Final, cast

from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from benteng.decide import Disposition
from benteng.job import Job
from benteng.lifecycle import State
from benteng.redact import clean_line
from benteng.store.records import Admission, Question, Refusal, Settlement, TypeRow

TEXT_BYTES_MAX = 64 * 1024
OFTEN_MAX = 1024
_INT8 = (-(1 << 63), (1 << 63) - 1)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)

_pack_length = struct.Struct("!i").pack
_pack_field = struct.Struct("!Ii").pack
_pack_int8 = struct.Struct("!q").pack
_pack_empty = struct.Struct("!iiI").pack
_NULL = _pack_length(-1)
_encoded_by = cast("Callable[[Callable[[Any], bytes], Any], bytes]", call)


@dataclass(frozen=True, slots=True)
class Param:
    """One argument: the type that it is, and its binary form."""

    oid: int
    data: bytes


class IdLoader(Loader):
    """Reads an id as its canonical text: what everybody here knows it by."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        """Return the 36 characters."""
        digits = bytes(data).hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def register(context: AdaptContext) -> None:
    """Teach a connection to read ids."""
    context.adapters.register_loader("uuid", IdLoader)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of PostgreSQL: its number, the number of its array type, and how a value becomes its binary form.

    empty: the value that is false, of which most fields of a row are full.
    often: the same few values come again and again, and none is a secret: their fields are made once and kept.
    """

    oid: int
    array: int
    encode: Callable[[Any], bytes]
    empty: Any = b""
    often: bool = False

    def __call__(self, value: Any) -> Param:
        """Return one argument."""
        return Param(self.oid, self.encode(value))

    def many(self, values: Iterable[Any]) -> Param:
        """Return an array as one argument."""
        return Param(self.array, _array(self, values))

    def field(self) -> Callable[[Any], bytes]:
        """Return what makes a value a field of a row: its type and size stand before it, and None is null."""
        oid, encode = self.oid, self.encode
        null = _pack_field(oid, -1)
        empty = _pack_field(oid, len(encode(self.empty))) + encode(self.empty)

        def field(value: Any) -> bytes:
            if not value:
                return null if value is None else empty
            data = encode(value)
            return _pack_field(oid, len(data)) + data

        return lru_cache(OFTEN_MAX)(field) if self.often else field


def _array(kind: Kind, values: Iterable[Any]) -> bytes:
    """Return a one-dimensional array (array_send in the server's source); None becomes null."""
    items = [None if value is None else kind.encode(value) for value in values]
    if not items:
        return _pack_empty(0, 0, kind.oid)
    head = struct.pack("!iiIii", 1, int(None in items), kind.oid, len(items), 1)
    return head + b"".join(_NULL if item is None else _pack_length(len(item)) + item for item in items)


def text_bytes(value: str) -> bytes:
    """Return a text as PostgreSQL can hold it."""
    try:
        data = value.encode()
    except UnicodeEncodeError:
        data = clean_line(value, bytes_max=TEXT_BYTES_MAX).encode()
    return data if b"\0" not in data else clean_line(value, bytes_max=TEXT_BYTES_MAX).encode()


def is_storable(value: str) -> bool:
    """Return whether PostgreSQL can hold the text as it is."""
    return (value.isascii() and "\0" not in value) or text_bytes(value) == value.encode(errors="surrogatepass")


def _int8(value: int) -> bytes:
    lowest, highest = _INT8
    return _pack_int8(value if lowest <= value <= highest else lowest if value < lowest else highest)


def job_uuid(job_id: str) -> bytes | None:
    """Return the 16 bytes of a job id, or None for a text that is no canonical UUID: no job has it."""
    return bytes.fromhex(job_id.replace("-", "")) if _UUID.fullmatch(job_id) else None


BOOL = Kind(16, 1000, lambda value: b"\1" if value else b"\0", empty=False)
BYTEA = Kind(17, 1001, bytes)
INT8 = Kind(20, 1016, _int8, empty=0)
TEXT = Kind(25, 1009, text_bytes, empty="")
NAME = replace(TEXT, often=True)
COUNT = replace(INT8, often=True)
FLOAT8 = Kind(701, 1022, struct.Struct("!d").pack, empty=0.0)
UUID = Kind(2950, 2951, bytes)
TEXTS = Kind(1009, 0, lambda values: _array(TEXT, values), empty=())


def ids(job_ids: Iterable[str]) -> Param:
    """Return job ids as one argument; what is no UUID becomes null, which no job has."""
    return UUID.many(map(job_uuid, job_ids))


class Layout:
    """The fields of a composite type, in order."""

    def __init__(self, name: str, fields: Mapping[str, Kind]) -> None:
        self.name = name
        self.fields = fields
        self._count = _pack_length(len(fields))
        self._encoders = tuple(kind.field() for kind in fields.values())

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return one row in its binary form (record_send in the server's source)."""
        if len(values) != len(self._encoders):
            raise ValueError(f"a row of {self.name} has {len(self._encoders)} fields")
        return self._count + b"".join(map(_encoded_by, self._encoders, values))


ENTRANCE = Layout(
    "entrance",
    {
        "id": UUID,
        "type": NAME,
        "tier": NAME,
        "priority": COUNT,
        "available_at": COUNT,
        "expires_at": COUNT,
        "generation": COUNT,
        "origin": NAME,
        "actor": NAME,
        "request_id": TEXT,
        "payload": BYTEA,
        "payload_sha256": TEXT,
        "operation_key": TEXT,
        "envelope": BYTEA,
        "policy_sha256": NAME,
        "artifacts": TEXTS,
        "targets": TEXTS,
        "resources": TEXTS,
        "summary": TEXT,
        "entry": NAME,
        "rule": NAME,
        "reason": NAME,
        "parent": UUID,
        "unfit": BOOL,
    },
)
REFUSAL = Layout(
    "refusal",
    {
        "type": TEXT,
        "origin": TEXT,
        "actor": TEXT,
        "request_id": TEXT,
        "rule": TEXT,
        "reason": TEXT,
        "payload_sha256": TEXT,
        "operation_key": TEXT,
        "job_id": UUID,
        "fence": INT8,
        "detail": TEXT,
    },
)
QUESTION = Layout(
    "question", {"type": TEXT, "actor": TEXT, "operation_key": TEXT, "artifacts": TEXTS, "targets": TEXTS}
)
SETTLEMENT = Layout(
    "settlement",
    {
        "id": UUID,
        "fence": INT8,
        "token": TEXT,
        "disposition": NAME,
        "delay_seconds": FLOAT8,
        "reason": NAME,
        "error": TEXT,
        "rule": NAME,
        "result": BYTEA,
        "started": BOOL,
        "alone": BOOL,
    },
)
TYPE_ROW = Layout("type_row", {"name": TEXT, "policy": BYTEA, "sha256": TEXT})
LAYOUTS = (ENTRANCE, REFUSAL, QUESTION, SETTLEMENT, TYPE_ROW)


@dataclass(frozen=True, slots=True)
class Types:
    """The numbers that one database gave to our composite types: name -> (type, its array type)."""

    oids: Mapping[str, tuple[int, int]]

    def one(self, layout: Layout, values: Sequence[Any]) -> Param:
        """Return one row as an argument."""
        return Param(self.oids[layout.name][0], layout.encode(values))

    def many(self, layout: Layout, rows: Iterable[Sequence[Any]]) -> Param:
        """Return rows as one argument."""
        oid, array = self.oids[layout.name]
        return Kind(oid, array, layout.encode).many(rows)


def entrance(job: Job, entry: State, rule: str = "", reason: str = "", parent: str = "") -> tuple[Any, ...]:
    """Return a job on its way in, as the fields of ENTRANCE."""
    refs = job.refs
    artifacts = [part for ref in refs.artifacts for part in (ref.id, ref.sha256)] if refs.artifacts else ()
    named = (*artifacts, *refs.targets, *refs.resources)
    texts = (job.type, job.origin, job.actor, job.request_id, job.summary, job.policy_sha256, *named)
    return (
        job_uuid(job.id),
        job.type,
        str(job.tier),
        job.priority,
        job.available_at,
        job.expires_at,
        job.generation,
        job.origin,
        job.actor,
        job.request_id,
        job.payload,
        job.payload_sha256,
        job.operation_key,
        job.envelope,
        job.policy_sha256,
        artifacts,
        refs.targets,
        refs.resources,
        job.summary,
        str(entry),
        rule,
        reason,
        job_uuid(parent) if parent else None,
        not is_storable("".join(texts)),
    )


def admission(given: Admission) -> tuple[Any, ...]:
    """Return an admission as the fields of ENTRANCE."""
    return entrance(given.job, given.entry, given.rule, given.reason)


def refusal(given: Refusal) -> tuple[Any, ...]:
    """Return a gate's refusal as the fields of REFUSAL."""
    detail = "suspicious" if given.suspicious else ""
    said = (given.type, "", given.actor, given.request_id, given.rule, given.reason, given.payload_sha256)
    return (*said, None, None, None, detail)


def question(given: Question) -> tuple[Any, ...]:
    """Return a question as the fields of QUESTION."""
    return (given.type, given.actor, given.operation_key, given.artifact_ids, given.targets)


def settlement(given: Settlement) -> tuple[Any, ...]:
    """Return a settlement as the fields of SETTLEMENT."""
    return (
        job_uuid(given.proof.job_id),
        given.proof.fence,
        given.proof.token,
        given.disposition,
        given.delay_seconds,
        given.reason,
        given.error,
        given.rule,
        given.result,
        given.started,
        given.alone,
    )


def is_plain(given: Sequence[Settlement]) -> bool:
    """Return whether all attempts complete and that is all: then they are told as arrays of what that takes."""
    return all(each.disposition is Disposition.COMPLETE and not each.holds and not each.successors for each in given)


def plain(given: Sequence[Settlement]) -> tuple[Param, ...]:
    """Return attempts that complete, and that is all, as four arguments."""
    proofs = [each.proof for each in given]
    return (
        ids(proof.job_id for proof in proofs),
        INT8.many(proof.fence for proof in proofs),
        TEXT.many(proof.token for proof in proofs),
        BYTEA.many(each.result for each in given),
    )


NOT_PLAIN: Final = (UUID.many(()), INT8.many(()), TEXT.many(()), BYTEA.many(()))
"""These arguments when there is more to one of them."""


def used(given: Sequence[Settlement]) -> tuple[Param, ...]:
    """Return what attempts did with the network as two arguments; empty ones when none did anything."""
    if not any(each.connects or each.refused for each in given):
        return _NO_COUNTS
    return INT8.many(each.connects for each in given), INT8.many(each.refused for each in given)


_NO_COUNTS = (INT8.many(()), INT8.many(()))


def type_row(given: TypeRow) -> tuple[Any, ...]:
    """Return a row of job_type as the fields of TYPE_ROW."""
    return (given.name, given.policy, given.sha256)
