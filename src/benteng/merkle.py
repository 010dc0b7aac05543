"""A Merkle tree that only grows (RFC 6962): its frontier, its roots, and proofs of inclusion and of consistency.

Pure. A proof is of two roots or of one leaf and a root; whoever holds an older root finds out what was changed since.
Trust: proofs and roots come from anywhere; what does not prove raises.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from benteng.errors import RuleError

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()


RULES: Mapping[str, str] = MappingProxyType(
    {
        "M-inclusion": "the record is not in the tree of that root",
        "M-consistency": "the newer tree does not contain the older one unchanged",
    },
)
"""The rules of this module by id; each ProofError names one (docs/reference/audit.md)."""


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


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a log entry (RFC 6962 2.1)."""
    return hashlib.sha256(b"\x00" + data).digest()


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


def inclusion_proofs(leaves: Sequence[bytes]) -> tuple[bytes, list[tuple[bytes, ...]]]:
    """Return the root of leaf hashes and the audit path of each (`inclusion_proof`); every node is hashed once."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        levels.append(_paired(levels[-1]))
    (root_hash,) = levels.pop()
    proofs: list[tuple[bytes, ...]] = [()]
    for level in reversed(levels):
        last = len(level) - 1
        proofs = [
            (level[node ^ 1], *proofs[node >> 1]) if node != last or node & 1 else proofs[node >> 1]
            for node in range(last + 1)
        ]
    return root_hash, proofs


def proof_length(index: int, size: int) -> int:
    """Return how many hashes the audit path of the leaf at `index` has in a tree of `size` leaves."""
    inner = (index ^ (size - 1)).bit_length()
    return inner + (index >> inner).bit_count()


def proved_root(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """Return the root that the audit path leads to from the leaf hash at `index`. Raises ProofError for no such path.

    Another leaf, place, size or path leads to another root: the caller compares it with one that it trusts.
    """
    if not 0 <= index < size or len(proof) != proof_length(index, size):
        raise _unproved("M-inclusion")
    inner = (index ^ (size - 1)).bit_length()
    node = leaf
    for level, sibling in enumerate(proof):
        # Above the inner levels the path runs along the right edge of the tree, where all siblings are left ones.
        is_right = level >= inner or index >> level & 1
        node = node_hash(sibling, node) if is_right else node_hash(node, sibling)
    return node


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root_hash: bytes) -> None:
    """Raise ProofError unless the leaf hash stands at `index` in the tree of that size and root (RFC 9162 2.1.3.2)."""
    if not hmac.compare_digest(proved_root(leaf, index, size, proof), root_hash):
        raise _unproved("M-inclusion")


def verify_consistency(old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Raise ProofError unless the new tree holds the old one unchanged as its beginning (RFC 9162 2.1.4.2).

    Of the empty tree everything is a continuation: its proof is empty and its root `EMPTY_ROOT`.
    """
    if not 0 <= old_size <= new_size:
        raise _unproved("M-consistency")
    if old_size in {0, new_size}:
        _verify_trivial(old_root, new_root if old_size else EMPTY_ROOT, proof)
        return
    path = [old_root, *proof] if old_size.bit_count() == 1 else list(proof)
    node, last = old_size - 1, new_size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old, new = _replay(path, node, last)
    if not (hmac.compare_digest(old, old_root) and hmac.compare_digest(new, new_root)):
        raise _unproved("M-consistency")


def _replay(path: Sequence[bytes], node: int, last: int) -> tuple[bytes, bytes]:
    """Return the roots of the old and the new tree that a consistency path leads to."""
    if not path:
        raise _unproved("M-consistency")
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise _unproved("M-consistency")
        if node & 1 or node == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            node, last = _up_to_right_child(node, last)
        else:
            new = node_hash(new, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise _unproved("M-consistency")
    return old, new


def _verify_trivial(root_hash: bytes, expected: bytes, proof: Sequence[bytes]) -> None:
    if proof or not hmac.compare_digest(root_hash, expected):
        raise _unproved("M-consistency")


def _up_to_right_child(node: int, last: int) -> tuple[int, int]:
    """Climb while the node is a left child without a sibling: such a node is its parent."""
    while node and not node & 1:
        node, last = node >> 1, last >> 1
    return node, last


def _paired(nodes: Sequence[bytes]) -> list[bytes]:
    """Return the level above; a last node without a sibling climbs as it is."""
    above = [node_hash(left, right) for left, right in zip(nodes[::2], nodes[1::2], strict=False)]
    return [*above, nodes[-1]] if len(nodes) & 1 else above


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
