"""What an author writes instead of the documented values is refused or means the same: it never loosens a type."""

from __future__ import annotations

import pytest

from benteng.contract import Contract, Target
from benteng.errors import DefinitionError
from benteng.policy import Effect
from benteng.task import Options, define


class Note(Contract):
    """A payload with free text, which HIGH does not take."""

    target: Target
    text: str


def note(payload: Note) -> None:
    """Do nothing: only its definition matters here."""


def test_tier_as_a_word_is_no_way_around_its_floors():
    """`tier="high"` is a HIGH type with all its rules, or an error; not a type that calls itself HIGH without them."""
    options = Options(tier="high", effect=Effect.REPEATABLE, operation=("target",), resources=("target",), signed=True)  # pyright: ignore[reportArgumentType] - what a careless author writes

    with pytest.raises(DefinitionError):
        define(note, "note@1", options)
