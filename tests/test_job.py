from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benteng.job import new_job_id, operation_key, own_operation_key, sha256_hex
from benteng.policy import TYPE_NAME

GOLDEN = json.loads((Path(__file__).parent / "golden" / "operation_v1.json").read_text())


@given(now=st.integers(0, (1 << 48) * 1_000 - 1), entropy=st.binary(min_size=10, max_size=10))
def test_job_id_is_a_uuid_version_7(now, entropy):
    """A job id is canonical UUIDv7 text whose first 48 bits are the milliseconds (RFC 9562 5.7)."""
    text = new_job_id(now, entropy)

    parsed = uuid.UUID(text)

    assert str(parsed) == text
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert now // 1_000 == parsed.int >> 80


@given(st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
def test_job_id_keeps_74_bits_of_entropy(one, other):
    """Ids of one instant are equal only when the 74 low bits of their entropy are."""
    low = [int.from_bytes(entropy, "big") & (1 << 74) - 1 for entropy in (one, other)]

    assert (low[0] == low[1]) == (new_job_id(0, one) == new_job_id(0, other))


@pytest.mark.parametrize("case", GOLDEN["operation_key"], ids=lambda case: case["name"])
def test_operation_key_golden(case):
    """The key of an operation is the same for ever, in every version and on every Python (golden vectors)."""
    assert case["key"] == operation_key(case["type"], case["values"])


@pytest.mark.parametrize("case", GOLDEN["own_operation_key"], ids=lambda case: case["name"])
def test_own_operation_key_golden(case):
    """The key of a job without declared operation is the same for ever (golden vectors)."""
    assert case["key"] == own_operation_key(case["job_id"])


@pytest.mark.parametrize("case", GOLDEN["sha256"], ids=lambda case: case["name"])
def test_payload_digest_golden(case):
    """The digest of a payload is the SHA-256 of its exact bytes in lower-case hex (golden vectors)."""
    assert case["sha256"] == sha256_hex(case["payload"].encode())


def test_golden_keys_are_all_different():
    """No two intents of the golden file share a key, except those that say they do."""
    by_intent: dict[str, set[str]] = {}
    for case in GOLDEN["operation_key"]:
        by_intent.setdefault(case["key"], set()).add(case["intent"])

    assert all(len(intents) == 1 for intents in by_intent.values())


def test_operation_key_leaves_out_the_major():
    """A new major of the contract does not make the same intent another operation."""
    assert operation_key("bill.pay@1", {"invoice": "i-1"}) == operation_key("bill.pay@2", {"invoice": "i-1"})


def test_operation_key_does_not_depend_on_the_order_of_fields():
    """Permuted values are the same operation (case C98)."""
    assert operation_key("a@1", {"x": 1, "y": {"p": 1, "q": 2}}) == operation_key(
        "a@1", {"y": {"q": 2, "p": 1}, "x": 1}
    )


def test_operation_key_tells_types_and_values_apart():
    """Another type, field name or value, also of another JSON type, is another operation."""
    keys = [
        operation_key("a@1", {"x": 1}),
        operation_key("b@1", {"x": 1}),
        operation_key("a@1", {"y": 1}),
        operation_key("a@1", {"x": "1"}),
        operation_key("a@1", {"x": [1]}),
        operation_key("a@1", {"x": None}),
        operation_key("a@1", {}),
        own_operation_key("a"),
    ]

    assert len(keys) == len(set(keys))


@given(st.text(max_size=20))
def test_own_key_is_never_a_declared_key(text):
    """No job id can be chosen so that its own key equals that of a declared operation."""
    assert own_operation_key(text) != operation_key(text, {})


@pytest.mark.parametrize("name", ["greet@1", "patch.apply@1", "a_b.c_d2@9999", "a@10"])
def test_type_name_accepts(name):
    """`name@major`: dotted lower-case words, a major without leading zero."""
    assert TYPE_NAME.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "greet", "greet@", "greet@0", "greet@01", "greet@1\n", "Greet@1", "gre et@1", "a..b@1", ".a@1", "a.@1"),
        *("_a@1", "1a@1", "a@10000", "a@1@1", "a/b@1", "a@-1", "\u00e9@1", "a@\u0661"),
    ],
)
def test_type_name_refuses(name):
    """Anything else is no type name: no trailing newline, no other alphabet, no empty word."""
    assert not TYPE_NAME.fullmatch(name)
