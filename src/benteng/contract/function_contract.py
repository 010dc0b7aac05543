"""A LOW contract from a function's signature: each parameter becomes a field, `ctx` is left out."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec

from benteng.contract.definition import broken
from benteng.contract.types import Contract
from benteng.policy import Tier

CONTEXT: Final = "ctx"
"""The parameter that receives the Context and is no field of the payload."""

_NAMED: Final = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY})


def contract_of(function: Callable[..., object], tier: Tier) -> type[msgspec.Struct]:
    """Return the contract class that a function's signature describes.

    Raises DefinitionError: above LOW; a parameter without type, or *args, **kwargs, positional only (D-source, D-type).
    """
    if tier is not Tier.LOW:
        raise broken("D-source", "a plain function is a contract at LOW only")
    hints = _hints(function)
    parameters = inspect.signature(function).parameters.values()
    fields = [_field(parameter, hints) for parameter in parameters if parameter.name != CONTEXT]
    name = getattr(function, "__name__", "function")
    return msgspec.defstruct(name, fields, bases=(Contract,), kw_only=True, module=function.__module__)


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        reason = f"the annotations cannot be resolved ({type(error).__name__}): define the types at module level"
        raise broken("D-type", reason) from error


def _field(parameter: inspect.Parameter, hints: dict[str, Any]) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.kind not in _NAMED:
        raise broken("D-source", "*args, **kwargs and positional-only parameters have no names", parameter.name)
    if parameter.name not in hints:
        raise broken("D-type", "the parameter has no type", parameter.name)
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, hints[parameter.name]
    if isinstance(parameter.default, list | dict | set | bytearray):
        raise broken("D-default", "the default is mutable", parameter.name)
    return parameter.name, hints[parameter.name], parameter.default
