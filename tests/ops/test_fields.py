"""`field=value` words."""

from __future__ import annotations

import pytest

from benteng.ops.exits import Exit, Fault
from benteng.ops.fields import payload_of

SCHEMA = {
    "$ref": "#/$defs/Order",
    "$defs": {
        "Order": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "count": {"type": "integer"},
                "share": {"type": "number"},
                "loud": {"type": "boolean"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "level": {"enum": [1, 2]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "artifact": {"$ref": "#/$defs/Artifact"},
            },
        },
        "Artifact": {"type": "object", "properties": {"id": {"type": "string"}, "size": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize(
    "word,payload",
    [
        ("name=dunia", {"name": "dunia"}),
        ("name=5", {"name": "5"}),
        ("name=true", {"name": "true"}),
        ("name=a=b", {"name": "a=b"}),
        ("name=", {"name": ""}),
        ("count=5", {"count": 5}),
        ("count=-0", {"count": 0}),
        ("count=05", {"count": "05"}),
        ("count=1e3", {"count": "1e3"}),
        ("count=٣", {"count": "٣"}),
        ("count=5\n", {"count": "5\n"}),
        ("share=0.5", {"share": 0.5}),
        ("share=nan", {"share": "nan"}),
        ("share=Infinity", {"share": "Infinity"}),
        ("loud=true", {"loud": True}),
        ("loud=yes", {"loud": "yes"}),
        ("note=null", {"note": None}),
        ("note=5", {"note": "5"}),
        ("level=2", {"level": 2}),
        ("artifact.id=7", {"artifact": {"id": "7"}}),
        ("artifact.size=7", {"artifact": {"size": 7}}),
        ("unknown=7", {"unknown": "7"}),
        ("artifact.unknown.deep=7", {"artifact": {"unknown": {"deep": "7"}}}),
    ],
    ids=lambda value: ascii(value) if isinstance(value, str) else "",
)
def test_a_word_is_what_the_contract_says(word, payload):
    """Values are typed by the contract; what does not fit goes on as text, for the gate to refuse."""
    assert payload == payload_of([word], SCHEMA)


def test_nested_fields_come_together():
    """Dots build one record."""
    assert {"artifact": {"id": "p", "size": 7}} == payload_of(["artifact.id=p", "artifact.size=7"], SCHEMA)


@pytest.mark.parametrize(
    "words",
    [["name"], ["=x"], [".=x"], ["a..b=x"], ["name=a", "name=b"], ["artifact=x"], ["tags=x"], ["a=x", "a.b=y"]],
    ids=" ".join,
)
def test_what_a_word_cannot_say_is_a_fault_of_usage(words):
    """No guessing: the fix is in the message."""
    with pytest.raises(Fault) as raised:
        payload_of(words, SCHEMA)

    assert Exit.USAGE is raised.value.code
    assert raised.value.fix
