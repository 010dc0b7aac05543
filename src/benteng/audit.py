"""The audit log: what a record says, the bytes that a leaf commits to, and the check of a stored page.

Each transition writes one record in its own transaction. A leaf commits to the *salted* digest of the record's body, so
that body and salt can be erased later and every proof still holds; nothing of a record can be guessed from its leaf.
The tree over the leaves is merkle.py, so that other tools can check it.
Trust: stored rows may be tampered with, `verify_page` finds out; texts of records come from anywhere and are cleaned.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import NoReturn, Protocol, cast

import msgspec

from benteng.clock import Instant
from benteng.merkle import HASH_BYTES, Frontier, leaf_hash
from benteng.redact import clean_line

VERSION = 1
SALT_BYTES = 16
NAME_BYTES_MAX = 256
REASON_BYTES_MAX = 512
DETAIL_BYTES_MAX = 2048
SUMMARY_BYTES_MAX = 4096
RESOURCES_MAX = 16
SUMMARY_CUT = '{"cut":true}'


class Event(StrEnum):
    """What happened. One record says one event."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    HELD = "held"
    DIVERTED = "diverted"
    CLAIMED = "claimed"
    BLOCKED = "blocked"
    WOKEN = "woken"
    STAGED = "staged"
    COMPLETED = "completed"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    HANDED_BACK = "handed_back"
    QUARANTINED = "quarantined"
    UNCERTAIN = "uncertain"
    RECLAIMED = "reclaimed"
    CANCEL_ASKED = "cancel_asked"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"
    FREED = "freed"
    RESOLVED = "resolved"
    RELEASED = "released"
    CLASSIFIED = "classified"
    REPLAYED = "replayed"
    TIGHTENED = "tightened"
    LOOSENED = "loosened"
    REGISTERED = "registered"
    WORKER_REFUSED = "worker_refused"
    POLICY_APPLIED = "policy_applied"
    ARTIFACT_REGISTERED = "artifact_registered"
    PURGED = "purged"
    RESTORED = "restored"


EVENTS: Mapping[Event, str] = MappingProxyType(
    {
        Event.ADMITTED: "the gate let a job in",
        Event.REFUSED: "the gate, or the judgement before the start, refused a job",
        Event.DUPLICATE: "the same operation came again and got the first receipt",
        Event.CONFLICT: "the same operation came with another payload or from another origin, and was refused",
        Event.HELD: "a job waits for agreement",
        Event.DIVERTED: "a job was sent to quarantine instead of being run",
        Event.CLAIMED: "a worker took a job, with its resources and a new fence",
        Event.BLOCKED: "a job waits for a resource that another one holds",
        Event.WOKEN: "a resource became free and a blocked job is ready",
        Event.STAGED: "a scheduled job became due",
        Event.COMPLETED: "an attempt succeeded",
        Event.RETRIED: "an attempt failed and another one will follow",
        Event.SNOOZED: "a handler asked to be run later; the attempt is given back",
        Event.HANDED_BACK: "a worker gave a job back that it had not started",
        Event.QUARANTINED: "a job cannot go on and was put aside",
        Event.UNCERTAIN: "nobody knows whether an effect that must happen once has happened",
        Event.RECLAIMED: "a lease ended without a word from its worker",
        Event.CANCEL_ASKED: "somebody asked to cancel a running job",
        Event.CANCELLED: "a job was cancelled",
        Event.DISCARDED: "a quarantined job was given up; its record stays",
        Event.FREED: "the key of an operation was freed: it may be done again",
        Event.RESOLVED: "somebody said whether an uncertain effect has happened",
        Event.RELEASED: "a held job was agreed to",
        Event.CLASSIFIED: "somebody classified a quarantined job",
        Event.REPLAYED: "a quarantined job was judged again and put back",
        Event.TIGHTENED: "a switch was closed, by a person or by the breaker",
        Event.LOOSENED: "a switch was opened",
        Event.REGISTERED: "a worker started: which job types it runs, and in `summary` what holds its cells there",
        Event.WORKER_REFUSED: "a worker does not work: its host, its pool or its application is not what it must be",
        Event.POLICY_APPLIED: "another policy of job types is in force",
        Event.ARTIFACT_REGISTERED: "an artifact was made known",
        Event.PURGED: "rows whose retention ended were removed",
        Event.RESTORED: "the database was promoted or restored, and fences begin above any that was issued",
    },
)


class AuditRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One event. A field that does not apply is "" or 0; all fields are always written, in the order of their names.

    at_us            when, by the store's clock
    type             `name@major`; contract_version is that major, policy_sha256 the policy under which it was judged
    state_from, state_to   the transition, "" for none
    attempt, fence   which try, and its fencing number
    origin, actor, request_id   from where, on whose behalf, correlation id
    operation        keyed digest (`redact.keyed`) of the operation key; payload: of the payload digest
    summary          JSON text of the fields that the contract marks `Audited`, all others as type and length; of a
                     worker what it can do where it runs
    resources        what the attempt holds or waits for
    worker, login    which worker and which authenticated login did it
    rule, reason, detail   why: the id of the rule, a sentence, more
    """

    actor: str = ""
    at_us: Instant
    attempt: int = 0
    contract_version: int = 0
    detail: str = ""
    event: Event
    fence: int = 0
    job_id: str = ""
    login: str = ""
    operation: str = ""
    origin: str = ""
    payload: str = ""
    policy_sha256: str = ""
    reason: str = ""
    request_id: str = ""
    resources: tuple[str, ...] = ()
    rule: str = ""
    state_from: str = ""
    state_to: str = ""
    summary: str = "{}"
    type: str = ""
    version: int = VERSION
    worker: str = ""


# -------------------------------------------------------------------------------------------------- from record to leaf


def body_bytes(record: AuditRecord) -> bytes:
    """Return the canonical JSON of a record (RFC 8785: sorted names, no spaces), bounded. No text makes it fail."""
    return _encoder.encode(bounded(record))


def body_like(
    kind: AuditRecord,
    *,
    at_us: Instant,
    attempt: int,
    fence: int,
    job_id: str,
    operation: str,
    payload: str,
    request_id: str,
    summary: str,
) -> bytes:
    """Return `body_bytes` of a record that differs from a bounded one in what tells its job; by fewer steps."""
    record = msgspec.structs.replace(
        kind,
        at_us=at_us,
        attempt=attempt,
        fence=fence,
        job_id=job_id,
        operation=operation,
        payload=payload,
        request_id=request_id,
        summary=summary,
    )
    names_plain = _is_plain(f"{job_id}{operation}{payload}{request_id}", NAME_BYTES_MAX)
    return _encoder.encode(record if names_plain and _is_plain(summary, SUMMARY_BYTES_MAX) else bounded(record))


def bounded(record: AuditRecord) -> AuditRecord:
    """Return the record with every text on one line, cleaned and within its bound, and at most 16 resources."""
    if _is_plain_whole(record):
        return record
    changes: dict[str, object] = {}
    for name, bytes_max in _TEXT_BYTES_MAX.items():
        text = cast("str", getattr(record, name))
        if not _is_plain(text, bytes_max):
            changes[name] = clean_line(text, bytes_max=bytes_max)
    if not _is_plain(record.summary, SUMMARY_BYTES_MAX):
        changes["summary"] = _bounded_summary(record.summary)
    if len(record.resources) > RESOURCES_MAX or not all(_is_plain(each, NAME_BYTES_MAX) for each in record.resources):
        changes["resources"] = tuple(
            clean_line(each, bytes_max=NAME_BYTES_MAX) for each in record.resources[:RESOURCES_MAX]
        )
    return msgspec.structs.replace(record, **changes) if changes else record


def _is_plain_whole(record: AuditRecord) -> bool:
    """Say it of all texts at once, by the smallest of the bounds; False means no more than: look at each."""
    texts: tuple[str, ...] = _texts(record)
    whole = "".join(texts)
    return not record.resources and max(map(len, texts)) <= NAME_BYTES_MAX and whole.isascii() and whole.isprintable()


def _is_plain(text: str, bytes_max: int) -> bool:
    """Say whether cleaning would change nothing, for the common case and cheaply."""
    return len(text) <= bytes_max and text.isascii() and text.isprintable()


def _bounded_summary(text: str) -> str:
    """Return the summary, or `SUMMARY_CUT`: half of a JSON text, or one with escapes put in, would be none."""
    return text if clean_line(text, bytes_max=SUMMARY_BYTES_MAX) == text else SUMMARY_CUT


def commitment(salt: bytes, body: bytes) -> bytes:
    """Return SHA-256(salt + body). Each record has its own 16 random bytes of salt: without them nothing is guessed."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes")
    return hashlib.sha256(salt + body).digest()


def leaf_of(salt: bytes, body: bytes) -> bytes:
    """Return `leaf_data` of the `commitment` of a body to its salt. Raises ValueError: a salt has SALT_BYTES bytes."""
    return leaf_data(commitment(salt, body))


def leaf_data(committed: bytes) -> bytes:
    """Return the 33 bytes of a log entry: the format version and the commitment. They stay when the body is erased.

    Neither position nor time: the same entry is valid in any tree, and the tree itself says where it stands.
    """
    if len(committed) != HASH_BYTES:
        raise ValueError(f"a commitment has {HASH_BYTES} bytes")
    return _VERSION_BYTE + committed


_VERSION_BYTE = bytes([VERSION])


_encoder = msgspec.json.Encoder()
_NAMES = (
    *(
        "job_id",
        "type",
        "policy_sha256",
        "state_from",
        "state_to",
        "origin",
        "actor",
        "request_id",
        "operation",
        "payload",
    ),
    *("worker", "login", "rule"),
)
_TEXT_BYTES_MAX: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(_NAMES, NAME_BYTES_MAX) | {"reason": REASON_BYTES_MAX, "detail": DETAIL_BYTES_MAX},
)
_texts = attrgetter(*_TEXT_BYTES_MAX, "summary")


# ------------------------------------------------------------------------------------------------- checking stored rows

RULES: Mapping[str, str] = MappingProxyType(
    {
        "L-gap": "records are missing",
        "L-order": "a record stands where it does not belong, or twice",
        "L-leaf": "a leaf is not of a format that this code knows",
        "L-half": "only one of body and salt was erased",
        "L-body": "a body is not the one that its leaf commits to",
    },
)
"""What a log can be found to be, by rule id (docs/reference/audit.md)."""


class Row(Protocol):
    """A record as stored: its place, its leaf data, and salt and body unless they were erased."""

    @property
    def seq(self) -> int:
        """Its number, from the log's first on without a gap."""
        ...

    @property
    def leaf(self) -> bytes:
        """What `leaf_data` returned for it."""
        ...

    @property
    def salt(self) -> bytes | None:
        """Its 16 bytes of salt, None when erased."""
        ...

    @property
    def body(self) -> bytes | None:
        """What `body_bytes` returned for it, None when erased."""
        ...


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a record. `seq` is its number, or of the first record that is missing."""

    seq: int
    rule: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What a page was found to be. Has no truth value: look at `problems`.

    verified         how many bodies are the ones that their leaves commit to; erased: records without a body
    next_seq, frontier   where the unbroken part ends; compare the frontier's root with a checkpoint of its size
    """

    problems: tuple[Problem, ...]
    verified: int
    erased: tuple[int, ...]
    next_seq: int
    frontier: Frontier

    def __bool__(self) -> NoReturn:
        raise TypeError("findings have no truth value: look at problems")


def verify_page(rows: Iterable[Row], expected_next_seq: int, frontier: Frontier) -> Findings:
    """Check stored rows: numbers without a gap from `expected_next_seq`, and each body against its leaf.

    An erased record is reported, not failed. After a gap bodies are still checked, but the tree is not continued.
    Whether the tree is the one that was sealed, the caller decides with a checkpoint.
    """
    problems: list[Problem] = []
    erased: list[int] = []
    unbroken: list[bytes] = []
    verified, expected = 0, expected_next_seq
    for row in rows:
        problems += _misplaced(row.seq, expected)
        rule = _spoiled(row)
        if rule:
            problems.append(Problem(row.seq, rule))
        elif row.body is None:
            erased.append(row.seq)
        else:
            verified += 1
        if row.seq == expected == expected_next_seq + len(unbroken) and rule != "L-leaf":
            unbroken.append(leaf_hash(row.leaf))
        expected = max(expected, row.seq + 1)
    grown = frontier.extend(unbroken)
    return Findings(tuple(problems), verified, tuple(erased), expected_next_seq + len(unbroken), grown)


def _misplaced(seq: int, expected: int) -> list[Problem]:
    if seq == expected:
        return []
    return [Problem(expected, "L-gap")] if seq > expected else [Problem(seq, "L-order")]


def _spoiled(row: Row) -> str:
    """Return the rule that a row breaks by itself, or "". Its values may be of any type: anybody may have put them."""
    leaf, salt, body = cast("tuple[object, object, object]", (row.leaf, row.salt, row.body))
    if not isinstance(leaf, bytes) or len(leaf) != 1 + HASH_BYTES or leaf[0] != VERSION:
        return "L-leaf"
    if salt is None and body is None:
        return ""
    if salt is None or body is None:
        return "L-half"
    if not isinstance(salt, bytes) or not isinstance(body, bytes) or len(salt) != SALT_BYTES:
        return "L-body"
    return "" if hmac.compare_digest(leaf_of(salt, body), leaf) else "L-body"
