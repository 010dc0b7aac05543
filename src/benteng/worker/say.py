"""How the worker tells people and machines what happened."""

from __future__ import annotations

from typing import Protocol


class Say(Protocol):
    """Tells what happened: an event's name, and fields that are safe to show."""

    def __call__(self, event: str, /, **fields: object) -> None:
        """Tell it."""
        ...
