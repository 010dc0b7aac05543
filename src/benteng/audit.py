"""The audit log: what a record says, the bytes that a leaf commits to, and the Merkle tree that proves the log whole.

Each transition writes one record in its own transaction. A leaf commits to the *salted* digest of the record's body, so
that body and salt can be erased later and every proof still holds; nothing of a record can be guessed from its leaf.
The tree is RFC 6962's, so that other tools can check it.
Trust: stored rows may be tampered with, `verify_page` finds out; texts of records come from anywhere and are cleaned.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NoReturn, Protocol, cast

import msgspec

from benteng.clock import Instant
from benteng.errors import RuleError
from benteng.redact import clean_line

VERSION = 1
SALT_BYTES = 16
HASH_BYTES = 32
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
    POLICY_APPLIED = "policy_applied"
    ARTIFACT_REGISTERED = "artifact_registered"
    PURGED = "purged"


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
        Event.REGISTERED: "a worker said which job types it runs",
        Event.POLICY_APPLIED: "another policy of job types is in force",
        Event.ARTIFACT_REGISTERED: "an artifact was made known",
        Event.PURGED: "rows whose retention ended were removed",
    },
)


class AuditRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One event. A field that does not apply is "" or 0; all fields are always written.

    at_us            when, by the store's clock
    type             `name@major`; contract_version is that major, policy_sha256 the policy under which it was judged
    state_from, state_to   the transition, "" for none
    attempt, fence   which try, and its fencing number
    origin, actor, request_id   from where, on whose behalf, correlation id
    operation        keyed digest (`redact.keyed`) of the operation key; payload: of the payload digest
    summary          JSON text of the fields that the contract marks `Audited`, all others as type and length
    resources        what the attempt holds or waits for
    worker, login    which worker and which authenticated login did it
    rule, reason, detail   why: the id of the rule, a sentence, more
    """

    version: int = VERSION
    at_us: Instant
    event: Event
    job_id: str = ""
    type: str = ""
    contract_version: int = 0
    policy_sha256: str = ""
    state_from: str = ""
    state_to: str = ""
    attempt: int = 0
    fence: int = 0
    origin: str = ""
    actor: str = ""
    request_id: str = ""
    operation: str = ""
    payload: str = ""
    summary: str = "{}"
    resources: tuple[str, ...] = ()
    worker: str = ""
    login: str = ""
    rule: str = ""
    reason: str = ""
    detail: str = ""


# -------------------------------------------------------------------------------------------------- from record to leaf


def body_bytes(record: AuditRecord) -> bytes:
    """Return the canonical JSON of a record (RFC 8785: sorted names, no spaces), bounded. No text makes it fail."""
    return _encoder.encode(bounded(record))


def bounded(record: AuditRecord) -> AuditRecord:
    """Return the record with every text on one line, cleaned and within its bound, and at most 16 resources."""
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


def leaf_data(committed: bytes) -> bytes:
    """Return the 33 bytes of a log entry: the format version and the commitment. They stay when the body is erased.

    Neither position nor time: the same entry is valid in any tree, and the tree itself says where it stands.
    """
    if len(committed) != HASH_BYTES:
        raise ValueError(f"a commitment has {HASH_BYTES} bytes")
    return bytes([VERSION]) + committed


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a log entry (RFC 6962 2.1)."""
    return hashlib.sha256(b"\x00" + data).digest()


_encoder = msgspec.json.Encoder(order="sorted")
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


# -------------------------------------------------------------------------------------------- the tree (RFC 6962, 9162)

EMPTY_ROOT = hashlib.sha256(b"").digest()


class ProofError(RuleError):
    """A Merkle proof does not hold: what was shown is not what was sealed."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """A tree that only grows: its size and the perfect subtrees' roots, largest first: all that a sealer keeps."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        fits = self.size >= 0 and len(self.hashes) == self.size.bit_count()
        if not fits or any(len(each) != HASH_BYTES for each in self.hashes):
            raise ValueError("a frontier has one hash for each bit that is set in its size")

    def append(self, leaf: bytes) -> Frontier:
        """Return the tree with one more leaf hash."""
        return self.extend((leaf,))

    def extend(self, leaves: Iterable[bytes]) -> Frontier:
        """Return the tree with more leaf hashes, in their order."""
        size, hashes = self.size, list(self.hashes)
        for leaf in leaves:
            node, carry = leaf, size
            while carry & 1:
                node, carry = node_hash(hashes.pop(), node), carry >> 1
            hashes.append(node)
            size += 1
        return Frontier(size, tuple(hashes))

    def root(self) -> bytes:
        """Return the Merkle tree hash (RFC 6962 2.1)."""
        if not self.hashes:
            return EMPTY_ROOT
        *larger, node = self.hashes
        for left in reversed(larger):
            node = node_hash(left, node)
        return node


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node (RFC 6962 2.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the Merkle tree hash of leaf hashes."""
    return Frontier().extend(leaves).root()


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """Return the audit path of the leaf at `index` (from 0) among leaf hashes (RFC 6962 2.1.1)."""
    if not 0 <= index < len(leaves):
        raise ValueError("there is no leaf at that index")
    if len(leaves) == 1:
        return ()
    split = _split(len(leaves))
    if index < split:
        return (*inclusion_proof(leaves[:split], index), root(leaves[split:]))
    return (*inclusion_proof(leaves[split:], index - split), root(leaves[:split]))


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> tuple[bytes, ...]:
    """Return the proof that the first `old_size` leaf hashes are a prefix of all (RFC 6962 2.1.2); of none, empty."""
    if not 0 <= old_size <= len(leaves):
        raise ValueError("the old tree is larger than the new one")
    return _subproof(leaves, old_size, whole=True) if old_size else ()


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root_hash: bytes) -> None:
    """Raise ProofError unless the leaf hash stands at `index` in the tree of that size and root (RFC 9162 2.1.3.2)."""
    if not 0 <= index < size:
        raise _unproved("P-inclusion")
    node, last = index, size - 1
    computed = leaf
    for sibling in proof:
        if last == 0:
            raise _unproved("P-inclusion")
        if node & 1 or node == last:
            computed = node_hash(sibling, computed)
            node, last = _up_to_right_child(node, last)
        else:
            computed = node_hash(computed, sibling)
        node, last = node >> 1, last >> 1
    if last or not hmac.compare_digest(computed, root_hash):
        raise _unproved("P-inclusion")


def verify_consistency(old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Raise ProofError unless the new tree holds the old one unchanged as its beginning (RFC 9162 2.1.4.2).

    Of the empty tree everything is a continuation: its proof is empty and its root `EMPTY_ROOT`.
    """
    if not 0 <= old_size <= new_size:
        raise _unproved("P-consistency")
    if old_size in {0, new_size}:
        _verify_trivial(old_root, new_root if old_size else EMPTY_ROOT, proof)
        return
    path = [old_root, *proof] if old_size.bit_count() == 1 else list(proof)
    node, last = old_size - 1, new_size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old, new = _replay(path, node, last)
    if not (hmac.compare_digest(old, old_root) and hmac.compare_digest(new, new_root)):
        raise _unproved("P-consistency")


def _replay(path: Sequence[bytes], node: int, last: int) -> tuple[bytes, bytes]:
    """Return the roots of the old and the new tree that a consistency path leads to."""
    if not path:
        raise _unproved("P-consistency")
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise _unproved("P-consistency")
        if node & 1 or node == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            node, last = _up_to_right_child(node, last)
        else:
            new = node_hash(new, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise _unproved("P-consistency")
    return old, new


def _verify_trivial(root_hash: bytes, expected: bytes, proof: Sequence[bytes]) -> None:
    if proof or not hmac.compare_digest(root_hash, expected):
        raise _unproved("P-consistency")


def _up_to_right_child(node: int, last: int) -> tuple[int, int]:
    """Climb while the node is a left child without a sibling: such a node is its parent."""
    while node and not node & 1:
        node, last = node >> 1, last >> 1
    return node, last


def _subproof(leaves: Sequence[bytes], old_size: int, *, whole: bool) -> tuple[bytes, ...]:
    """Return SUBPROOF(m, D[n], b) of RFC 6962 2.1.2."""
    if old_size == len(leaves):
        return () if whole else (root(leaves),)
    split = _split(len(leaves))
    if old_size <= split:
        return (*_subproof(leaves[:split], old_size, whole=whole), root(leaves[split:]))
    return (*_subproof(leaves[split:], old_size - split, whole=False), root(leaves[:split]))


def _split(size: int) -> int:
    """Return the largest power of two below a size of at least 2."""
    return 1 << (size - 1).bit_length() - 1


def _unproved(rule: str) -> ProofError:
    return ProofError(rule, RULES[rule], fix="Stop, keep a copy, and compare with checkpoints kept elsewhere")


# ------------------------------------------------------------------------------------------------- checking stored rows

RULES: Mapping[str, str] = MappingProxyType(
    {
        "L-gap": "records are missing",
        "L-order": "a record stands where it does not belong, or twice",
        "L-leaf": "a leaf is not of a format that this code knows",
        "L-half": "only one of body and salt was erased",
        "L-body": "a body is not the one that its leaf commits to",
        "P-inclusion": "the record is not in the tree of that root",
        "P-consistency": "the newer tree does not contain the older one unchanged",
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
    return "" if hmac.compare_digest(leaf_data(commitment(salt, body)), leaf) else "L-body"
