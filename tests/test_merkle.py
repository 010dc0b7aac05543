"""The Merkle tree: the reference vectors, every proof up to 64 leaves, and what proves nothing."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benteng.merkle import (
    EMPTY_ROOT,
    RULES,
    Frontier,
    ProofError,
    consistency_proof,
    inclusion_proof,
    inclusion_proofs,
    leaf_hash,
    proof_length,
    proved_root,
    root,
    verify_consistency,
    verify_inclusion,
)

# The vectors of the Certificate Transparency reference implementation: leaf inputs, and the root after each.
CT_INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
CT_LEAVES = [leaf_hash(bytes.fromhex(each)) for each in CT_INPUTS]
CT_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
CT_NODES = {
    "1": "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
    "23": "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
    "4567": "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    "4": "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    "67": "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
    "45": "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
    "0": CT_ROOTS[0],
    "01": CT_ROOTS[1],
    "0123": CT_ROOTS[3],
}

LEAVES = [leaf_hash(number.to_bytes(2, "big")) for number in range(64)]
SIZES = st.integers(1, 64)


def sums(hex_nodes):
    """Return the reference's inner nodes by the leaves below them."""
    return tuple(bytes.fromhex(CT_NODES[each]) for each in hex_nodes)


def naive_root(leaves):
    """Return MTH of RFC 6962 2.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = max(1 << bit for bit in range(8) if 1 << bit < len(leaves))
    return hashlib.sha256(b"\x01" + naive_root(leaves[:split]) + naive_root(leaves[split:])).digest()


def test_empty_tree():
    """RFC 6962 2.1: the hash of an empty list is the hash of an empty string."""
    assert "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" == EMPTY_ROOT.hex()
    assert EMPTY_ROOT == root([]) == Frontier().root()


@pytest.mark.parametrize("size", range(1, 9))
def test_ct_reference_roots(size):
    """The roots of the Certificate Transparency reference vectors, at once and leaf by leaf."""
    frontier = Frontier()
    for leaf in CT_LEAVES[:size]:
        frontier = frontier.append(leaf)

    assert CT_ROOTS[size - 1] == root(CT_LEAVES[:size]).hex()
    assert CT_ROOTS[size - 1] == frontier.root().hex()


@pytest.mark.parametrize(
    "index, size, nodes",
    [(0, 8, ("1", "23", "4567")), (5, 8, ("4", "67", "0123")), (2, 3, ("01",)), (1, 5, ("0", "23", "4")), (0, 1, ())],
)
def test_ct_reference_inclusion(index, size, nodes):
    """The audit paths of the reference vectors."""
    assert sums(nodes) == inclusion_proof(CT_LEAVES[:size], index)
    verify_inclusion(CT_LEAVES[index], index, size, sums(nodes), bytes.fromhex(CT_ROOTS[size - 1]))


@pytest.mark.parametrize(
    "old, new, nodes",
    [(1, 8, ("1", "23", "4567")), (6, 8, ("45", "67", "0123")), (2, 5, ("23", "4")), (1, 1, ())],
)
def test_ct_reference_consistency(old, new, nodes):
    """The consistency proofs of the reference vectors."""
    assert sums(nodes) == consistency_proof(CT_LEAVES[:new], old)
    verify_consistency(old, new, bytes.fromhex(CT_ROOTS[old - 1]), bytes.fromhex(CT_ROOTS[new - 1]), sums(nodes))


def test_each_size_has_the_root_of_the_definition():
    """For all sizes to 64, the incremental tree has the root that the RFC's recursion gives."""
    assert [naive_root(LEAVES[:size]) for size in range(65)] == [root(LEAVES[:size]) for size in range(65)]


def test_each_leaf_of_each_size_is_proved():
    """All inclusion proofs of all trees to 64 leaves hold."""
    for size in range(1, 65):
        root_hash = root(LEAVES[:size])
        for index in range(size):
            verify_inclusion(LEAVES[index], index, size, inclusion_proof(LEAVES[:size], index), root_hash)


def test_each_size_is_a_continuation_of_each_smaller_one():
    """Append-only: all consistency proofs between all trees to 64 leaves hold, from the empty one on."""
    roots = [root(LEAVES[:size]) for size in range(65)]
    for new in range(65):
        for old in range(new + 1):
            verify_consistency(old, new, roots[old], roots[new], consistency_proof(LEAVES[:new], old))


def test_all_proofs_at_once_are_those_one_by_one():
    """For all sizes to 64: the same root, the same paths, each of the length that index and size demand."""
    for size in range(1, 65):
        alone = [inclusion_proof(LEAVES[:size], index) for index in range(size)]

        assert (root(LEAVES[:size]), alone) == inclusion_proofs(LEAVES[:size])
        assert [len(path) for path in alone] == [proof_length(index, size) for index in range(size)]


def test_a_proof_leads_to_its_own_root_only():
    """The root is what leaf, place, size and path give; another of any of them gives another root, or none."""
    path = inclusion_proof(LEAVES[:7], 2)

    assert root(LEAVES[:7]) == proved_root(LEAVES[2], 2, 7, path)
    assert root(LEAVES[:7]) not in {
        proved_root(LEAVES[3], 2, 7, path),
        proved_root(LEAVES[2], 3, 7, path),
        proved_root(LEAVES[2], 2, 7, (path[1], path[0], path[2])),
    }
    for wrong in ((2, 7, path[:-1]), (2, 7, (*path, path[0])), (6, 7, path), (7, 7, path), (-1, 7, path), (0, 0, ())):
        with pytest.raises(ProofError, match="M-inclusion"):
            proved_root(LEAVES[2], *wrong)


@given(SIZES, st.data())
def test_altered_leaf_changes_the_root(size, data):
    """Any other leaf in any place gives another root, and its proof does not hold."""
    index = data.draw(st.integers(0, size - 1))
    forged = leaf_hash(b"forged")

    assert root(LEAVES[:size]) != root([*LEAVES[:index], forged, *LEAVES[index + 1 : size]])
    with pytest.raises(ProofError):
        verify_inclusion(forged, index, size, inclusion_proof(LEAVES[:size], index), root(LEAVES[:size]))


@given(SIZES, st.data())
def test_inclusion_holds_only_at_its_place(size, data):
    """Another index, size, root or proof is refused."""
    index, other = data.draw(st.integers(0, size - 1)), data.draw(st.integers(-1, 70))
    proof, root_hash = inclusion_proof(LEAVES[:size], index), root(LEAVES[:size])
    wrong = [(index, size, (*proof, EMPTY_ROOT), root_hash), (index, size, proof, EMPTY_ROOT)]
    wrong += [(other, size, proof, root_hash)] if other != index else []
    wrong += (
        [(index, size, proof[:-1], root_hash), (index, size, (*proof[:-1], EMPTY_ROOT), root_hash)] if proof else []
    )
    wrong += [(index, size, (*proof[:-1], proof[-1] + b"x"), root_hash)] if proof else []

    for case in wrong:
        with pytest.raises(ProofError, match="M-inclusion"):
            verify_inclusion(LEAVES[index], *case)


@given(st.integers(0, 64), st.integers(0, 64), st.data())
def test_history_cannot_be_rewritten(old, new, data):
    """A tree in which an old leaf was altered, or that is shorter, is no continuation, whatever proof is shown."""
    old, new = sorted((old, new))
    root_old = root(LEAVES[:old])
    if old:
        index = data.draw(st.integers(0, old - 1))
        altered = [*LEAVES[:index], leaf_hash(b"forged"), *LEAVES[index + 1 : new]]
        with pytest.raises(ProofError, match="M-consistency"):
            verify_consistency(old, new, root_old, root(altered), consistency_proof(altered, old))
    if old < new:
        with pytest.raises(ProofError, match="M-consistency"):
            verify_consistency(new, old, root(LEAVES[:new]), root_old, consistency_proof(LEAVES[:new], old))


@given(SIZES, SIZES, st.data())
def test_spoiled_consistency_proof_is_refused(old, new, data):
    """A proof that is cut, lengthened or altered anywhere does not hold."""
    old, new = sorted((old, new))
    proof, roots = consistency_proof(LEAVES[:new], old), (root(LEAVES[:old]), root(LEAVES[:new]))
    spoiled = [(*proof, EMPTY_ROOT), (*proof, b"short")]
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        spoiled += [proof[:-1], proof[1:], (), (*proof[:at], EMPTY_ROOT, *proof[at + 1 :])]

    for each in spoiled:
        with pytest.raises(ProofError):
            verify_consistency(old, new, *roots, each)


def test_proof_of_a_smaller_tree_proves_nothing_of_a_larger_one():
    """A true path to a true root is refused when it is too short for the size that is claimed."""
    with pytest.raises(ProofError):
        verify_inclusion(LEAVES[0], 0, 8, inclusion_proof(LEAVES[:4], 0), root(LEAVES[:4]))
    with pytest.raises(ProofError):
        verify_consistency(3, 8, root(LEAVES[:3]), root(LEAVES[:4]), consistency_proof(LEAVES[:4], 3))


def test_proof_of_a_larger_tree_proves_nothing_of_a_smaller_one():
    """Nor when it is too long: the last of eight leaves is not the only one of a tree with that root."""
    with pytest.raises(ProofError):
        verify_inclusion(LEAVES[7], 0, 1, inclusion_proof(LEAVES[:8], 7), root(LEAVES[:8]))
    with pytest.raises(ProofError):
        verify_consistency(3, 4, root(LEAVES[:7]), root(LEAVES[:8]), consistency_proof(LEAVES[:8], 7))


def test_nothing_follows_from_a_false_empty_tree():
    """The empty tree has one root; an empty proof shows nothing else."""
    with pytest.raises(ProofError):
        verify_consistency(0, 8, LEAVES[0], root(LEAVES[:8]), ())
    with pytest.raises(ProofError):
        verify_consistency(4, 4, LEAVES[0], LEAVES[1], ())


def test_proofs_are_asked_for_what_is_there():
    """An index or size outside the tree is a mistake of the caller."""
    for ask in (
        lambda: inclusion_proof(LEAVES, 64),
        lambda: inclusion_proof([], 0),
        lambda: inclusion_proof(LEAVES, -1),
    ):
        with pytest.raises(ValueError, match="no leaf"):
            ask()
    for size in (-1, 65):
        with pytest.raises(ValueError, match="larger"):
            consistency_proof(LEAVES, size)


@pytest.mark.parametrize(
    "size, hashes",
    [(1, ()), (0, (b"x" * 32,)), (3, (b"x" * 32,)), (1, (b"x" * 31,)), (-1, (b"x" * 32,))],
)
def test_frontier_that_is_none_is_refused(size, hashes):
    """A frontier read from a store must have its form."""
    with pytest.raises(ValueError, match="one hash for each bit"):
        Frontier(size, hashes)


@given(SIZES, SIZES)
def test_frontier_goes_on_where_it_stopped(first, second):
    """In pieces or at once, the same tree."""
    first, second = sorted((first, second))

    assert Frontier().extend(LEAVES[:second]) == Frontier().extend(LEAVES[:first]).extend(LEAVES[first:second])


def test_each_rule_is_documented(request):
    """A proof that fails can be looked up."""
    page = (request.config.rootpath / "docs" / "reference" / "audit.md").read_text()

    assert [] == [rule for rule, meaning in RULES.items() if f"### {rule}\n\n{meaning}." not in page]
