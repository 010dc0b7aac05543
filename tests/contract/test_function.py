"""A typed function is a contract at LOW: its parameters are the fields."""

from typing import Annotated, Any

import pytest

from benteng.contract import Slug, shape_of
from benteng.errors import DefinitionError, Malformed
from benteng.policy import Tier


def greet(name: str, times: int = 1, *, mood: Annotated[Slug, "documented"] = "calm", ctx: Any = None) -> str:
    """The function whose signature is the contract."""
    return f"{name}{times}{mood}{ctx}"


def _refused(function: Any, tier: Tier = Tier.LOW) -> str:
    with pytest.raises(DefinitionError) as caught:
        shape_of(function, tier=tier)
    return caught.value.rule


def test_parameters_are_fields():
    """The payload's fields are the function's parameters without ctx, with their defaults."""
    shape = shape_of(greet, tier=Tier.LOW)

    parsed = shape.parse(b'{"name":"dunia"}')

    assert b'{"mood":"calm","name":"dunia","times":1}' == parsed.canonical
    assert "dunia1calmNone" == greet(**shape.arguments(parsed))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"name":1}',
        b'{"name":"a","times":"1"}',
        b'{"name":"a","x":1}',
        b"{}",
        b'{"name":"a","ctx":1}',
        b'{"name":"a","mood":"LOUD"}',
    ],
)
def test_functions_are_as_strict_as_classes(raw):
    """Nothing is coerced, unknown or left out, and ctx is no field."""
    with pytest.raises(Malformed):
        shape_of(greet, tier=Tier.LOW).parse(raw)


def test_functions_without_parameters_take_an_empty_object():
    """No parameters: only {} fits."""

    def tick() -> None: ...

    assert b"{}" == shape_of(tick, tier=Tier.LOW).parse(b"{}").canonical


@pytest.mark.parametrize("tier", [Tier.MEDIUM, Tier.HIGH])
def test_functions_are_for_low_only(tier):
    """Above LOW a contract is a reviewed class."""
    assert "D-source" == _refused(greet, tier)


def test_signatures_that_are_no_contract_are_refused():
    """Without names or types there is no contract; a mutable default is shared between calls."""

    def stars(*args: int) -> None: ...
    def double(**kwargs: int) -> None: ...
    def positional(a: int, /) -> None: ...
    def untyped(a, b: int) -> None: ...  # pyright: ignore[reportMissingParameterType] - that is what is refused
    def mutable(a: list[int] = [1]) -> None: ...  # noqa: B006 - that is what is refused
    def lost(a: "Nowhere") -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable] - unresolvable on purpose
    def named(path: str) -> None: ...
    def invalid(a: int = 2**60) -> None: ...

    functions = [stars, double, positional, untyped, mutable, lost, named, invalid]
    rules = ["D-source", "D-source", "D-source", "D-type", "D-default", "D-type", "D-names", "D-default"]

    assert rules == [_refused(function) for function in functions]
